"""A namespace's own quotas over the chart's: the file that its pods get, and what a namespace may change.

Bytes in, text out. `deploy.kubernetes.distributor` reads both and writes the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

import yaml

from config.load import load_bytes
from config.model import Config
from config.problems import ConfigError
from config.table import to_table
from config.types import DEFAULT_WORD
from quota.connections import ConnectionEntry, Scope
from quota.entity import Kind, Name
from quota.table import RATE_FIELD, QuotaTable, Resolution

Policy = Literal["none", "lower", "any"]
"""What a namespace's quotas may do: nothing; set limits where there are none and lower existing ones; anything."""
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

KEY: Final = "quotas.yaml"
"""The key in the namespace's ConfigMap: a file with `quotas` and nothing else."""
MAX_PAIRS: Final = 100_000
"""Users times client-ids compared for `lower`: about three seconds of a core."""
_ANOTHER: Final = "\0another"
"""Represents every name without an entry: no Kafka client can have it in a YAML file."""

_loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RefusedError(ValueError):
    """A namespace's quotas are rejected; says where and why."""


def combined(base: str, own: bytes, policy: Policy, file: str) -> str:
    """The configuration file of a namespace: `base`, which the chart renders, with the namespace's entries in it.

    An entry for the same user, client-id or address as one of `base` sets the limits that it names, and leaves the
    others of that entry unchanged. `file` is the name of the namespace's quotas in messages.

    Raises:
        RefusedError: with every problem.
    """
    if policy == "none":
        raise RefusedError(f"{file}: this namespace may not set quotas (webhook.namespaceQuotas, or its label)")
    _check_alone(file, own)
    values = yaml.load(base, Loader=_loader)
    quotas = values.get("quotas") or []
    settings = {"entries": quotas} if isinstance(quotas, list) else dict(quotas)
    if settings.get("source") == "cluster":
        raise RefusedError(f"{file}: the quotas are the cluster's own here (quotas.source: cluster)")
    entries = {_about(one): dict(one) for one in settings.get("entries") or []}
    for one in yaml.load(own, Loader=_loader)["quotas"]:
        entries[_about(one)] = entries.get(_about(one), {}) | one
    settings["entries"] = list(entries.values())
    values["quotas"] = settings["entries"] if isinstance(quotas, list) else settings
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)
    try:
        config = load_bytes(f"{file}, with the chart's settings", text.encode())
    except ConfigError as error:
        raise RefusedError("\n".join(str(problem) for problem in error.problems)) from None
    if policy == "lower":
        for problem in raised(load_bytes("the chart's quotas", base.encode()), config):
            raise RefusedError(f"{file}: {problem} (webhook.namespaceQuotas: lower)")
    return str(text)


def _check_alone(file: str, own: bytes) -> None:
    """Check it alone, as its author would: `kquota check --on-paper --config FILE`."""
    try:
        load_bytes(file, own, on_paper=True)
    except ConfigError as error:
        raise RefusedError("\n".join(str(problem) for problem in error.problems)) from None
    values = yaml.load(own, Loader=_loader)
    more = sorted(str(key) for key in values.keys() - {"quotas"})
    if more:
        raise RefusedError(f"{file}: {more[0]}: a namespace sets quotas and nothing else")
    if not isinstance(values.get("quotas"), list):
        raise RefusedError(f"{file}: quotas: expected a list of entries")


def _about(entry: dict[str, Any]) -> tuple[Any, Any, Any]:
    return entry.get("user"), entry.get("client-id"), entry.get("ip")


def raised(before: Config, after: Config) -> Iterable[str]:
    """Where `after` allows any client more than `before`, in words: for every user and client-id that has an entry, and
    for one that has none. A limit is also raised by one that is only measured, by one for each instance in place of the
    fleet's, and by a counter that fewer clients share."""
    old, new = to_table(before), to_table(after)
    users = _names(entry.user for table in (old, new) for entry in table.entries)
    clients = [*_names(entry.client_id for table in (old, new) for entry in table.entries), ""]
    if len(users) * len(clients) > MAX_PAIRS:
        yield f"{len(users)} users and {len(clients)} client-ids are more than can be compared ({MAX_PAIRS} pairs)"
        return
    for user in users:
        for client in clients:
            for kind in Kind:
                problem = _raised(old, new, old.resolve(kind, user, client), new.resolve(kind, user, client))
                if problem:
                    yield f"{_words(user, client)} would get {RATE_FIELD[kind]} {problem}"
    yield from _connections_raised(old, new)


def _raised(old: QuotaTable, new: QuotaTable, before: Resolution, after: Resolution) -> str:
    if before.limit is None or before.entry is None or before.entry.mode != "enforce":
        return ""
    had = f"{before.limit:.12g}"
    if after.limit is None or after.entry is None:
        return f"without a limit, the chart's quotas have {had}"
    if after.limit > before.limit:
        return f"{after.limit:.12g}, the chart's quotas have {had}"
    if after.entry.mode != "enforce":
        return f"only measured (mode: {after.entry.mode}), the chart's quotas enforce {had}"
    if old.of_fleet(before.entry) and not new.of_fleet(after.entry):
        return f"{after.limit:.12g} for each pod, the chart's quotas have {had} for all of them together"
    names = zip(("user", "client-id"), before.key, after.key, strict=True)
    finer = [name for name, was, now in names if was is None and now is not None]
    if finer:
        return f"{after.limit:.12g} for each {finer[0]} by itself, the chart's quotas have {had} for all of them"
    return ""


def _connections_raised(old: QuotaTable, new: QuotaTable) -> Iterable[str]:
    for scope in Scope:
        entries = (entry for table in (old, new) for entry in table.connections.entries if entry.scope is scope)
        for name in _names(entry.name for entry in entries):
            for limit, find in (("connection_creation_rate", "rate"), ("max_connections", "cap")):
                before: ConnectionEntry | None = getattr(old.connections, find)(scope, name)
                after: ConnectionEntry | None = getattr(new.connections, find)(scope, name)
                if before is None or before.mode != "enforce":
                    continue
                had, has = getattr(before, limit), getattr(after, limit, None)
                alone = limit == "connection_creation_rate" and old.of_fleet(before) and not new.of_fleet(after)
                if after is None or has > had or after.mode != "enforce" or alone:
                    said = DEFAULT_WORD if name == _ANOTHER else name
                    yield f"{scope} {said} would get {limit} {has}, the chart's quotas have {had}"


def _names(found: Iterable[Name]) -> list[str]:
    return [*dict.fromkeys(name for name in found if isinstance(name, str)), _ANOTHER]


def _words(user: str, client: str) -> str:
    said = ("any other" if user == _ANOTHER else user), ("any other" if client == _ANOTHER else client or "(empty)")
    return f"user {said[0]}, client-id {said[1]}"
