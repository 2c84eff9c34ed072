"""Reads a configuration file and reports everything that is wrong with it at once."""

from __future__ import annotations

import difflib
import inspect
import json
import typing
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from config.model import LIMIT_NAMES, Config, QuotaEntry, to_entry
from config.parts import read_config
from config.problems import MAX_PROBLEMS, MISSING, ConfigError, Place, Problem, first_of, refused
from config.sections import Transparent
from config.source import Source, parse
from config.table import find_duplicates, has_limits, to_connection_entry
from config.types import DEFAULT_WORD, keys_of
from proxy.core.auth.identity import SOURCES
from quota.connections import ConnectionEntry, canonical_address
from quota.entity import ANONYMOUS, DEFAULT
from quota.table import Entry

_scope_of = attrgetter("scope")
_CONSTANTS: Final[dict[Place, str]] = {
    ("empty_client_id",): "a client-id that is empty is a name like any other",
    ("upstream", "metadata_refresh_ms"): "30000",
    ("limits", "max_header_bytes"): "40960",
    ("limits", "pre_auth_max_bytes"): "524288",
    ("limits", "min_bytes_per_s"): "512",
    ("export", "rotate_bytes"): "64MiB",
    ("export", "buffer_bytes"): "16MiB",
    ("fleet", "partitions"): "8",
}
"""Settings of earlier versions, and what always holds instead."""
_MOVED: Final[dict[Place, str]] = {("listen", "advertised_host"): "listen.advertised.host"}
"""Keys of earlier versions, and their replacements."""
_OF_KAFKA: Final = {
    "bootstrap": "upstream.bootstrap",
    "bootstrap.servers": "upstream.bootstrap",
    "security.protocol": "upstream.tls, for TLS to the brokers; clients' logins pass through",
    "ssl.truststore.location": "upstream.tls.ca_file (PEM)",
    "ssl.keystore.location": "upstream.tls.certificate_file and key_file (PEM)",
    "sasl.mechanism": "upstream.sasl.mechanism, for the sidecar's own login; clients' logins pass through",
    "sasl.jaas.config": "upstream.sasl, for the sidecar's own login; clients' logins pass through",
    "listeners": "listen.host and listen.port",
    "advertised.listeners": "listen.advertised",
    "client.id": "client-id",
    "topic": "client-id or user (Kafka has no topic quotas)",
}
"""Kafka's own names of properties, and what people have not found here."""
_ALIKE: Final = str.maketrans("-.", "__")
"""client_id and client-id, producer-byte-rate and producer_byte_rate are easily mistaken for each other."""
_EXPECTED: Final = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "bool_type": "true or false",
    "string_type": "text",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than_equal": "a number of at least {ge:g}",
    "literal_error": "{expected}",
    "too_short": "at least one item",
}
"""By pydantic's type of an error."""
_FILES_OF_SECRETS: Final = frozenset({"key_file", "password_file", "token_file"})
"""Settings whose value may be the secret itself by mistake: problems do not show it, as they are logged."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
TLS_PORTS: Final = range(9093, 9099)
"""By custom: Kafka's own examples, Strimzi, Event Hubs, and Amazon MSK's 9094, 9096 and 9098."""
TLS_DOMAINS: Final = (".confluent.cloud", ".servicebus.windows.net", ".aivencloud.com", ".cloud.redpanda.com")
"""Providers whose brokers speak TLS on every port."""
ON_PAPER: Final = "on-paper:9092"
"""Stands for the brokers of a file that is only looked at."""
_NO_SUCH_USER: Final = "matches no connection yet: with this file every connection's user is {}"
_M = typing.TypeVar("_M", bound=BaseModel)


def load(path: str | Path, *, on_paper: bool = False) -> Config:
    """Load and validate a file. Raises ConfigError with every problem found. `on_paper`: nothing will be connected to,
    so a file may leave out `upstream`, `fleet` and the fleet's key."""
    try:
        data = read_config(path)
    except OSError as error:
        raise refused(str(path), f"cannot be read: {error.strerror or error}") from error
    return load_bytes(str(path), data, on_paper=on_paper)


def load_bytes(file: str, data: bytes, *, on_paper: bool = False) -> Config:
    """The same for content that was read already (the watcher loads exactly what it compared)."""
    source = parse(file, data)
    values = source.values
    if values is None and not source.problems:
        raise ConfigError([source.problem((), "expected a configuration, the file is empty")])
    if on_paper and isinstance(values, dict):
        values.setdefault("upstream", {"bootstrap": [ON_PAPER]})
        if _is_of_a_fleet(values.get("quotas")):
            values.setdefault("fleet", {})
    no_brokers = [*_find_no_brokers(source)]
    config = validate(Config, source, no_brokers)
    found = [*no_brokers, *find_duplicates(config, source), *_contradictions(config, source, on_paper=on_paper)]
    if found:
        raise ConfigError(first_of(_in_file_order(found)))
    return config.with_source(source)


def _is_of_a_fleet(quotas: Any) -> bool:
    entries = quotas.get("entries") if isinstance(quotas, dict) else quotas
    if not isinstance(entries, list):
        return False
    return any(isinstance(entry, dict) and entry.get("scope") == "fleet" for entry in entries)


def _find_no_brokers(source: Source) -> Iterator[Problem]:
    """Brokers are named, unless connections have a destination. Reported with the problems of the model."""
    values, place = source.values, ("upstream", "bootstrap")
    if not isinstance(values, dict) or values.get("mode") == "transparent":
        return
    described, upstream = _described(Config, place), values.get("upstream", MISSING)
    if upstream is MISSING:
        yield source.problem(("upstream",), f"expected a section with bootstrap: {described}")
    elif isinstance(upstream, dict) and "bootstrap" not in upstream:
        yield source.problem(place, f"expected a value: {described}")
    elif isinstance(upstream, dict) and upstream["bootstrap"] == []:
        yield source.problem(place, "expected at least one item", [])


def _contradictions(config: Config, source: Source, *, on_paper: bool) -> Iterator[Problem]:
    transparent, fleet, export = config.mode == "transparent", config.fleet, config.export
    yield from _clashes(config, source)
    yield from _quota_clashes(config, source)
    if not config.upstream.bootstrap:
        text = "expected upstream.bootstrap to be set: the sidecar connects to the cluster for this"
        if config.quota_settings.source == "cluster":
            yield source.problem(("quotas", "source"), text, "cluster")
        if export is not None and export.kafka_topic is not None:
            yield source.problem(("export", "kafka_topic"), text, export.kafka_topic)
        if fleet is not None:
            yield source.problem(("fleet",), text, at_key=True)
    if transparent and config.listen.tls is not None and config.upstream.tls is None:
        text = "expected upstream.tls too: in transparent mode TLS from clients needs TLS to brokers"
        yield source.problem(("listen", "tls"), text, at_key=True)
    if transparent and config.listen.proxy_protocol_from:  # a balancer's connections are not redirected
        text = "expected none with mode: transparent: redirected connections come from the clients themselves"
        yield source.problem(("listen", "proxy_protocol_from"), text, at_key=True)
    scopes = [] if fleet is not None else list(map(_scope_of, config.quotas))  # there may be many thousands
    if "fleet" in scopes:
        yield source.problem(
            ("quotas", scopes.index("fleet"), "scope"), "expected a fleet section at the top level", "fleet"
        )
    if fleet is not None and fleet.key_file is None and not on_paper:  # anybody could write its records
        yield source.problem(("fleet",), "expected key_file: the file with the fleet's secret", at_key=True)


_REACHED: Final = {"localhost": _LOOPBACK, "0.0.0.0": frozenset({"127.0.0.1"}), "::": frozenset({"::1"})}
"""Where connections to these hosts end, on Linux."""


def _address(host: str) -> str:
    try:
        return canonical_address(host)
    except ValueError:
        return host.lower()


def _bound(host: str, *, both: bool = False) -> frozenset[str]:
    """Where a listener on this host is bound; `both`: on loopback in both families, as in transparent mode."""
    address = _address(host)
    address = "127.0.0.1" if address == "localhost" else address
    return _LOOPBACK if both and address in _LOOPBACK else frozenset({address})


def _overlap(one: str, other: str) -> bool:
    """Whether two listeners cannot have one port: ``0.0.0.0`` is all of IPv4, ``::`` is both families."""
    pair = {one, other}
    return len(pair) == 1 or "::" in pair or ("0.0.0.0" in pair and ":" not in one + other)


def _accepts(listener: str, address: str) -> bool:
    """Whether connections from this machine to an address end at a listener, as far as is known here."""
    known = listener == address or address.startswith("127.") or address in _LOOPBACK
    return known and _overlap(listener, address)


def _clashes(config: Config, source: Source) -> Iterator[Problem]:
    """Addresses that contradict each other: one port for two listeners, and a sidecar in front of itself."""
    listen, admin = config.listen, config.admin
    bound = _bound(listen.host, both=config.mode == "transparent")
    ports = listen.broker_ports
    of_brokers = ports if config.mode == "rewrite" else ()
    outside = f"expected a port outside listen.broker_ports ({ports.start}-{ports[-1]})"
    if listen.port in of_brokers:
        yield source.problem(("listen", "port"), outside, listen.port)
    if admin is not None and any(_overlap(mine, other) for mine in bound for other in _bound(admin.host)):
        if admin.port == listen.port != 0:
            yield source.problem(("admin", "port"), "expected a port other than listen.port", admin.port)
        if admin.port in of_brokers:
            yield source.problem(("admin", "port"), outside, admin.port)
    for index, address in enumerate(config.upstream.bootstrap):
        host = _address(address.host)
        reached = _REACHED.get(host, frozenset({host}))
        if address.port == listen.port and any(_accepts(mine, end) for mine in bound for end in reached):
            text = "expected a broker, this is the sidecar's own listener (change listen.port)"
            yield source.problem(("upstream", "bootstrap", index), text, str(address))


def _quota_clashes(config: Config, source: Source) -> Iterator[Problem]:
    quotas = config.quota_settings

    def wrong(place: Place, text: str, value: Any = MISSING) -> Problem:
        return source.problem(place, text, value, at_key=True)

    if quotas.source == "cluster":
        text = "expected connection limits only: with source: cluster all others come from the cluster"
        for index, entry in enumerate(quotas.entries):
            for name in LIMIT_NAMES:
                if getattr(entry, name) is not None:
                    yield wrong(("quotas", index, name), text)
        text = "expected no limits here: with quotas.source: cluster they come from the cluster"
        for kind in ("producer", "consumer"):
            for name in ("default", "override"):
                if getattr(config, f"{kind}_{name}"):
                    yield wrong((f"quota.{kind}.{name}",), text)
        stored = "with source: cluster quotas are stored in the cluster"
        if quotas.overlay is not None:
            yield wrong(("quotas", "overlay"), f"expected no overlay: {stored}", quotas.overlay)
        if quotas.alter == "apply":
            yield wrong(("quotas", "alter"), f"expected deny or forward: {stored}", "apply")
    elif quotas.alter == "apply" and quotas.overlay is None:
        text = "expected the path of a file: with alter: apply, altered quotas are stored in it"
        yield wrong(("quotas", "overlay"), text)
    if quotas.alter == "apply" and not quotas.alter_principals:
        text = "expected at least one user who may alter quotas (or alter: deny)"
        yield wrong(("quotas", "alter_principals"), text, [])


def load_limits(value: Any, file: str) -> tuple[Entry | None, ConnectionEntry | None]:
    """The limits of requests and of connections (None: none) of one quota entry, by the file's rules."""
    entry = validate(QuotaEntry, Source(file, value))
    return to_entry(entry) if entry.limits_requests else None, to_connection_entry(entry)


def warnings_of(config: Config) -> Iterator[Problem]:
    """Settings that this version does not support; none of them keeps the sidecar from running."""
    source, identity, tls = config.source or Source("(no file)"), config.identity, config.upstream.tls
    # of all connections; None where there can be several, or other files say who it is
    user = None if login_sources(config) or identity.static_elsewhere else identity.static_user or ANONYMOUS
    yield from _warnings_of_identity(config, source)
    if user is not None:
        reachable = {user, DEFAULT_WORD, DEFAULT, None}
        unreachable = [index for index, entry in enumerate(config.quotas) if entry.user not in reachable]
        if unreachable:  # one warning for all
            more = f" ({len(unreachable) - 1} more like this)" if len(unreachable) > 1 else ""
            first = config.quotas[unreachable[0]].user
            yield source.problem(("quotas", unreachable[0], "user"), _NO_SUCH_USER.format(user) + more, first)
    for index, broker in enumerate(config.upstream.bootstrap if tls is None else ()):
        if broker.port in TLS_PORTS or broker.host.lower().endswith(TLS_DOMAINS):
            text = "brokers there usually expect TLS: set upstream.tls; `tls: {}` trusts the system's authorities"
            yield source.problem(("upstream", "bootstrap", index), text, str(broker))
            break
    if tls is not None and not tls.verify_hostname:
        text = "any holder of a certificate of a trusted authority can pose as a broker"
        yield source.problem(("upstream", "tls", "verify_hostname"), text, False)
    for index, network in enumerate(config.listen.proxy_protocol_from):
        if network.endswith("/0"):
            text = "every client can claim any address: list only the balancers' networks"
            yield source.problem(("listen", "proxy_protocol_from", index), text, network)
    yield from _warnings_of_administration(config, source, user)
    yield from _warnings_of_mode(config, source)
    fleet = config.fleet
    if fleet is not None and fleet.default_scope != "fleet" and "fleet" not in map(_scope_of, config.quotas):
        text = "is not used: no limit has scope: fleet, and default_scope is instance"
        yield source.problem(("fleet",), text, at_key=True)
    if not has_limits(config) and config.quota_settings.source == "file" and config.quota_settings.alter != "apply":
        yield source.problem(("quotas",), "no quotas at all: nothing will be throttled", at_key=True)


def _warnings_of_mode(config: Config, source: Source) -> Iterator[Problem]:
    unused = f"is not used: mode is {config.mode}"
    if config.mode == "transparent":
        for name in ("broker_ports", "broker_port_map", "broker_port_grace_s", "state_file", "advertised"):
            if source.has(("listen", name)):
                yield source.problem(("listen", name), unused, at_key=True)
        if config.listen.host not in (*_LOOPBACK, "localhost", "0.0.0.0", "::"):
            text = "redirected connections arrive at 127.0.0.1 and ::1: leave it out, or set ::"
            yield source.problem(("listen", "host"), text, config.listen.host)
    elif config.transparent != Transparent():
        yield source.problem(("transparent",), unused, at_key=True)


def _warnings_of_identity(config: Config, source: Source) -> Iterator[Problem]:
    identity = config.identity
    for index, name in enumerate(identity.sources):
        place: Place = ("identity", "sources", index)
        chosen = tuple(identity.sources) != SOURCES and source.has(place)  # the default may be written out
        if name == "tls" and chosen and not _asks_for_certificates(config):
            text = "is not used: no client is asked for a certificate (listen.tls, ssl.client.auth)"
            yield source.problem(place, text, name)
    if identity.static is not None and "static" not in identity.sources:
        text = "is not used: identity.sources does not list static"
        yield source.problem(("identity", "static"), text, identity.static.user or MISSING)


def _asks_for_certificates(config: Config) -> bool:
    return config.listen.tls is not None and config.listen.tls.client_auth != "none"


def _warnings_of_administration(config: Config, source: Source, user: str | None) -> Iterator[Problem]:
    quotas = config.quota_settings
    if quotas.source == "file" and quotas.alter == "forward":
        text = "alters the brokers' quotas, which this sidecar does not read (source: file)"
        yield source.problem(("quotas", "alter"), text, quotas.alter)
    if quotas.alter_principals and quotas.alter != "apply":
        text = f"is not used: alter is {quotas.alter}"
        yield source.problem(("quotas", "alter_principals"), text, at_key=True)
    strangers = [index for index, name in enumerate(quotas.alter_principals) if name != user]
    if quotas.alter == "apply" and strangers and user is not None:
        place, name = ("quotas", "alter_principals", strangers[0]), quotas.alter_principals[strangers[0]]
        yield source.problem(place, _NO_SUCH_USER.format(user), name)
    if quotas.source == "file" and source.has(("quotas", "poll_interval_s")):
        yield source.problem(("quotas", "poll_interval_s"), "is not used: source is file", at_key=True)


def login_sources(config: Config) -> list[str]:
    """The sources, tls and sasl, that may name the user of a connection, in their order."""
    sources = config.identity.sources
    return [one for one in sources if one == "sasl" or (one == "tls" and _asks_for_certificates(config))]


def validate(model: type[_M], source: Source, more: Iterable[Problem] = ()) -> _M:
    """The values of a file as a model. Raises ConfigError with every problem of text and values, and then `more`."""
    found, left_out = [*source.problems], source.more_problems
    try:
        values = model.model_validate(source.values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=True)
        left_out += max(len(details) - MAX_PROBLEMS, 0)
        reported = [problem.place for problem in source.problems]
        for one in (_problem(model, source, item) for item in details[:MAX_PROBLEMS]):
            # Not of what contains a value that is reported already.
            if not any(place.startswith(one.place) for place in reported):
                found.append(one)
    if found:
        raise ConfigError(first_of(_in_file_order([*found, *more]), left_out))
    return values


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line is None, problem.line or 0, problem.column or 0))


def _problem(model: type[BaseModel], source: Source, item: ErrorDetails) -> Problem:
    place: Place = item["loc"]
    kind = item["type"]
    value = MISSING if place and place[-1] in _FILES_OF_SECRETS else item["input"]
    if kind == "extra_forbidden":
        return source.problem(place, _unknown_key(model, place), at_key=True)
    if kind == "missing":
        return source.problem(place, f"expected a value: {_described(model, place)}")
    if kind == "list_type" and isinstance(value, str):
        return source.problem(place, f"expected a list, such as {json.dumps([value], ensure_ascii=False)}", value)
    if kind in _EXPECTED:
        return source.problem(place, f"expected {_EXPECTED[kind].format(**item.get('ctx', {}))}", value)
    return source.problem(place, item["msg"], value)


def _unknown_key(model: type[BaseModel], place: Place) -> str:
    if place in _MOVED:
        return f"no longer a key, it is {_MOVED[place]} now"
    if place in _CONSTANTS:
        return f"no longer a setting, it is a constant now ({_CONSTANTS[place]}): remove the key"
    if place[-1] in _OF_KAFKA:
        return f"unknown key, did you mean {_OF_KAFKA[place[-1]]}?"
    inner = _model_at(model, place[:-1])
    known = [] if inner is None else list(keys_of(inner))
    written = str(place[-1])
    flat = {name.lower().translate(_ALIKE): name for name in known}
    close = difflib.get_close_matches(written.lower().translate(_ALIKE), flat, n=1)
    section, _, key = written.partition(".")
    if key and section in known and _model_at(model, (*place[:-1], section)) is not None:
        return f"unknown key, did you mean the key {key} in the section {section}?"
    if close:
        return f"unknown key, did you mean {flat[close[0]]}?"
    return f"unknown key, expected one of: {', '.join(known)}"


def _described(model: type[BaseModel], place: Place) -> str:
    inner = _model_at(model, place)  # a whole section is missing
    if inner is None or inner.__doc__ is None:
        outer = _model_at(model, place[:-1])
        info = None if outer is None else keys_of(outer).get(str(place[-1]))
        return (info and info.description) or "it is required"
    needed = ", ".join(key for key, info in keys_of(inner).items() if info.is_required())
    return inner.__doc__.strip() + (f" It needs: {needed}." if needed else "")


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, int):
            continue  # an item of a list: the list's annotation was opened already
        info = None if current is None else keys_of(current).get(part)
        current = None if info is None else _model_in(info.annotation)
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `M`, `M | None` or `list[M]`."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in typing.get_args(annotation) if (found := _model_in(inner)) is not None), None)
