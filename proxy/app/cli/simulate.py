"""`kquota simulate`: events in, decisions of the real ledger out, on a simulated clock (docs/cli.md). Kafka's own
arithmetic, with no pacing and no cap on one delay, whatever the file says."""

from __future__ import annotations

import difflib
import json
import sys
import typing
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from config.load import load_limits
from config.model import CONNECTION_LIMIT_NAMES, LIMIT_NAMES, Config
from config.problems import ConfigError, value_text
from config.settings import new_ledger
from config.source import number
from config.table import to_table
from config.types import DEFAULT_WORD
from config.units import as_written
from proxy.app.cli.check import connection_entry_json, entry_json
from quota.connections import (
    ConnectionEntry,
    ConnectionLimits,
    EntityType,
    Ticket,
    canonical_address,
    canonical_source,
)
from quota.counter import MutationAlgorithm
from quota.entity import ANONYMOUS, DEFAULT, Default, Kind, Name
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

_CHARGE_KEYS = ("t_ms", "kind", "user", "client_id", "amount", "strict", "refund")
_CONNECTION = "connection"
_CONNECTION_KEYS = ("t_ms", "kind", "user", "ip", "close")
_ENTITY_KEYS = ("user", "client-id", "ip")
_HERE = "127.0.0.1"
_MOST = 2**63  # Kafka's largest quota; sums of much larger ones would not be finite
_LATEST_MS = 2**53  # beyond it, JSON readers lose milliseconds


class EventError(Exception):
    """An event that cannot be applied; the message says what was expected."""


class Simulation:
    """A ledger on a simulated clock; with `compare`, two of them, one per algorithm of the mutation quota."""

    def __init__(self, config: Config, table: QuotaTable, *, compare: bool) -> None:
        self._config = config
        algorithms = typing.get_args(MutationAlgorithm) if compare else (config.controller_mutation_algorithm,)
        # There are no attackers here: each client keeps its own counter to the end.
        own = {"smooth": False, "max_clients": sys.maxsize}
        self._ledgers = {name: new_ledger(config, table, mutation_algorithm=name, **own) for name in algorithms}
        self._ledger = self._ledgers[config.controller_mutation_algorithm]
        self._now_ms: float = 0
        self._open: dict[tuple[str, str], list[Ticket]] = {}

    def apply(self, event: Any) -> dict[str, Any]:
        """Apply one event and return the result. Raises EventError or ConfigError, changing nothing, if it is
        invalid."""
        if not isinstance(event, dict):
            raise EventError(f"expected an object, got {value_text(event)}")
        change = next((name for name in ("set", "remove") if name in event), None)
        connection = event.get("kind") == _CONNECTION
        known = ("t_ms", change) if change else _CONNECTION_KEYS if connection else _CHARGE_KEYS
        _refuse_unknown(event, known, (*known, "set", "remove"))
        now_ms = _number(event, "t_ms", _LATEST_MS)
        if now_ms < self._now_ms:
            raise EventError(f"t_ms: got {now_ms}, but the clock is at {self._now_ms} already, and never goes back")
        if change is not None:
            result = (self._set if change == "set" else self._remove)(event[change])
        else:
            result = (self._connect if connection else self._charge)(event, now_ms)
        self._now_ms = now_ms
        return {"t_ms": now_ms, **result}

    def _charge(self, event: dict[str, Any], now_ms: float) -> dict[str, Any]:
        kinds = [*(kind.value for kind in Kind), _CONNECTION]
        kind = Kind(_value(event, "kind", lambda value: value in kinds, f"one of {', '.join(kinds)}"))
        user, client_id = _text(event, "user") or ANONYMOUS, _text(event, "client_id")
        amount = _number(event, "amount", _MOST)
        strict = _flag(event, "strict", default=True)
        if "strict" in event and kind is not Kind.MUTATION:
            raise EventError("strict: expected only with kind mutation")
        refund = _flag(event, "refund", default=False)

        def decide(ledger: Ledger) -> dict[str, Any]:
            account, accepted, throttle_ms = ledger.account(user, client_id), True, 0
            if refund:
                ledger.refund(account, kind, amount, now_ms)
            elif kind is Kind.MUTATION:
                accepted, throttle_ms = ledger.charge_mutation(account, amount, strict, now_ms)
            else:
                throttle_ms = ledger.charge(account, kind, amount, now_ms)
            observed = as_written(ledger.observed(account, kind, now_ms))
            return {"accepted": accepted, "throttle_ms": throttle_ms, "observed": observed}

        decisions = {name: decide(ledger) for name, ledger in self._ledgers.items()}
        decision = decisions[self._config.controller_mutation_algorithm]
        found = self._ledger.table.resolve(kind, user, client_id)
        result: dict[str, Any] = {
            "kind": kind.value,
            "user": user,
            "client_id": client_id,
            "accepted": decision["accepted"],
            "throttle_ms": decision["throttle_ms"],
            "limit": as_written(found.limit),
            "observed": decision["observed"],
            "group": group_name(*found.key.tags),
        }
        if len(decisions) > 1 and kind is Kind.MUTATION:
            result["algorithms"] = {name: self._with_rate(one, found.limit) for name, one in decisions.items()}
        return result

    def _with_rate(self, decision: dict[str, Any], limit: float | None) -> dict[str, Any]:
        """With R next to the tokens: tokens = (limit - R) * S * W."""
        if limit is None:
            return decision | {"rate": None}
        seconds = self._config.controller_window_num * self._config.controller_window_size_seconds
        return decision | {"rate": as_written(round(limit - decision["observed"] / seconds, 9))}

    def _connect(self, event: dict[str, Any], now_ms: float) -> dict[str, Any]:
        user = _text(event, "user") or ANONYMOUS
        address = _address(event) or _HERE
        gate = self._ledger.connections
        result: dict[str, Any] = {"kind": _CONNECTION, "ip": address, "user": user}
        tickets = self._open.setdefault((address, user), [])
        if _flag(event, "close", default=False):
            if not tickets:
                raise EventError("close: no connection of this ip and user is open")
            gate.leave(tickets.pop())
            result["closed"] = True
        else:
            decision = gate.admit(address, user, now_ms)
            result |= {"accepted": True, "throttle_ms": 0, "reason": None, "limit": None, "observed": None}
            if isinstance(decision, Ticket):
                tickets.append(decision)
            else:
                result |= {"accepted": False, "throttle_ms": decision.delay_ms, "reason": decision.cause.value}
                result |= {"limit": as_written(decision.limit), "observed": as_written(decision.observed)}
        names = {EntityType.IP: address, EntityType.USER: user}
        standings = {scope.value: gate.standing(scope, name, now_ms) for scope, name in names.items()}
        result["rate"] = {scope: as_written(one.observed) for scope, one in standings.items()}
        result["open"] = {scope: one.open for scope, one in standings.items()}
        return result

    def _set(self, value: Any) -> dict[str, Any]:
        """Kafka's AlterClientQuotas: the limits given are set (null: removed), the entity's others stay."""
        if not isinstance(value, dict):
            raise EventError(f"set: expected a quota entry, got {value_text(value)}")
        before = self._written(value)
        merged = {key: inner for key, inner in (before | value).items() if inner is not None}
        if before and not any(name in merged for name in (*LIMIT_NAMES, *CONNECTION_LIMIT_NAMES)):
            return self._remove({key: value[key] for key in _ENTITY_KEYS if key in value})
        self._replace(value, *load_limits(merged, "set"))
        return {"set": self._written(value)}

    def _remove(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise EventError(f"remove: expected user and/or client-id, or ip, got {value_text(value)}")
        _refuse_unknown(value, _ENTITY_KEYS, _ENTITY_KEYS, "remove: ")
        if all(value.get(key) is None for key in _ENTITY_KEYS):
            raise EventError("remove: expected user, client-id or both; or ip")
        removed = bool(self._written(value))
        if removed:
            self._replace(value, None, None)
        return {"remove": {key: value[key] for key in _ENTITY_KEYS if value.get(key) is not None}, "removed": removed}

    def _written(self, entity: dict[str, Any]) -> dict[str, Any]:
        table = self._ledger.table
        found: dict[str, Any] = {}
        scoped = _scoped(entity)
        connections = None if scoped is None else table.connections.get(*scoped)
        if connections is not None:
            found |= connection_entry_json(connections)
        entry = None if entity.get("ip") is not None else table.get(_name(entity, "user"), _name(entity, "client-id"))
        return found if entry is None else found | entry_json(entry)

    def _replace(self, named: dict[str, Any], entry: Entry | None, connections: ConnectionEntry | None) -> None:
        """Put these limits of an entity in force, in place of those that it has."""
        table, scoped = self._ledger.table, _scoped(named)
        entity = None if named.get("ip") is not None else (_name(named, "user"), _name(named, "client-id"))
        entries = [one for one in table.entries if one.entity != entity]
        limits = [one for one in table.connections.entries if one.entity != scoped]
        changed = QuotaTable(
            entries if entry is None else [*entries, entry],
            default_scope=table.default_scope,
            connections=ConnectionLimits(limits if connections is None else [*limits, connections]),
        )
        for ledger in self._ledgers.values():
            ledger.swap(changed)


def _scoped(entity: dict[str, Any]) -> tuple[EntityType, str | Default] | None:
    user, client_id, address = _name(entity, "user"), _name(entity, "client-id"), _address(entity, canonical_source)
    if address:
        return EntityType.IP, DEFAULT if address == DEFAULT_WORD else address
    return None if user is None or client_id is not None else (EntityType.USER, user)


def _address(value: dict[str, Any], canonical: Callable[[str], str] = canonical_address) -> str:
    text = _text(value, "ip")
    if text in ("", DEFAULT_WORD):
        return text
    try:
        return canonical(text)
    except ValueError:
        raise EventError(f"ip: got {value_text(text)}, expected an IP address") from None


def run(
    config: Config, lines: Iterable[bytes], *, table: QuotaTable | None = None, compare: bool = False
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(True, result) per event and (False, {"line", "error"}) per invalid line, which changes nothing. `table`: limits
    other than the configuration's. `compare`: each mutation with the decision of each algorithm."""
    simulation = Simulation(config, to_table(config) if table is None else table, compare=compare)
    for count, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield True, simulation.apply(json.loads(line))
        except (EventError, ConfigError) as error:
            yield False, {"line": count, "error": str(error).replace("\n", "; ")}
        except (ValueError, RecursionError) as error:
            yield False, {"line": count, "error": f"expected one JSON object: {error}"}


def group_name(user_tag: str, client_tag: str) -> str:
    """The counter's name as Kafka builds it from its tags: sanitised user, colon, client-id (`Sanitizer.java`)."""
    sanitised = urllib.parse.quote(user_tag, safe="", errors="surrogatepass").replace("~", "%7E")
    return f"{sanitised}:{client_tag}"


def _refuse_unknown(value: dict[str, Any], known: tuple[str, ...], named: tuple[str, ...], place: str = "") -> None:
    for key in value:
        if key not in known:
            close = difflib.get_close_matches(key, named, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(dict.fromkeys(named))}"
            raise EventError(f"{place}{key}: unknown key, {hint}")


def _value(event: dict[str, Any], key: str, fine: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
    value = event.get(key, default)
    if not fine(value):
        got = value_text(value) if key in event else "nothing"
        raise EventError(f"{key}: got {got}, expected {expected}")
    return value


def _number(event: dict[str, Any], key: str, most: int) -> float:
    expected = f"a number of at least 0 and at most {most}"
    found: float = _value(event, key, lambda value: number(value) is not None and 0 <= value <= most, expected)
    return found


def _text(event: dict[str, Any], key: str) -> str:
    return _value(event, key, lambda value: value is None or isinstance(value, str), "text or null") or ""


def _flag(event: dict[str, Any], key: str, *, default: bool) -> bool:
    return _value(event, key, lambda value: isinstance(value, bool), "true or false", default) is True


def _name(entity: dict[str, Any], key: str) -> Name:
    def fine(value: Any) -> bool:
        return value is None or (isinstance(value, str) and value != "")

    name: str | None = _value(entity, key, fine, f"a name or {DEFAULT_WORD}")
    return DEFAULT if name == DEFAULT_WORD else name
