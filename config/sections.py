"""Sections of the configuration: limits of peers, usage records, the fleet, and the transparent mode."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, field_validator

from config.types import (
    PORTS,
    AbsolutePath,
    Section,
    Value,
    duration_ms,
    duration_s,
    setting,
    size,
    text,
    whole,
    wrong,
)
from config.units import HOUR_MS, INT_MAX, LONG_MAX
from quota.table import Scope

_MIB = 1024 * 1024
TEMPLATE_FIELDS: Final = ("namespace", "service_account", "pod")
_Source = Literal["tls", "sasl", "static"]
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


class Limits(Section):
    """What one connection may use, how many there may be, and how many clients are remembered (docs/limits.md)."""

    max_frame_bytes: Annotated[int, size(1024, INT_MAX, "bytes")] = setting(
        104_857_600, "Largest request, as Kafka's socket.request.max.bytes."
    )
    max_response_bytes: Annotated[int, size(1024, INT_MAX, "bytes")] = setting(INT_MAX, "Largest response of a broker.")
    max_in_flight: Annotated[int, whole(1, 1_000_000, "requests")] = setting(
        1024, "Unanswered requests of a connection; at this number kquota stops reading from it."
    )
    max_connections: Annotated[int, whole(1, INT_MAX, "connections")] = setting(
        INT_MAX,
        "Open client connections, as Kafka's max.connections; others are closed at once. At most "
        "(file descriptors - listeners - 64) / 2.",
    )
    pre_auth_timeout_ms: Annotated[int, duration_ms(100, HOUR_MS, bare_unit="ms")] = setting(
        30_000, "Time until a client's login, or its first request. The broker's time and mutes do not count."
    )
    stall_timeout_ms: Annotated[int, duration_ms(100, HOUR_MS, bare_unit="ms")] = setting(
        60_000, "Time that a peer may stop inside a request or response, or not read, below 512 bytes per second."
    )
    max_clients: Annotated[int, whole(100, 10_000_000, "clients")] = setting(
        20_000, "Clients and counters remembered per kind of quota. Beyond it new clients share a counter."
    )
    max_held_connections: Annotated[int, whole(0, 100_000, "connections")] = setting(
        1000, "Connections over a connection_creation_rate that stay open for their delay; others are closed at once."
    )


_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _topic_name(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise wrong("a topic name: letters, digits, . _ -")
    return value


TopicName = Annotated[str, text("a topic name", most=249), AfterValidator(_topic_name)]


class Export(Section):
    """Where usage records go (docs/usage-records.md)."""

    directory: Annotated[str, text("a directory")] | None = setting(
        None, "Directory of the JSON-lines files, one per sidecar; null: none."
    )
    kafka_topic: TopicName | None = setting(None, "Topic for the same records; null: none.")
    interval_s: Annotated[float, duration_s(1000, 300_000)] = setting(10, "One record per client and interval.")
    rotate_s: Annotated[float, duration_s(1000, HOUR_MS)] = setting(
        300, "A file is complete after this long, and at the end of its hour."
    )
    keep_bytes: Annotated[int, size(1, LONG_MAX, "bytes")] | None = setting(
        1024 * _MIB,
        "Size of all complete files; the oldest are deleted. null: unlimited.",
        json_schema_extra={"default": "1GiB"},
    )
    cluster_id: Annotated[str, text("a name", most=255)] | None = setting(
        None, "Cluster name in records; null: KQUOTA_CLUSTER_ID, else none."
    )
    namespace: Annotated[str, text("a name", most=255)] | None = setting(
        None, "Namespace in records; null: KQUOTA_POD_NAMESPACE, else none."
    )
    pod: Annotated[str, text("a name", most=255)] | None = setting(
        None, "Pod in records; null: KQUOTA_POD_NAME, else the host name."
    )

    def _expected_together(self) -> str | None:
        return "a directory, a kafka_topic, or both" if self.directory is None and self.kafka_topic is None else None


class FleetSection(Section):
    """Which instances share limits, and how (docs/fleet.md)."""

    id: Annotated[str, text("a name", most=255)] = setting(
        "default", "Instances with the same id and topic are one fleet."
    )
    key_file: AbsolutePath | None = setting(
        None,
        "File with the secret that authenticates records; required. One key a line, at least 32 "
        "characters: the first signs, all are accepted. Re-read when it changes.",
    )
    default_scope: Scope = setting("instance", "Scope of entries without scope: each instance, or the whole fleet.")
    topic: TopicName = setting("kquota-fleet", "The fleet's topic.")
    create_topic: StrictBool = setting(True, "Create the topic if missing; false: the log has the command.")
    replication_factor: Annotated[int, whole(1, 100, "replicas")] | None = setting(
        None, "Replication factor of a created topic; null: the brokers' default."
    )
    interval_s: Annotated[float, duration_s(500, 60_000)] = setting(
        1, "How often an instance publishes its usage; less often with many instances per partition."
    )
    instances: Annotated[int, whole(1, 1_000_000, "instances")] = setting(
        1, "Minimum number of instances. An instance that never reached the topic divides each limit by this number."
    )


def _network(value: Any) -> str:
    expected = 'a network or an address, such as "10.0.0.0/8", "10.1.2.3" or "2001:db8::/32"'
    if not isinstance(value, str):
        raise wrong(expected)
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        # 10.0.0.1/8: one address of a network, or all of it? Both would be a guess.
        bits = " without host bits" if "host bits" in str(error) else ""
        raise wrong(expected + bits) from None


NETWORK = Value(_network, {"type": "string", "minLength": 2})
"""A CIDR in its canonical form; a single address is /32 or /128."""


class Transparent(Section):
    """Only with mode: transparent (docs/transparent.md)."""

    mark: Annotated[int, whole(1, 2**32 - 1, "a socket mark")] | None = setting(
        None,
        "Socket mark (SO_MARK) of the sidecar's own connections, for rules that exempt it by mark. Needs "
        "NET_ADMIN. null: none.",
    )
    networks: list[Annotated[str, NETWORK]] = Field(
        default_factory=list, description="Allowed destinations of redirected connections, as CIDRs; empty: all."
    )
    ports: list[Annotated[range, PORTS]] = Field(
        default_factory=list, description="Allowed destination ports; empty: all."
    )
    tls_passthrough: StrictBool = setting(
        True, "Without listen.tls, pass TLS through with byte quotas; false: refuse it."
    )


_USER = text("a user name")


def template_fields(template: str) -> list[str]:
    """The fields in braces, in order."""
    return _FIELD.findall(template)


def _template(value: Any) -> str:
    expected = f"text with {', '.join(f'{{{name}}}' for name in TEMPLATE_FIELDS)} or {{label:KEY}} in it"
    if not isinstance(value, str) or not (fields := template_fields(value)):
        raise wrong(f'{expected}, such as "{{namespace}}/{{service_account}}"')
    for field in fields:
        if field not in TEMPLATE_FIELDS and not re.fullmatch(r"label:[A-Za-z0-9][A-Za-z0-9._/-]*", field):
            raise wrong(f"{expected}, not {{{field}}}")
    if "}{" in value:
        raise wrong("a separator between two fields, such as /: without it two pods could get the same name")
    if "{" in _FIELD.sub("", value) or "}" in _FIELD.sub("", value):
        raise wrong(f"{expected}; unbalanced braces")
    return value


class StaticIdentity(Section):
    """The user of every connection: written down here, or in files that the workload cannot write."""

    user: Annotated[str, _USER] | None = setting(None, "The user.")
    file: AbsolutePath | None = setting(None, "A file whose only line is the user; re-read when it changes.")
    template: Annotated[str, Value(_template, {"type": "string", "pattern": r"\{.+\}"})] | None = setting(
        None, "The user, with {namespace}, {service_account}, {pod} and {label:KEY} from `directory`."
    )
    directory: AbsolutePath | None = setting(
        None,
        "With template: a projected volume with the files namespace, service_account, pod, "
        "labels or token; re-read when they change.",
    )

    def _expected_together(self) -> str | None:
        if sum(one is not None for one in (self.user, self.file, self.template)) != 1:
            return "exactly one of user, file and template"
        if (self.template is None) != (self.directory is None):
            return "template and directory, both or neither"
        return None


def _text_means_user(value: Any) -> Any:
    return value if isinstance(value, dict | StaticIdentity) else {"user": _USER.check(value)}


_TEXT_OR_MAPPING = BeforeValidator(_text_means_user, json_schema_input_type=Annotated[str, _USER] | StaticIdentity)


class SaslIdentity(Section):
    """How the user is found in a login by SASL that the broker has accepted (docs/identity.md)."""

    oauthbearer_claim: Annotated[str, text("the name of a claim")] = setting(
        "sub", "Claim of OAUTHBEARER tokens that is the user, like the brokers' sasl.oauthbearer.sub.claim.name."
    )
    unknown_user: Annotated[str, text("a user name")] | None = setting(
        None,
        "User of logins without a visible name (GSSAPI, opaque tokens, unknown delegation tokens); null: "
        "the next source.",
    )
    token_owners: dict[Annotated[str, text("a token id")], Annotated[str, text("a user name")]] = Field(
        default_factory=dict,
        description="Owners of delegation tokens by token id. With upstream.sasl, kquota asks the cluster for the "
        "owners of other tokens.",
    )


class IdentitySection(Section):
    """Where the user of a connection comes from; the first source that knows one wins, else ANONYMOUS."""

    sources: list[_Source] = Field(
        default_factory=lambda: list(get_args(_Source)),
        description="Sources of a connection's user, in this order: certificate, SASL login, static user.",
    )
    static: Annotated[StaticIdentity, _TEXT_OR_MAPPING] | None = setting(
        None, "User name of connections without another source, or a mapping to read it from files; null: ANONYMOUS."
    )

    sasl: SaslIdentity = Field(default_factory=SaslIdentity, description="How names are read from SASL logins.")

    @field_validator("sources")
    @classmethod
    def _each_once(cls, value: list[Any]) -> list[Any]:
        if len(set(value)) != len(value):
            raise wrong("each source once")
        return value

    @property
    def static_user(self) -> str | None:
        """The static user as far as this file defines it: None without one, or if other files define it."""
        return self.static.user if self.static is not None and "static" in self.sources else None

    @property
    def static_elsewhere(self) -> bool:
        """Other files define the static user."""
        return self.static is not None and self.static.user is None and "static" in self.sources
