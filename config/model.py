"""The configuration file as pydantic models: Kafka's own names where it has one, units in every other. Unknown keys are
refused, so that a typing mistake in a quota does not mean "no quota"."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Final, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from config.sections import NETWORK, Export, FleetSection, IdentitySection, Limits, Transparent
from config.source import Source
from config.tls import ListenTls, UpstreamSasl, UpstreamTls
from config.types import (
    ADDRESS,
    CAP_OVERRIDES,
    CLIENTS_HOST,
    DEFAULT_WORD,
    HOST,
    HOST_NAMES,
    HOST_PORT,
    OVERRIDES,
    PORT_MAP,
    PORT_RANGE,
    AbsolutePath,
    HostPort,
    Pairs,
    Section,
    Value,
    duration_ms,
    duration_s,
    rate,
    setting,
    size,
    text,
    whole,
    wrong,
)
from config.units import HOUR_MS, INT_MAX, LONG_MAX
from quota.counter import MutationAlgorithm
from quota.entity import DEFAULT, Name
from quota.table import CandidateLimits, Entry, Scope

LIMIT_NAMES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
CONNECTION_LIMIT_NAMES = ("connection_creation_rate", "max_connections")
"""The connection limits that an entry for a user or an address can set (KIP-612; the caps are ours)."""
_request_limits = attrgetter(*LIMIT_NAMES)
_connection_limits = attrgetter(*CONNECTION_LIMIT_NAMES)
_NO_REQUEST_LIMITS = (None,) * len(LIMIT_NAMES)
_NO_CONNECTION_LIMITS = (None,) * len(CONNECTION_LIMIT_NAMES)

_PORT = whole(0, 65_535, "a port (0: any free one)")
_MAPPED = whole(1, 65_535, "a port")
_BYTES = size(1, LONG_MAX, "bytes per second")
_BYTE_RATE = Value(lambda value: float(_BYTES.check(value)), _BYTES.schema)
_ProducerByteRate = Annotated[Annotated[float, _BYTE_RATE] | None, Field(description="Bytes produced per second.")]
_ConsumerByteRate = Annotated[Annotated[float, _BYTE_RATE] | None, Field(description="Bytes fetched per second.")]
_RequestPercentage = Annotated[
    Annotated[float, rate("percent of one thread")] | None,
    Field(description="Broker time, in percent of one thread (KIP-124)."),
]
_ControllerMutationRate = Annotated[
    Annotated[float, rate("partitions per second")] | None,
    Field(description="Partitions created or deleted per second (KIP-599)."),
]


class Advertised(Section):
    """Where clients connect to, behind a Service, a balancer or a port mapping."""

    host: Annotated[str, CLIENTS_HOST] | None = setting(
        None, "Host in brokers' addresses that clients get; null: the address that the client connected to."
    )
    port: Annotated[int, _MAPPED] | None = setting(
        None, "Port of clients' bootstrap.servers, which `kquota check` shows; null: listen.port."
    )
    first_broker_port: Annotated[int, _MAPPED] | None = setting(
        None, "Port that clients get for the first of broker_ports; null: the same."
    )


class Listen(Section):
    """Where clients connect."""

    host: Annotated[str, HOST] = setting("127.0.0.1", "Address to listen on.")
    port: Annotated[int, _PORT] = setting(9092, "Bootstrap port; 0: any free one.")
    broker_ports: Annotated[range, PORT_RANGE] = Field(
        default_factory=lambda: range(19_092, 19_192),
        description="Local ports for brokers, first-last: at least one per broker of the cluster.",
        json_schema_extra={"default": "19092-19191"},
    )
    broker_port_map: Annotated[dict[int, int], PORT_MAP] = Field(
        default_factory=dict,
        description="Ports of single brokers, by id, in broker_ports. Others: first + id mod size, or the next free.",
    )
    broker_port_grace_s: Annotated[float, duration_s(0, 24 * HOUR_MS)] = setting(
        600, "Time that a port is kept for a broker that left the cluster."
    )
    state_file: AbsolutePath | None = setting(
        None,
        "File that keeps brokers' ports across restarts; null: kquota asks the cluster, or learns brokers from "
        "responses to clients.",
    )
    advertised: Advertised = Field(
        default_factory=Advertised, description="Addresses for clients that connect through a NodePort or balancer."
    )
    proxy_protocol_from: list[Annotated[str, NETWORK]] = Field(
        default_factory=list,
        description="Networks of balancers, as CIDRs. Their connections must begin with a PROXY header (version 1 or "
        "2), which names the client. Others must have none.",
    )
    tls: ListenTls | None = setting(None, "TLS from clients; null: plain.")

    @field_validator("broker_port_map")
    @classmethod
    def _in_the_range(cls, value: dict[int, int], info: ValidationInfo) -> dict[int, int]:
        ports = info.data.get("broker_ports")
        for node_id, port in value.items():
            if ports is not None and port not in ports:
                raise wrong(f"ports in broker_ports ({ports.start}-{ports[-1]}); broker {node_id} has port {port}")
        return value

    @field_validator("advertised")
    @classmethod
    def _ports_for_all(cls, value: Advertised, info: ValidationInfo) -> Advertised:
        ports, first = info.data.get("broker_ports"), value.first_broker_port
        if ports is not None and first is not None and first > (most := 65_536 - len(ports)):
            raise wrong(f"a first_broker_port of at most {most}, not {first}, for the {len(ports)} broker_ports")
        return value

    @property
    def advertised_ports(self) -> range:
        """The ports that are advertised for brokers."""
        first = self.advertised.first_broker_port or self.broker_ports.start
        return range(first, first + len(self.broker_ports))


class Upstream(Section):
    """The real cluster."""

    bootstrap: list[Annotated[HostPort, HOST_PORT]] = Field(
        default_factory=list,
        description="host:port of some brokers, tried in turn. Required unless mode is transparent.",
    )
    tls: UpstreamTls | None = setting(None, "TLS to the brokers; null: plain.")
    sasl: UpstreamSasl | None = setting(None, "SASL login of the sidecar's own connections.")
    connect_timeout_ms: Annotated[int, duration_ms(10, HOUR_MS, bare_unit="ms")] = setting(
        10_000, "Longest time for a connection to a broker, TLS included."
    )


class QuotaCandidate(Section):
    """Limits on trial: measured on the same traffic as the entry's own, reported, never applied."""

    producer_byte_rate: _ProducerByteRate = None
    consumer_byte_rate: _ConsumerByteRate = None
    request_percentage: _RequestPercentage = None
    controller_mutation_rate: _ControllerMutationRate = None

    def _expected_together(self) -> str | None:
        unlimited = _request_limits(self) == _NO_REQUEST_LIMITS
        return f"at least one limit: {', '.join(LIMIT_NAMES)}" if unlimited else None


class QuotaEntry(Section):
    """Limits of one (user, client-id) or address; a name left out (or null) means that the entry does not look at it.

    An address stands alone, and only connections are limited by it; connections are not limited by client-id, which
    is not known yet when they are made.
    """

    user: Annotated[str, text("a user name or <default>")] | None = setting(
        None, "A user (principal name), or <default>: every user without an entry."
    )
    client_id: Annotated[str, text("a client-id or <default>")] | None = setting(
        None, "A client-id, or <default>: every client-id without an entry.", alias="client-id"
    )
    ip: Annotated[str, ADDRESS] | None = setting(
        None,
        "The address that clients connect from, a network (CIDR) for each of its addresses, or <default> "
        "for every other one. The longest prefix applies.",
    )
    producer_byte_rate: _ProducerByteRate = None
    consumer_byte_rate: _ConsumerByteRate = None
    request_percentage: _RequestPercentage = None
    controller_mutation_rate: _ControllerMutationRate = None
    connection_creation_rate: Annotated[int, whole(1, INT_MAX, "connections per second")] | None = setting(
        None, "New connections per second, of an address (KIP-612) or a user."
    )
    max_connections: Annotated[int, whole(0, INT_MAX, "connections")] | None = setting(
        None, "Open connections of an address or a user; 0 refuses all."
    )
    mode: Literal["enforce", "shadow"] = setting("enforce", "shadow: measured, never applied.")
    scope: Scope | None = setting(
        None, "Scope of the limits: each instance, or the whole fleet; null: fleet.default_scope."
    )
    candidate: QuotaCandidate | None = setting(None, "Other values of these limits: measured, never applied.")

    @field_validator("candidate")
    @classmethod
    def _beside_live_limits(cls, value: QuotaCandidate | None, info: ValidationInfo) -> QuotaCandidate | None:
        for name in LIMIT_NAMES:
            # An invalid limit is not in info.data, and has been reported.
            if value is not None and getattr(value, name) is not None and info.data.get(name, 0) is None:
                raise wrong(
                    f"{name} in the entry as well: a candidate needs a limit to compare with; to try a new one, use an "
                    "entry with mode: shadow"
                )
        return value

    def _expected_together(self) -> str | None:
        named = self.ip is None and (self.user is not None or self.client_id is not None)
        if named and self.limits_requests and not self.limits_connections:
            return None  # nearly all of perhaps many thousands
        if self.scope == "fleet" and not self.limits_requests and self.connection_creation_rate is None:
            return "a limit that a fleet can share: max_connections applies to each instance"
        used = [name for name in (*LIMIT_NAMES, *CONNECTION_LIMIT_NAMES) if getattr(self, name) is not None]
        connections = [name for name in used if name in CONNECTION_LIMIT_NAMES]
        if self.ip is not None:
            if self.user is not None or self.client_id is not None:
                return "ip alone, without user and client-id (as in Kafka)"
            if not used or used != connections:
                return f"an entry for ip to set {' or '.join(CONNECTION_LIMIT_NAMES)}, and nothing else"
            return None
        if self.user is None and self.client_id is None:
            return "user, client-id or both, each a name or <default>; or ip"
        if self.client_id is not None and connections:
            return f"{connections[0]} only for a user or an ip: the client-id is unknown when a connection opens"
        if not used:
            return f"at least one limit: {', '.join((*LIMIT_NAMES, *CONNECTION_LIMIT_NAMES))}"
        return None

    @property
    def limits_requests(self) -> bool:
        """Whether the entry limits requests."""
        return bool(_request_limits(self) != _NO_REQUEST_LIMITS)

    @property
    def limits_connections(self) -> bool:
        """Whether the entry limits connections."""
        return bool(_connection_limits(self) != _NO_CONNECTION_LIMITS)


def to_name(name: str | None) -> Name:
    """A user, client-id or address of the file in the form of the ledger's table."""
    return DEFAULT if name == DEFAULT_WORD else name


def to_entry(entry: QuotaEntry) -> Entry:
    """One entry of the file in the form of the ledger's table."""
    candidate = entry.candidate
    return Entry(
        to_name(entry.user),
        to_name(entry.client_id),
        *_request_limits(entry),
        entry.mode,
        None if candidate is None else CandidateLimits(*_request_limits(candidate)),
        entry.scope,
    )


def _in_the_tables_form(entry: QuotaEntry) -> QuotaEntry | Entry:
    """One that limits requests alone becomes an `Entry` at once, so that many thousand models never exist together;
    freeing them would hold up all threads for 10 ms."""
    return entry if entry.limits_connections else to_entry(entry)


_Entry = Annotated[QuotaEntry, AfterValidator(_in_the_tables_form)]


class QuotaSettings(Section):
    """Where the limits come from, and what AlterClientQuotas through the sidecar does."""

    source: Literal["file", "cluster"] = setting(
        "file", "file: the entries below; cluster: the cluster's client quotas, polled."
    )
    entries: list[_Entry] = Field(default_factory=list, description="The limits, in any order.")
    poll_interval_s: Annotated[float, duration_s(100, HOUR_MS)] = setting(
        10, "With source: cluster, the polling interval."
    )
    alter: Literal["deny", "forward", "apply"] = setting(
        "deny",
        "AlterClientQuotas (kafka-configs) through the sidecar: deny; forward to the broker; apply to the overlay.",
    )
    alter_principals: list[Annotated[str, text("a user name")]] = Field(
        default_factory=list, description="With alter: apply, the users who may alter quotas, without User:."
    )
    overlay: AbsolutePath | None = setting(None, "The file that alter: apply writes. It overrides the entries.")

    @field_validator("alter_principals")
    @classmethod
    def _names_alone(cls, value: list[str]) -> list[str]:
        for name in value:
            if name.startswith("User:"):
                raise wrong(f"user names as in quota entries, {name.removeprefix('User:')} instead of {name}")
        return value


def _list_means_entries(value: Any) -> Any:
    if isinstance(value, list):
        return {"entries": value}
    if isinstance(value, dict) and {"user", "client-id", "ip"} & value.keys():
        raise wrong('a list of quota entries, each with "- " before it')
    if isinstance(value, dict | QuotaSettings):
        return value
    raise wrong("a list of quota entries, or a mapping with source, entries, alter and so on")


_LIST_OR_MAPPING = BeforeValidator(_list_means_entries, json_schema_input_type=list[_Entry] | QuotaSettings)


class Admin(Section):
    """The HTTP port for Prometheus, probes and people."""

    host: Annotated[str, HOST] = setting("127.0.0.1", "Address to listen on; ``::`` in a pod.")
    port: Annotated[int, _PORT] = setting(9404, "Port; 0: any free one.")
    allowed_hosts: list[Annotated[str, HOST_NAMES]] = Field(
        default_factory=list, description="Other host names that the port answers to: names, *.suffix, or * for any."
    )


class Metrics(Section):
    """What /metrics shows."""

    max_groups: Annotated[int, whole(0, 100_000, "groups")] = setting(
        200, "Clients and counters with their own series; the rest is added up as `other`."
    )


class Log(Section):
    """What is logged. KQUOTA_LOG_LEVEL in the environment wins over `level`."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "Lowest level that is logged.")
    format: Literal["auto", "json", "console"] = setting("auto", "auto: console on a terminal, else JSON lines.")


_BROKERS_NEEDED: dict[str, Any] = {
    "if": {"required": ["mode"], "properties": {"mode": {"const": "transparent"}}},
    "else": {"required": ["upstream"], "properties": {"upstream": {"required": ["bootstrap"]}}},
}
"""JSON schema of what `config.load` checks: brokers are named, unless connections themselves have a destination."""


class Config(Section):
    """One sidecar."""

    model_config = ConfigDict(json_schema_extra=_BROKERS_NEEDED)

    mode: Literal["rewrite", "transparent"] = setting(
        "rewrite", "rewrite: one local port per broker; transparent: connections are redirected to the sidecar."
    )
    listen: Listen = Field(default_factory=Listen)
    upstream: Upstream = Field(default_factory=Upstream)
    transparent: Transparent = Field(default_factory=Transparent)
    identity: IdentitySection = Field(default_factory=IdentitySection)
    quota_settings: Annotated[QuotaSettings, _LIST_OR_MAPPING] = Field(
        default_factory=QuotaSettings,
        alias="quotas",
        description="The limits: a list of entries, or a mapping with source, entries, alter.",
    )
    producer_default: Annotated[float, _BYTE_RATE] | None = setting(
        None, "KIP-13: producer_byte_rate of client-id <default>.", alias="quota.producer.default"
    )
    producer_override: Annotated[Pairs, OVERRIDES] = setting(
        (), 'KIP-13: by client-id, "a:4M,b:10M".', alias="quota.producer.override"
    )
    consumer_default: Annotated[float, _BYTE_RATE] | None = setting(
        None, "KIP-13: consumer_byte_rate of client-id <default>.", alias="quota.consumer.default"
    )
    consumer_override: Annotated[Pairs, OVERRIDES] = setting(
        (), 'KIP-13: by client-id, "a:4M,b:10M".', alias="quota.consumer.override"
    )
    max_connections_per_ip: Annotated[int, whole(0, INT_MAX, "connections")] | None = setting(
        None, "Kafka's name for max_connections of ip <default>.", alias="max.connections.per.ip"
    )
    max_connections_per_ip_overrides: Annotated[Pairs, CAP_OVERRIDES] = setting(
        (),
        'max_connections of single addresses, "10.0.0.1:100,10.0.0.2:200".',
        alias="max.connections.per.ip.overrides",
    )
    window_num: Annotated[int, whole(1, 10_000, "samples")] = setting(
        11, "Number of samples, as in Kafka.", alias="quota.window.num"
    )
    window_size_seconds: Annotated[int, whole(1, 86_400, "seconds")] = setting(
        1, "Length of one sample, as in Kafka.", alias="quota.window.size.seconds"
    )
    controller_window_num: Annotated[int, whole(1, 10_000, "samples")] = setting(
        11,
        "Samples of partition mutations, as in Kafka; the burst is samples x seconds x rate.",
        alias="controller.quota.window.num",
    )
    controller_window_size_seconds: Annotated[int, whole(1, 86_400, "seconds")] = setting(
        1, "Length of one sample of partition mutations, as in Kafka.", alias="controller.quota.window.size.seconds"
    )
    controller_mutation_algorithm: MutationAlgorithm = setting(
        "token_bucket",
        "token_bucket: as Kafka (KIP-599); windowed_burst: a windowed rate, with bursts spread over the windows.",
    )
    max_mute: Annotated[int, duration_ms(0, 24 * HOUR_MS, bare_unit=None)] = setting(
        120_000,
        "Max throttle time. A larger debt delays the next requests of all clients that share the counter. "
        "0: no cap, as with pacing: kafka.",
        json_schema_extra={"default": "2m"},
    )
    pacing: Literal["smooth", "kafka"] = setting(
        "smooth",
        "smooth: even rate; debt delays all connections that share the counter. kafka: a broker's formula "
        "and mutes; a client evades a mute by reconnecting.",
    )
    limits: Limits = Field(default_factory=Limits)
    drain_timeout_s: Annotated[float, duration_s(0, HOUR_MS)] = setting(
        30, "On SIGTERM, time for requests in flight. Throttled connections close at once."
    )
    connections_max_idle_ms: Annotated[int, duration_ms(1000, 24 * HOUR_MS, bare_unit="ms")] = setting(
        600_000, "Connections without traffic for this long are closed, like connections.max.idle.ms."
    )
    connections_max_age_ms: Annotated[int, duration_ms(0, 24 * HOUR_MS, bare_unit="ms")] = setting(
        0,
        "Connections are closed at 80 to 100 % of this age, between two requests, so that clients spread "
        "over new replicas; 0: never.",
    )
    admin: Admin | None = Field(default_factory=Admin, description="null: no admin port.")
    metrics: Metrics = Field(default_factory=Metrics)
    log: Log = Field(default_factory=Log)
    export: Export | None = setting(None, "Usage records; null: none.")
    fleet: FleetSection | None = setting(None, "Limits shared by instances; null: each instance has its own.")

    _source: Source | None = PrivateAttr(default=None)

    @property
    def quotas(self) -> list[QuotaEntry | Entry]:
        """The entries of the file: in the form of the ledger's table, unless they limit connections."""
        return cast("list[QuotaEntry | Entry]", self.quota_settings.entries)

    @property
    def source(self) -> Source | None:
        """The positions of the values in the file; None when the configuration was not read from one."""
        return self._source

    def with_source(self, source: Source) -> Config:
        """The same configuration with its file. Used by the loader right after validation."""
        self._source = source
        return self

    def forget_file(self) -> None:
        """Drop the file's text and positions, which problems no longer have then; and the quota entries, once they are
        in a table."""
        self._source = None
        self.quotas.clear()

    def restart_settings(self) -> dict[str, Any]:
        """Settings that a running sidecar cannot change, by dotted name."""
        flat: dict[tuple[str, ...], Any] = {}
        for name, value in self:
            written = Config.model_fields[name].alias or name
            if isinstance(value, BaseModel):
                flat |= {(written, key): each for key, each in value}
            else:
                flat[(written,)] = value
        live = set(LIVE_SETTINGS)
        return {".".join(place): value for place, value in flat.items() if not {place, place[:1]} & live}


LIVE_SETTINGS: Final[tuple[tuple[str, ...], ...]] = (
    ("quotas", "alter"),
    ("quotas", "alter_principals"),
    ("quotas", "entries"),
    ("quota.producer.default",),
    ("quota.producer.override",),
    ("quota.consumer.default",),
    ("quota.consumer.override",),
    ("max.connections.per.ip",),
    ("max.connections.per.ip.overrides",),
    ("log",),
)
"""Settings that a running sidecar applies from a changed file, as paths of keys; everything else takes a restart."""


def json_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    schema = Config.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kquota configuration"}
