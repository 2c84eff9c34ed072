"""A namespace's own quotas over the chart's, bytes in, text out: the file that its pods get, and what it may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from config.load import load_bytes
from config.model import Config
from config.problems import refused
from config.source import dump, parse
from config.table import to_table
from config.types import DEFAULT_WORD
from quota.connections import ConnectionEntry, EntityType
from quota.entity import Kind, Name
from quota.table import RATE_FIELD, QuotaTable, Resolution

Policy = Literal["none", "lower", "any"]
"""What a namespace's quotas may do: nothing; set limits where there are none and lower existing ones; anything."""
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

KEY: Final = "quotas.yaml"
"""The key in the namespace's ConfigMap: a file with `quotas` and nothing else."""
MAX_BYTES: Final = 256 * 1024
"""Of a namespace's quotas. The copy has them twice next to the chart's, and a ConfigMap holds 1 MiB."""
MAX_ENTRIES: Final = 4000
"""Entries of a namespace, in which aliases may have multiplied what is written."""
MAX_PAIRS: Final = 40_000
"""Users times client-ids compared for `lower`."""


def combined(base: str, own: bytes, policy: Policy, file: str) -> str:
    """The configuration file of a namespace: `base`, which the chart renders, with the namespace's entries in it. An
    entry for the same names as one of `base` sets only the limits that it has. `file`: its name in messages. Raises
    ConfigError with every problem."""
    if policy == "none":
        raise refused(file, "this namespace may not set quotas (webhook.namespaceQuotas, or its label)")
    added = _entries(file, own)
    values = parse("the chart's quotas", base.encode()).values
    quotas = values.get("quotas") or []
    settings = {"entries": quotas} if isinstance(quotas, list) else dict(quotas)
    if settings.get("source") == "cluster":
        raise refused(file, "quotas come from the cluster here (quotas.source: cluster)")
    entries = {_about(one): dict(one) for one in settings.get("entries") or []}
    for one in added:
        entries[_about(one)] = entries.get(_about(one), {}) | one
    settings["entries"] = list(entries.values())
    values["quotas"] = settings["entries"] if isinstance(quotas, list) else settings
    text = dump(values)
    config = load_bytes(f"{file}, with the chart's settings", text.encode())
    if policy == "lower":
        for problem in raised(load_bytes("the chart's quotas", base.encode()), config):
            raise refused(file, f"{problem} (webhook.namespaceQuotas: lower)")
    return text


def _entries(file: str, own: bytes) -> list[dict[str, Any]]:
    """The namespace's entries, checked alone as by `kquota check --on-paper --config FILE`."""
    if len(own) > MAX_BYTES:
        raise refused(file, f"expected at most {MAX_BYTES} bytes, it has {len(own)}")
    values = parse(file, own).values
    found = values.get("quotas") if isinstance(values, dict) else None
    if isinstance(found, list) and len(found) > MAX_ENTRIES:
        raise refused(file, f"quotas: expected at most {MAX_ENTRIES} entries, there are {len(found)}")
    load_bytes(file, own, on_paper=True)
    more = sorted(str(key) for key in values.keys() - {"quotas"})
    if more:
        raise refused(file, f"{more[0]}: a namespace may set only quotas")
    if not isinstance(found, list):
        raise refused(file, "quotas: expected a list of entries")
    return found


def _about(entry: dict[str, Any]) -> tuple[Any, Any, Any]:
    return entry.get("user"), entry.get("client-id"), entry.get("ip")


def raised(before: Config, after: Config) -> Iterable[str]:
    """Where `after` allows any client more than `before`, in words: also by a limit that is only measured, by one for
    each instance in place of the fleet's, and by a counter that fewer clients share."""
    old, new = to_table(before), to_table(after)
    users = _names(entry.user for table in (old, new) for entry in table.entries)
    clients = [*_names(entry.client_id for table in (old, new) for entry in table.entries), ""]
    if len(users) * len(clients) > MAX_PAIRS:
        yield f"{len(users)} users and {len(clients)} client-ids are more than can be compared ({MAX_PAIRS} pairs)"
        return
    for kind in filter(old.records, Kind):
        for user in users:
            for client in clients:
                problem = _raised(old, new, old.resolve(kind, user, client), new.resolve(kind, user, client))
                if problem:
                    yield f"{_words(users, user, clients, client)} would get {RATE_FIELD[kind]} {problem}"
    yield from _connections_raised(old, new)


def _raised(old: QuotaTable, new: QuotaTable, before: Resolution, after: Resolution) -> str:
    if before.limit is None or before.entry is None or before.entry.mode != "enforce":
        return ""
    had = f"{before.limit:.12g}"
    if after.limit is None or after.entry is None:
        return f"without a limit, the chart's quotas allow {had}"
    if after.limit > before.limit:
        return f"{after.limit:.12g}, the chart's quotas allow {had}"
    if after.entry.mode != "enforce":
        return f"only measured (mode: {after.entry.mode}), the chart's quotas enforce {had}"
    if old.of_fleet(before.entry) and not new.of_fleet(after.entry):
        return f"{after.limit:.12g} for each pod, the chart's quotas allow {had} for all of them together"
    names = zip(("user", "client-id"), before.key, after.key, strict=True)
    finer = [name for name, was, now in names if was is None and now is not None]
    if finer:
        return f"{after.limit:.12g} for each {finer[0]}, the chart's quotas allow {had} for all of them"
    return ""


def _connections_raised(old: QuotaTable, new: QuotaTable) -> Iterable[str]:
    for scope in EntityType:
        entries = (entry for table in (old, new) for entry in table.connections.entries if entry.entity_type is scope)
        names = _names(entry.name for entry in entries)
        for name in names:
            for limit, find in (("connection_creation_rate", "rate"), ("max_connections", "cap")):
                before: ConnectionEntry | None = getattr(old.connections, find)(scope, name)
                after: ConnectionEntry | None = getattr(new.connections, find)(scope, name)
                if before is None or before.mode != "enforce":
                    continue
                had = getattr(before, limit)
                if after is None:
                    gets = "no limit"
                else:
                    has = getattr(after, limit)
                    of_each = limit == "connection_creation_rate" and old.of_fleet(before) and not new.of_fleet(after)
                    why = " for each pod" if of_each else "" if after.mode == "enforce" else ", only measured"
                    if has <= had and not why:
                        continue
                    gets = f"{has:.12g}{why}"
                shown = DEFAULT_WORD if name == names[0] else name
                yield f"{scope} {shown} would get {limit} {gets}, the chart's quotas allow {had:.12g}"


def _names(found: Iterable[Name]) -> list[str]:
    """Names with an entry, after one that has none: it stands for all others."""
    names = {name: None for name in found if isinstance(name, str)}
    another = "?"
    while another in names:
        another += "?"
    return [another, *names]


def _words(users: list[str], user: str, clients: list[str], client: str) -> str:
    whose = "a user without an entry" if user == users[0] else f"user {user}"
    which = "a client-id without an entry" if client == clients[0] else f"client-id {client or '(empty)'}"
    return f"for {whose}, {which}"
