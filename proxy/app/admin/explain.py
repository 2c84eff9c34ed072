"""Why a client has its limits, their state, and why it is throttled: one structure for programs and people, for a file
(`kquota explain --config`) and for the live sidecar (`/explain`, `/throttled`). Times are in UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from config.load import login_sources
from config.model import Config
from proxy.app.common.text import UNITS
from proxy.core.telemetry.observer import ConnectionInfo
from proxy.core.wire.schema import API_NAMES
from quota.admin import Entity, entity_of_entry
from quota.connections import ConnectionEntry, ConnectionStatus, EntityType, Refused, canonical_address
from quota.counter import QuotaCounter
from quota.decisions import Decision
from quota.entity import ANONYMOUS, Kind, bounded_name
from quota.fleet.core import FleetStatus
from quota.ledger import Ledger
from quota.status import counter_status
from quota.table import RATE_FIELD, Entry
from quota.trial import Trial

if TYPE_CHECKING:
    from proxy.app.admin.history import History  # with trio: not needed for a configuration alone

MAX_PEERS: Final = 10
MAX_ADDRESSES: Final = 5
MAX_DECISIONS: Final = 20


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the ledger's clock and on the wall clock."""

    now_ms: float
    wall_s: float
    history: History | None = None

    def iso(self, at_ms: float | None = None) -> str:
        """Wall-clock time of another moment of the ledger's clock (None: this one), in UTC, to the millisecond."""
        seconds = self.wall_s + (0.0 if at_ms is None else (at_ms - self.now_ms) / 1000.0)
        try:
            return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        except (OverflowError, ValueError):
            return "9999-12-31T23:59:59.999Z"  # a debt of thousands of years

    def delayed(self, group: QuotaCounter) -> dict[str, Any] | None:
        """Since when a counter delays clients; None: it does not, or too briefly to be in the history."""
        return None if self.history is None else self.history.delayed_json(group, self)


Origin = Callable[[Entity, str], str]
"""Where the limit of this name (Kafka's) of an entity was set, in words: "in the file kquota.yaml"."""


def explanation_json(
    ledger: Ledger,
    user: str,
    client_id: str,
    *,
    identity: dict[str, Any],
    at: Moment | None,
    addresses: Iterable[str],
    origin: Origin | None = None,
) -> dict[str, Any]:
    """The answer of `/explain`; `at` is None for a configuration alone, without any usage."""
    user = user or ANONYMOUS
    scopes = [(EntityType.USER, user), *((EntityType.IP, address) for address in addresses)]
    account = ledger.known(user, client_id)
    answer: dict[str, Any] = {
        "at": None if at is None else at.iso(),
        "user": user,
        "client_id": client_id,
        "identity": identity,
        "kinds": [_kind_json(ledger, kind, user, client_id, at, origin) for kind in Kind],
        "connections": [_connection_json(ledger, scope, name, at, origin) for scope, name in scopes],
    }
    if account is not None:
        answer["broker_throttles"] = {"count": account.broker_throttled, "sum_ms": account.broker_throttle_ms}
    return answer


def _kind_json(
    ledger: Ledger, kind: Kind, user: str, client_id: str, at: Moment | None, origin: Origin | None
) -> dict[str, Any]:
    now = 0 if at is None else int(at.now_ms)
    group, resolution = ledger.counter(kind, user, client_id), ledger.table.resolve(kind, user, client_id)
    entry, key = resolution.entry, resolution.key if group is None else group.key
    found: dict[str, Any] = {
        "kind": kind.value,
        "unit": UNITS[kind],
        "setting": RATE_FIELD[kind],
        "limit": resolution.limit,
        "scope": _scope(ledger, entry),
        "level": None if resolution.level is None else resolution.level.label,
        "entity": None if entry is None else entity_json(entry),
        "set_in": _set_in(entry, RATE_FIELD[kind], origin),
        "mode": "none" if entry is None else entry.mode,
        "candidate_limit": None if entry is None else entry.candidate_limit(kind),
        "group": dict(zip(("user", "client_id"), key.tags, strict=True)),
        "observed": 0.0 if group is None else group.observed(now),
        "throttle_ms": 0 if group is None else group.due(now),
        "levels": [
            {"level": level.label, "limit": limit, "wins": level == resolution.level}
            for level, limit in ledger.table.levels(kind, user, client_id).items()
        ],
    }
    if at is not None:
        found["now"] = None if group is None else standing_json(group, at, ledger)
        found["decisions"] = [decision_json(decision, at) for decision in ledger.decisions.of(kind, key)]
    return found


def standing_json(group: QuotaCounter, at: Moment, ledger: Ledger) -> dict[str, Any]:
    """The state of one counter."""
    now = counter_status(group, at.now_ms)
    usage = group.usage
    return {
        **{name: getattr(now, name) for name in now.__slots__ if name != "line"},
        "muted_until": at.iso(at.now_ms + now.muted_ms) if now.muted_ms else None,
        "delayed": at.delayed(group),
        "debt_ms": now.line.debt_ms,
        "waiting": now.line.waiting,
        "next_ms": now.line.next_ms,
        "throttled": usage.throttled,
        "throttle_ms": usage.throttle_ms,
        "held": usage.queued,
        "held_ms": usage.queued_ms,
        "capped": group.capped,
        "fleet": fleet_json(ledger, group),
        "shadow": trial_json(group, group.shadowed, int(at.now_ms), "share"),
        "candidate": trial_json(group, group.candidate, int(at.now_ms), "share"),
    }


def fleet_json(ledger: Ledger, group: QuotaCounter) -> dict[str, Any] | None:
    """This instance's share of a fleet's limit, and the reason for it; None for a limit of its own."""
    found = None if ledger.fleet is None else ledger.fleet.standing(group)
    return None if found is None or group.whole is None else _share_json(found, group.whole, group.limit)


def _share_json(found: FleetStatus, limit: float, limit_here: float | None) -> dict[str, Any]:
    return {
        "limit": limit,
        "share": found.share,
        "limit_here": limit_here,
        "why": found.why.value,
        "usage": found.usage,
        "demand": found.demand,
        "sharing": found.instances,
        "instances": found.known,
    }


def _scope(ledger: Ledger, entry: Entry | ConnectionEntry | None) -> str | None:
    if entry is None:
        return None
    return "fleet" if ledger.table.of_fleet(entry) else "instance"


def trial_json(group: QuotaCounter, trial: Trial | None, now: int, used: str) -> dict[str, Any] | None:
    """What a limit that is measured and not applied would have done; `used` is the name for its used fraction."""
    if trial is None:
        return None
    return {
        "limit": trial.limit,
        used: group.trial_utilisation(trial, now),
        "throttled": trial.throttled,
        "throttle_ms": trial.throttle_ms,
    }


def decision_json(one: Decision, at: Moment) -> dict[str, Any]:
    """One throttle."""
    return {
        "at": at.iso(one.at_ms),
        "kind": one.kind.value,
        "user": one.identity.user,
        "client_id": one.identity.client_id,
        "api": None if one.api_key is None else API_NAMES.get(one.api_key, f"api {one.api_key}"),
        "delay_ms": one.delay_ms,
        "amount": one.amount,
        "limit": one.limit,
        "observed": one.observed,
        "why": one.why.value,
    }


def _connection_json(
    ledger: Ledger, scope: EntityType, name: str, at: Moment | None, origin: Origin | None
) -> dict[str, Any]:
    one = ledger.connections.standing(scope, name, 0.0 if at is None else at.now_ms)
    found: dict[str, Any] = {"scope": one.entity_type.value, "name": one.name, "rate_scope": _scope(ledger, one.rate)}
    for which, key, entry in (("rate", "connection_creation_rate", one.rate), ("cap", "max_connections", one.cap)):
        found |= {
            key: getattr(entry, key, None),
            f"{which}_level": getattr(entry, "label", None),
            f"{which}_mode": getattr(entry, "mode", None),
            f"{which}_set_in": _set_in(entry, key, origin),
        }
    if at is not None:
        refused = [refused_json(each, at) for each in one.refused]
        found |= {"observed": one.observed, "wait_ms": one.delay_ms, "open": one.open, "refused": refused}
        found["fleet"] = _rate_share_json(ledger, one)
    return found


def _rate_share_json(ledger: Ledger, one: ConnectionStatus) -> dict[str, Any] | None:
    """This instance's share of a connection rate of the fleet; None for one of its own, or not used here lately."""
    limit = None if one.rate is None else one.rate.connection_creation_rate
    if ledger.fleet is None or one.rate is None or limit is None or not ledger.table.of_fleet(one.rate):
        return None
    found = ledger.fleet.standing_of_rate(one.entity_type, one.name)
    return None if found is None else _share_json(found, limit, limit * ledger.fleet.share(one.rate, one.name))


def refused_json(one: Refused, at: Moment) -> dict[str, Any]:
    """How often a connection limit has refused one address or user."""
    return {
        "reason": one.last.cause.value,
        "name": one.last.name,
        "count": one.count,
        "last_at": at.iso(one.at_ms),
        "ago_ms": at.now_ms - one.at_ms,
        "limit": one.last.limit,
        "observed": one.last.observed,
    }


def _set_in(entry: Entry | ConnectionEntry | None, key: str, origin: Origin | None) -> str | None:
    return None if entry is None or origin is None else origin(entity_of_entry(entry), key)


def entity_json(entry: Entry) -> dict[str, str]:
    """The names that an entry has."""
    names = {"user": entry.user, "client-id": entry.client_id}
    return {label: name if isinstance(name, str) else "<default>" for label, name in names.items() if name is not None}


def identity_on_paper(config: Config, user: str | None) -> tuple[str, dict[str, Any]]:
    """The user that a configuration gives to connections without a login (or the one asked for), and its source."""
    found, static = config.identity.static, config.identity.static_user
    given = static or ANONYMOUS
    source = "static" if static else "anonymous"
    user = user or given
    return user, {
        "source": source if user == given else None,
        "given": given,
        "given_source": source,
        "logins": login_sources(config),
        "given_by": (found.file or found.directory) if config.identity.static_elsewhere and found is not None else None,
    }


def identity_of_connections(
    found: Iterable[ConnectionInfo], user: str, client_id: str, given: tuple[str, str]
) -> dict[str, Any]:
    """The source of the user of one client's open connections; `given` is what a new one would get."""
    user, client_id = bounded_name(user), bounded_name(client_id)
    mine = [one for one in found if one.user == user and client_id in (one.client_ids or ("",))]
    sources = sorted({one.user_source for one in mine})
    return {
        "source": ", ".join(sources) or (given[1] if user == given[0] else None),
        "given": given[0],
        "given_source": given[1],
        "connections": len(mine),
        "muted": sum(one.state == "muted" for one in mine),
        "waiting": sum(one.state == "waiting" for one in mine),
        "peers": [one.peer for one in mine[:MAX_PEERS]],
        "software": sorted({one.software for one in mine if one.software}),
    }


def addresses_of(found: Iterable[str]) -> list[str]:
    """The addresses of some peers (`address:port`), each once, in the spelling of limits."""
    return list(dict.fromkeys(canonical_address(peer.rpartition(":")[0].strip("[]")) for peer in found))[:MAX_ADDRESSES]


def throttled_row(group: QuotaCounter, ledger: Ledger, at: Moment, origin: Origin | None = None) -> dict[str, Any]:
    """A counter that throttles clients now."""
    return {
        "kind": group.kind.value,
        "user": group.key.user,
        "client_id": group.key.client_id,
        "setting": RATE_FIELD[group.kind],
        "limit": group.limit,
        "level": None if group.level is None else group.level.label,
        "entity": None if group.entry is None else entity_json(group.entry),
        "set_in": _set_in(group.entry, RATE_FIELD[group.kind], origin),
        "observed": group.observed(int(at.now_ms)),
        "now": standing_json(group, at, ledger),
    }


def throttled_json(ledger: Ledger, at: Moment) -> dict[str, Any]:
    """The answer of `/throttled` besides its rows: the last decisions."""
    return {
        "at": at.iso(),
        "decisions": [decision_json(one, at) for one in ledger.decisions.latest(MAX_DECISIONS)],
        "refused": [refused_json(one, at) for one in ledger.connections.refusals(MAX_DECISIONS)],
    }
