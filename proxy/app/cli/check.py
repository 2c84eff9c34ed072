"""`kquota check`: what a configuration means, in the reader's words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from config.load import ON_PAPER, warnings_of
from config.model import Config
from config.overlay import load_overlay
from config.problems import Place, Problem
from config.source import Source
from config.types import DEFAULT_WORD, HostPort
from config.units import as_written, readable_bytes, readable_span
from config.visible import visible
from proxy.app.admin.explain import entity_json, identity_on_paper
from proxy.app.admin.explain_text import user_text
from proxy.app.common.text import columns, more_than, readable_limit, readable_name, safe
from proxy.net.tls import channel
from proxy.net.upstream.credentials import LoginError
from quota.connections import ConnectionEntry
from quota.entity import DEFAULT, Kind, Level, Name
from quota.table import RATE_FIELD, Entry, QuotaTable, ladder

MAX_ROWS = 60
WILDCARDS = ("0.0.0.0", "::")
MAX_WARNINGS = 20
FEW_BYTES = 1000
"""Per second: no Kafka client is of use with less."""
DELIVERY_TIMEOUT_MS = 120_000
"""Kafka's Java producer gives a record up after this (delivery.timeout.ms); librdkafka's default is longer, 5 min."""


def level_of(entry: Entry) -> Level:
    """Which of the eight levels an entry has."""
    user, client_id = ("" if name is None or name is DEFAULT else name for name in entry.entity)
    return next(level for level, entity in ladder(user, client_id) if entity == entry.entity)


def overlay_text(config: Config) -> str:
    """The overlay of a configuration that has one, and whether its file exists yet. Raises ConfigError."""
    path = config.quota_settings.overlay
    assert path is not None
    if not Path(path).exists():
        return f"overlay {path}, which does not exist yet"
    count = len(load_overlay(path))
    return f"overlay {path}, which has {count} {'entity' if count == 1 else 'entities'}"


def _administration(config: Config) -> list[list[str]]:
    quotas = config.quota_settings
    if quotas.source == "cluster":
        source = f"the cluster's own, polled every {readable_span(quotas.poll_interval_s * 1000)}"
    else:
        source = "this file" if quotas.overlay is None else f"this file with {overlay_text(config)}"
    names = ", ".join(map(safe, quotas.alter_principals))
    rules = {"deny": "refused", "forward": "passed to the broker", "apply": f"applied here, for {names}"}
    return [["quotas from", source], ["altering quotas", rules[quotas.alter]]]


def _listeners(config: Config) -> str:
    listen, ports = config.listen, config.listen.broker_ports
    if config.mode == "rewrite":
        return f"{listen.host}:{listen.port}, brokers on ports {ports.start}-{ports[-1]}"
    allowed = [*config.transparent.networks]
    if config.transparent.ports:
        spans = (str(one.start) if len(one) == 1 else f"{one.start}-{one[-1]}" for one in config.transparent.ports)
        allowed.append(f"ports {', '.join(spans)}")
    here = HostPort(listen.host, listen.port)
    return f"{here}, redirected connections to {', '.join(allowed) or 'anywhere'}"


def _clients(config: Config) -> tuple[str, str]:
    """Where clients connect to, as `bootstrap.servers`, and which addresses they get for brokers."""
    listen, ports = config.listen, config.listen.advertised_ports
    host = listen.advertised.host or (None if listen.host in WILDCARDS else listen.host)
    bootstrap = HostPort(host or "(this machine)", listen.advertised.port or listen.port)
    brokers = f"{ports.start}-{ports[-1]}, broker N: {ports.start} + N mod {len(ports)}"
    return str(bootstrap), f"{host or 'the address that they connected to'}, ports {brokers}"


def _brokers(config: Config) -> str:
    named = ", ".join(str(address) for address in config.upstream.bootstrap)
    return "not in the file" if named == ON_PAPER else named or "the original destination"


def summary_text(file: str, config: Config, table: QuotaTable) -> str:
    """The summary that `kquota check` prints; `table` has the limits in force. Raises ConfigError."""
    up, addresses = config.upstream, _clients(config)
    rewrites = config.mode == "rewrite"
    capped = config.max_mute and config.pacing == "smooth"  # with Kafka's exact behaviour there is no cap
    cap = readable_span(config.max_mute) if capped else "unlimited"
    window = f"{config.window_num} samples of {config.window_size_seconds} s"
    mutations = f"{config.controller_window_num} samples of {config.controller_window_size_seconds} s"
    secured = [name for name, side in (("clients", config.listen.tls), ("brokers", up.tls)) if side is not None]
    rows = [
        ["mode", config.mode],
        ["listen", _listeners(config)],
        *([["clients use", f"bootstrap.servers {addresses[0]}"], ["clients get", addresses[1]]] if rewrites else []),
        ["upstream", _brokers(config)],
        *([["TLS", f"{', '.join(secured)}, by {channel.DESCRIPTION}"]] if secured else []),
        ["user", user_text(identity_on_paper(config, None)[1])],
        ["window", f"{window}, pacing {config.pacing}, max throttle {cap}"],
        ["mutation window", f"{mutations}, {config.controller_mutation_algorithm}"],
        ["limits are", _scope(config, table)],
        ["largest request", readable_bytes(config.limits.max_frame_bytes)],
        *_administration(config),
        ["admin", "off" if config.admin is None else f"http://{HostPort(config.admin.host, config.admin.port)}"],
    ]
    parts = [f"{file}: ok\n{columns(rows)}"]
    quotas, connections = list(table.entries), list(table.connections.entries)
    if quotas or not connections:
        no_quotas = "quotas are the cluster's own" if config.quota_settings.source == "cluster" else "no quotas"
        parts.append(quota_table(quotas) if quotas else no_quotas)
    if connections:
        parts.append(connection_table(connections))
    return "\n\n".join(parts)


def _scope(config: Config, table: QuotaTable) -> str:
    own = "per sidecar (n sidecars: up to n times the limit)"
    rates = [one for one in table.connections.entries if one.connection_creation_rate is not None]
    shared = [*map(table.of_fleet, table.entries), *map(table.of_fleet, rates)]
    if config.fleet is None:
        return own
    fleet = f"of all sidecars of the fleet {config.fleet.id} together (topic {config.fleet.topic})"
    if all(shared) and (shared or table.default_scope == "fleet"):
        return fleet
    return f"{fleet} where their scope is fleet: {sum(shared)} of {len(shared)}; else {own}" if any(shared) else own


def quota_table(quotas: list[Entry]) -> str:
    """All entries, most specific level first."""
    shown = sorted(quotas, key=lambda entry: (level_of(entry), *(_written(name or "") for name in entry.entity)))
    rows = [["level", "user", "client-id", "produce", "fetch", "request time", "partition mutations", "mode"]]
    for entry in shown[:MAX_ROWS]:
        names = map(readable_name, entry.entity)
        rows.append([level_of(entry).label, *names, *(_limit_cell(entry, kind) for kind in Kind), entry.mode])
    used = [0, 1, 2, *(index for index in range(3, 7) if any(row[index] != "-" for row in rows[1:])), 7]
    head = f"{len(quotas)} {'quota' if len(quotas) == 1 else 'quotas'}, most specific level first:\n"
    return head + columns([[row[i] for i in used] for row in rows]) + more_than(shown, MAX_ROWS)


def connection_table(limits: list[ConnectionEntry]) -> str:
    """All connection limits, addresses first, defaults last."""
    shown = sorted(limits, key=lambda one: (one.entity_type, one.name is DEFAULT, str(one.name)))
    rows = [["by", "name", "connections made", "connections open", "mode"]]
    for one in shown[:MAX_ROWS]:
        rate = "-" if one.connection_creation_rate is None else f"{one.connection_creation_rate:g}/s"
        cap = "-" if one.max_connections is None else f"at most {one.max_connections}"
        rows.append([str(one.entity_type), readable_name(one.name), rate, cap, one.mode])
    head = f"{len(limits)} {'limit' if len(limits) == 1 else 'limits'} of connections:\n"
    return head + columns(rows) + more_than(shown, MAX_ROWS)


def summary_json(file: str, config: Config, table: QuotaTable) -> dict[str, Any]:
    """The same for programs."""
    rewrites = config.mode == "rewrite"
    return {
        "file": file,
        "ok": True,
        "problems": [],
        "source": config.quota_settings.source,
        "alter": config.quota_settings.alter,
        "overlay": config.quota_settings.overlay,
        "clients": dict(zip(("bootstrap", "brokers"), _clients(config), strict=True)) if rewrites else None,
        "warnings": [warning.as_json() for warning in all_warnings(config)],
        "quotas": [
            entry_json(entry)
            | {"scope": "fleet" if table.of_fleet(entry) else "instance", "level": level_of(entry).label}
            for entry in table.entries
        ],
        "connection_limits": [connection_entry_json(entry) for entry in table.connections.entries],
        "windows": {
            "num": config.window_num,
            "size_seconds": config.window_size_seconds,
            "controller_num": config.controller_window_num,
            "controller_size_seconds": config.controller_window_size_seconds,
            "controller_algorithm": config.controller_mutation_algorithm,
        },
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """A quota entry as written in the file, without the names that the entry does not have."""

    def limits(of: Callable[[Kind], float | None]) -> dict[str, Any]:
        return {RATE_FIELD[kind]: as_written(limit) for kind in Kind if (limit := of(kind)) is not None}

    trial = limits(entry.candidate_limit)
    return entity_json(entry) | limits(entry.limit) | {"mode": entry.mode} | ({"candidate": trial} if trial else {})


def _limit_cell(entry: Entry, kind: Kind) -> str:
    text = readable_limit(kind, entry.limit(kind))
    candidate = entry.candidate_limit(kind)
    return text if candidate is None else f"{text} (candidate {readable_limit(kind, candidate)})"


def connection_entry_json(entry: ConnectionEntry) -> dict[str, Any]:
    """A connection limit as written in the file."""
    names = ("connection_creation_rate", "max_connections")
    limits = {name: as_written(limit) for name in names if (limit := getattr(entry, name)) is not None}
    return {entry.entity_type.value: _written(entry.name), **limits, "mode": entry.mode}


def _written(name: Name) -> str:
    return "<default>" if name is DEFAULT else str(name)


def all_warnings(config: Config) -> list[Problem]:
    """What is valid but probably unintended, in the order of the file. Never errors, because a file is not always
    checked where it is used."""
    source = config.source or Source("(no file)")
    named = list(_named_files(config))
    missing = [(place, path) for place, path in named if not Path(path).exists()]
    found = [
        *warnings_of(config),
        *_settings(config, source),
        *_directories(config, source),
        *islice(_names(config, source), MAX_WARNINGS),
        *islice(_rates(config, source), MAX_WARNINGS),
        *(source.problem(place, "no such file on this machine", path) for place, path in missing),
    ]
    if len(missing) < len(named):
        found += _unusable_files(config, source, {place[:2] for place, _ in missing})
    return sorted(found, key=lambda warning: (warning.line or 0, warning.column or 0))


def _unusable_files(config: Config, source: Source, missing: Collection[Place]) -> Iterator[Problem]:
    """Files that are here, and that `kquota run` would refuse, but for sections with `missing` ones."""
    from proxy.app.sources.security import READERS  # trio and cryptography: most configurations name no file
    from proxy.net.tls.contexts import TlsSide

    for place, read in READERS:
        if place not in missing:
            try:
                found = read(config)
            except (OSError, LoginError) as error:
                yield source.problem(place, f"kquota run would refuse this: {visible(str(error))}", at_key=True)
            else:
                if isinstance(found, TlsSide) and found.not_valid is not None:
                    yield source.problem((*place, "certificate_file"), found.not_valid)


def _settings(config: Config, source: Source) -> Iterator[Problem]:
    ports, named = config.listen.broker_ports, len(config.upstream.bootstrap)
    if config.mode == "rewrite" and (count := len(ports)) < named:
        text = f"has fewer ports ({count}) than upstream.bootstrap has brokers ({named})"
        place = ("listen", "broker_ports")
        yield source.problem(place, f"{text}: each broker of the cluster needs one", f"{ports.start}-{ports[-1]}")
    if config.pacing == "smooth" and not 0 < config.max_mute <= DELIVERY_TIMEOUT_MS:
        mute = readable_span(config.max_mute) if config.max_mute else "0 (no cap)"
        drop = f"Java producers drop records after {readable_span(DELIVERY_TIMEOUT_MS)} (delivery.timeout.ms)"
        yield source.problem(("max_mute",), f"{mute} exceeds clients' timeouts: {drop}")


def _names(config: Config, source: Source) -> Iterator[Problem]:
    """Names that mean something else to whoever wrote them."""
    for number, user in enumerate(config.quota_settings.alter_principals):
        if user.endswith("*") or user.strip("<>").lower() == "default":
            expected = "is taken literally: name each user who may alter quotas"
            yield source.problem(("quotas", "alter_principals", number), expected, user)
    for index, entry in enumerate(config.quotas):
        for key, name in (("user", entry.user), ("client-id", entry.client_id)):
            if not isinstance(name, str) or name == DEFAULT_WORD:
                continue
            text = None
            if name.endswith("*"):
                text = f"Kafka has no prefixes: name each {'user' if key == 'user' else 'client-id, or a user'}"
            elif name.strip("<> ").lower() == "default":
                text = f"is the {key} {name}; did you mean {DEFAULT_WORD}?"
            elif key == "user" and name.startswith("User:"):
                text = f"a user is the name alone; did you mean {name.removeprefix('User:')}?"
            if text is not None:
                yield source.problem(("quotas", index, key), text, name)


def _rates(config: Config, source: Source) -> Iterator[Problem]:
    for index, entry in enumerate(config.quotas):
        for name in ("producer_byte_rate", "consumer_byte_rate"):
            rate = getattr(entry, name)
            if rate is not None and rate < FEW_BYTES:
                text = f"{rate:g} bytes per second: did you mean {rate:g}k or {rate:g}M?"
                yield source.problem(("quotas", index, name), text, int(rate))


def _directories(config: Config, source: Source) -> Iterator[Problem]:
    """Those that the sidecar writes to. It makes that of usage records itself."""
    for place, path in (
        (("listen", "state_file"), config.listen.state_file),
        (("quotas", "overlay"), config.quota_settings.overlay),
    ):
        if path is not None and not Path(path).parent.is_dir():
            yield source.problem(place, "no such directory on this machine", str(Path(path).parent))
    if config.export is None or config.export.directory is None:
        return
    directory = Path(config.export.directory)
    there = next(one for one in (directory, *directory.parents) if one.exists())
    if not directory.is_absolute():
        text = "is relative to the sidecar's working directory; expected an absolute path"
        yield source.problem(("export", "directory"), text, config.export.directory)
    elif not there.is_dir():
        yield source.problem(("export", "directory"), f"{there} is no directory on this machine", str(directory))


def _named_files(config: Config) -> Iterator[tuple[Place, str]]:
    settings = (
        (("listen", "tls"), config.listen.tls, ("certificate_file", "key_file", "client_ca_file")),
        (("upstream", "tls"), config.upstream.tls, ("ca_file", "certificate_file", "key_file")),
        (("upstream", "sasl"), config.upstream.sasl, ("password_file", "token_file")),
        (("identity", "static"), config.identity.static, ("file", "directory")),
        (("fleet",), config.fleet, ("key_file",)),
    )
    for place, setting, names in settings:
        for name in names:
            path = getattr(setting, name, None)
            if path is not None:
                yield (*place, name), path
