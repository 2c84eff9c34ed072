"""An explanation as text: first which client is throttled, why and until when, then how that was derived."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final

from config.units import readable_rate as _short
from config.units import readable_size, three_digits
from config.units import readable_span as _span
from config.visible import visible
from proxy.app.common.text import columns, more_than, readable_limit, safe
from quota.counter_store import OVERFLOW
from quota.entity import Kind

NEAR: Final = 0.9
"""From this fraction of a limit on, it gets a line at the top."""
PACED: Final = "paced: even rate after a violation, possibly below the limit"
MAX_ROWS: Final = 30
RECENT_MS: Final = 300_000
"""Refused connections of the last five minutes get a line at the top."""
_SOURCES: Final = {
    "static": "identity.static",
    "anonymous": "connection is not authenticated",
    "tls": "TLS client certificate",
    "sasl": "SASL",
}
_BYTES: Final = (Kind.PRODUCE, Kind.FETCH)


def explanation_text(answer: dict[str, Any]) -> str:
    """One client: its state, then one row per level and one column per kind, then each kind in words."""
    panel = explanation_panel(answer)
    heads, *rows = panel["levels"]
    levels = [[level, *(" <- ".join(cell) for cell in cells)] for level, *cells in rows]
    quotas = [
        f"{name:9} {line}"
        for kind, *lines in panel["quotas"]
        for name, line in zip_longest([kind], lines, fillvalue="")
    ]
    parts = [
        "\n  ".join([panel["title"], *panel["identity"]]),
        "\n".join(panel["verdict"]),
        f"levels from most to least specific:\n{columns([heads, *levels])}",
        "\n".join(quotas),
        "\n".join(panel["connections"]),
        _decisions_table(panel["decisions"]),
    ]
    return "\n\n".join(filter(None, parts))


def explanation_panel(answer: dict[str, Any]) -> dict[str, Any]:
    """The sentences of an explanation and the place of each, for the text above and for the page; all safe to show.
    The first row of `levels` and `decisions` is their head. A further row of `levels` has for each kind the limit, and
    a mark on the one in force; a row of `quotas` is a kind and its sentences."""
    at, kinds = answer["at"], answer["kinds"]
    decisions = sorted(
        (decision for one in kinds for decision in one.get("decisions", ())), key=lambda one: one["at"], reverse=True
    )
    client = f"user {safe(answer['user'])}, client-id {safe(answer['client_id'])}"
    levels = zip(*(one["levels"] for one in kinds), strict=True)
    panel: dict[str, Any] = {
        "title": client if at is None else f"{client}, at {at}",
        "identity": _identity(answer["identity"], answer["user"], live=at is not None),
        "verdict": [] if at is None else _verdict(answer),
        "levels": [
            ["level", *(one["kind"] for one in kinds)],
            *([level[0]["level"], *map(_level_cell, kinds, level)] for level in levels),
        ],
        "quotas": [[one["kind"], *_kind_lines(one, at)] for one in kinds],
        "connections": [line for one in answer["connections"] for line in _connection_lines(one, at)],
        "decisions": _decision_rows(decisions, at),
    }
    return {key: _all_visible(part) for key, part in panel.items()}


def _all_visible(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else [_all_visible(one) for one in value]


def _level_cell(one: dict[str, Any], level: dict[str, Any]) -> list[str]:
    limit, shadow = readable_limit(Kind(one["kind"]), level["limit"]), " (shadow)" if one["mode"] == "shadow" else ""
    return [limit, f"in force{shadow}"] if level["wins"] else [limit]


def throttled_text(answer: dict[str, Any], admin_url: str) -> str:
    """Every client that is throttled now, and the last decisions."""
    rows, at = answer["throttled"], answer["at"]
    parts = [f"no client is throttled at {at}"]
    if rows:
        waits = ["waiting"] if any(row["now"]["waiting"] for row in rows[:MAX_ROWS]) else []
        head = ["quota", "user", "client-id", "limit", "now", "muted until"]
        table = [[*head, *waits, "next request waits", "set by"]]
        for row in rows[:MAX_ROWS]:
            kind, now = Kind(row["kind"]), row["now"]
            until = "-" if not now["muted_ms"] else f"{_clock(now['muted_until'], at)} ({_span(now['muted_ms'])})"
            names = ("-" if name is None else safe(name) for name in (row["user"], row["client_id"]))
            figures = [readable_limit(kind, row["limit"]), _rate(kind, row["observed"], now), until]
            waiting = [str(now["waiting"]) for _ in waits]
            table.append([row["kind"], *names, *figures, *waiting, _span(now["wait_ms"]), _entity(row["entity"])])
        more = more_than(rows, MAX_ROWS)
        origins = sorted({row["set_in"] for row in rows if row["set_in"] is not None})
        more += "".join(f"\n  limits are set {visible(origin)}" for origin in origins)
        parts = [f"{_count(len(rows), 'counter')} throttled at {at}, the longest first:\n{columns(table)}{more}"]
    parts.append(_decisions_table(_decision_rows(answer["decisions"], at)))
    if answer["refused"]:
        table = [["last refused", "reason", "name", "count", "because"]]
        for one in answer["refused"][:MAX_ROWS]:
            because = _refused_because(one)
            table.append([_clock(one["last_at"], at), one["reason"], safe(one["name"]), str(one["count"]), because])
        parts.append(f"connections refused, newest first:\n{columns(table)}")
    parts.append(f"for one client: kquota explain --admin {admin_url} --user U --client-id C")
    return visible("\n\n".join(filter(None, parts)), lines=True)


def _decision_rows(decisions: list[dict[str, Any]], at: str) -> list[list[str]]:
    """A table; empty without decisions."""
    rows = [["at", "request", "user", "client-id", "delay", "quota", "because"]]
    for one in decisions[:MAX_ROWS]:
        names = [safe(one["user"]), safe(one["client_id"])]
        why = [_span(one["delay_ms"]), one["kind"], _because(one)]
        rows.append([_clock(one["at"], at), one["api"] or "-", *names, *why])
    return rows if decisions else []


def _decisions_table(rows: list[list[str]]) -> str:
    return f"last throttles, newest first:\n{columns(rows)}" if rows else ""


def _refused_lines(limit: dict[str, Any], at: str) -> list[str]:
    name = f"{limit['scope']} {safe(limit['name'])}"
    lines: list[str] = []
    for one in limit["refused"]:
        if one["ago_ms"] < RECENT_MS:
            last = _clock(one["last_at"], at)
            lines.append(f"CONNECTIONS of {name} REFUSED, last at {last}: {_refused_because(one)}")
            by_rate = one["reason"].endswith("_rate")
            setting, which = ("connection_creation_rate", "rate") if by_rate else ("max_connections", "cap")
            level = limit[f"{which}_level"]
            if level is not None:
                kind, _, network = level.partition(" ")
                entity = "<default>" if kind == "<default" else network or safe(limit["name"])
                where = f"{setting} of {{{limit['scope']}: {entity}}}, now {limit[setting]:g}"
                lines.append(f"  to change it: {where}{_set_in(limit[f'{which}_set_in'])}")
    most, count = limit["max_connections"], limit["open"]
    if most is not None and count >= most and limit["cap_mode"] == "enforce" and not lines:
        lines.append(f"the next connection of {name} will be refused: {count} of {most} open")
    return lines


def _set_in(origin: str | None) -> str:
    return "" if origin is None else f", {origin}"


def _refused_because(one: dict[str, Any]) -> str:
    if one["reason"].endswith("_rate"):
        return f"{three_digits(one['observed']):g}/s, limit {one['limit']:g}/s"
    return f"{one['observed']:g} open, limit {one['limit']:g}"


def _because(one: dict[str, Any]) -> str:
    kind = Kind(one["kind"])
    if one["limit"] is None:
        return "limit no longer exists"
    if one["why"] == "owed":
        return "rest of an earlier delay that max_mute cut"
    if one["why"] == "held":
        return f"waited {_span(one['delay_ms'])} before it was forwarded: the group was in debt"
    if kind is Kind.MUTATION:
        over = max(-one["observed"], 0.0)
        return f"{over:.1f} partitions overdrawn, refilled at {readable_limit(kind, one['limit'])}"
    observed, limit = _short(kind, one["observed"]), _short(kind, one["limit"])
    if one["why"] == "paced":
        return f"paced to avoid a long pause ({observed} of {limit})"
    if one["amount"] is None:
        return f"{observed} (limit {limit})"
    return f"{_amount(kind, one['amount'])} raised the rate to {observed} (limit {limit})"


def _identity(identity: dict[str, Any], user: str, *, live: bool) -> list[str]:
    source, count = identity["source"], identity.get("connections")
    others = f"{identity['given']} ({_source(identity['given_source'])})"
    if not live and source is None and not identity["logins"]:
        return [f"no connection has this user: with this file all have {others}"]
    if not live:
        return [f"user: {user_text(identity)}"]
    if not count:
        return ["no open connection of this client" + ("" if source else f"; connections have user {others}")]
    muted = f", {identity['muted']} muted" if identity["muted"] else ""
    if identity["waiting"]:
        muted += f", {identity['waiting']} waiting for the group's debt"
    software = f", {', '.join(map(safe, identity['software']))}" if identity["software"] else ""
    peers = ", ".join(identity["peers"][:3]) + (" …" if count > 3 else "")
    named = ", ".join(_source(one) for one in source.split(", "))
    return [f"user: {safe(user)} ({named})", f"{_count(count, 'open connection')}{muted} (from {peers}{software})"]


def user_text(identity: dict[str, Any]) -> str:
    """The user of connections, as a configuration says (:func:`proxy.app.admin.explain.identity_on_paper`)."""
    given = f"as {identity['given_by']} says" if identity["given_by"] else safe(identity["given"])
    logins = ["SASL login" if one == "sasl" else _SOURCES[one] for one in identity["logins"]]
    return f"from the {' or the '.join(logins)}, else {given}" if logins else f"{given} for every connection"


def _source(name: str | None) -> str:
    return _SOURCES.get(str(name), str(name))


def _verdict(answer: dict[str, Any]) -> list[str]:
    """What an engineer on call needs first: which client, why, until when, what to change."""
    at = answer["at"]
    lines: list[str] = []
    used = [one for one in answer["kinds"] if one["now"] is not None and one["limit"] is not None]
    for one in sorted(used, key=lambda one: one["now"]["muted_ms"], reverse=True):
        kind, now = Kind(one["kind"]), one["now"]
        where = f"{one['setting']} of {_entity(one['entity'])}"
        if one["mode"] == "shadow":
            if now["shadow"] is not None and now["shadow"]["throttled"]:
                lines.append(f"shadow, not applied: {kind} {_would_have(now['shadow'])} ({where})")
        elif now["muted_ms"] or now["wait_ms"] or now["waiting"] or now.get("delayed"):
            lines.append(f"THROTTLED by {kind} {_until(now, at)}: {_used(kind, one)}")
            if now["paced"] and (now["share"] or 0.0) < NEAR:
                lines.append(f"  {PACED}")
            if now["waiting"]:
                lines.append(f"  {_line(now)}")
            lines.append(f"  to change it: {where}, now {readable_limit(kind, one['limit'])}{_set_in(one['set_in'])}")
        elif (now["share"] or 0.0) >= NEAR:
            lines.append(f"near its limit: {kind}, {_used(kind, one)} ({where})")
    for limit in answer["connections"]:
        lines += _refused_lines(limit, at)
    broker = answer.get("broker_throttles", {"count": 0})
    if broker["count"]:
        times = f"{broker['count']} times, {_span(broker['sum_ms'])} in all"
        lines.append(f"the broker's own quotas delayed this client {times}")
    return lines or ["not throttled: the next request does not wait"]


def _until(now: dict[str, Any], at: str) -> str:
    """How long a group's delays last, or for how long they have lasted."""
    if delayed := now.get("delayed"):  # many short delays: the end of one says nothing
        or_before = " or before" if delayed["earlier"] else ""
        return f"since {_clock(delayed['since'], at)}{or_before}, {_percent(delayed['last_minute'])} of the last minute"
    if now["muted_ms"]:
        return f"until {_clock(now['muted_until'], at)} ({_span(now['muted_ms'])} left)"
    return f"(next request waits {_span(now['wait_ms'])})"


def _used(kind: Kind, one: dict[str, Any]) -> str:
    now = one["now"]
    if kind is Kind.MUTATION:
        left = now["tokens"]
        state = f"{-left:.1f} partitions overdrawn" if left < 0 else f"{left:.1f} of {now['burst']:g} tokens left"
        return f"{state}, refilled at {readable_limit(kind, one['limit'])}"
    share, limit = now.get("fleet"), _short(kind, one["limit"])
    if share is not None:
        limit = f"{_short(kind, share['limit_here'])} ({100 * share['share']:.1f} % of the fleet's {limit})"
    return f"{_short(kind, one['observed'])} used of {limit}, {_percent(now['share'])}"


def _percent(fraction: float | None) -> str:
    return f"{100 * (fraction or 0.0):.0f} %"


def _kind_lines(one: dict[str, Any], at: str | None) -> list[str]:
    kind = Kind(one["kind"])
    if one["limit"] is None:
        return ["no limit"]
    shadow = ", shadow: measured, never applied" if one["mode"] == "shadow" else ""
    whose = " of the whole fleet" if one.get("scope") == "fleet" else ""
    lines = [f"{readable_limit(kind, one['limit'])}{whose} from {one['level']}{shadow}; {_sharers(one)}"]
    if at is None and one["candidate_limit"] is not None:
        lines.append(f"candidate {readable_limit(kind, one['candidate_limit'])}: measured, never applied")
    if at is not None:
        lines += ["no traffic yet"] if one["now"] is None else _now_lines(kind, one, one["now"], at)
    return lines


def _now_lines(kind: Kind, one: dict[str, Any], now: dict[str, Any], at: str) -> list[str]:
    if kind is Kind.MUTATION:
        used = f"tokens left: {now['tokens']:.2f} of {now['burst']:g}"
    else:
        window = _span(now["window_ms"])
        used = f"now {_short(kind, one['observed'])}: {_amount(kind, now['amount'])} in the last {window}"
    lines = [f"{used}, {_percent(now['share'])} used"]
    if (fleet := now.get("fleet")) is not None:
        lines.append(_share_text(fleet, readable_limit(kind, fleet["limit_here"]), _short(kind, fleet["usage"])))
    waits = []
    if now["muted_ms"]:
        waits.append(f"muted until {_clock(now['muted_until'], at)} ({_span(now['muted_ms'])} left)")
    if now["wait_ms"]:
        waits.append(f"next request waits {_span(now['wait_ms'])}; free after {_span(now['free_ms'])} without requests")
    if now["waiting"]:
        waits.append(_line(now))
    lines.append("; ".join(waits) or "no client waits")
    if now["owed_ms"]:
        lines.append(f"owes {_span(now['owed_ms'])}, which outlasts the latest delay; the next requests wait for it")
    if now["paced"]:
        lines.append(PACED)
    if now["throttled"]:
        held = f"; {now['held']} waited {_span(now['held_ms'])} before they were forwarded" if now["held"] else ""
        lines.append(f"delayed {_count(now['throttled'], 'request')} so far, {_span(now['throttle_ms'])} in all{held}")
    if now["shadow"] is not None:
        applied = "" if one["mode"] == "shadow" else "in shadow mode it "
        lines.append(applied + _would_have(now["shadow"]))
    candidate = now["candidate"]
    if candidate is not None and candidate["limit"] is not None:
        used = f"{_percent(candidate['share'])} used"
        lines.append(f"candidate {readable_limit(kind, candidate['limit'])}: {used}, {_would_have(candidate)}")
    return lines


_WHY: Final = {
    "split": "the fleet's split",
    "floor": "no recent usage here: the initial share",
    "last": "no contact with the fleet: the last share stays",
    "alone": "no contact with the fleet: limit / known instances",
}


def _share_text(fleet: dict[str, Any], here: str, together: str) -> str:
    sharing = _count(fleet["sharing"], "instance")
    return (
        f"share here {100 * fleet['share']:.1f} % = {here} ({_WHY[fleet['why']]}); {sharing} of {fleet['instances']} "
        f"use{'s' if fleet['sharing'] == 1 else ''} it, {together} together"
    )


def _line(now: dict[str, Any]) -> str:
    """The queue at the group's gate."""
    first = f"the next passes in {_span(now['next_ms'])}" if now["next_ms"] else "the next passes now"
    owes = f"; the group owes {_span(now['debt_ms'])}" if now["debt_ms"] else ""
    return f"{_count(now['waiting'], 'connection')} wait{'s' if now['waiting'] == 1 else ''}; {first}{owes}"


def _would_have(trial: dict[str, Any]) -> str:
    if not trial["throttled"]:
        return "would have delayed no request"
    return f"would have delayed {_count(trial['throttled'], 'request')}, {_span(trial['throttle_ms'])} in all"


def _connection_lines(one: dict[str, Any], at: str | None) -> list[str]:
    name = f"{one['scope']} {safe(one['name'])}"
    rate, cap = one["connection_creation_rate"], one["max_connections"]
    parts = []
    if rate is not None:
        whose = " of the whole fleet" if one.get("rate_scope") == "fleet" else ""
        made = f"new connections at most {rate:g}/s{whose} ({one['rate_level']}{_shadow(one['rate_mode'])})"
        if at is not None:
            made += f", now {one['observed']:.1f}/s"
            made += f", the next is closed after {_span(one['wait_ms'])}" if one["wait_ms"] else ""
        parts.append(made)
    if cap is not None:
        many = f"at most {cap} open ({one['cap_level']}{_shadow(one['cap_mode'])})"
        parts.append(f"{many}, now {one['open']}" if at is not None else many)
    elif at is not None:
        parts.append(f"{one['open']} open")
    if rate is None and cap is None:
        parts.append("no connection limits")
    lines = [f"{name}: {'; '.join(parts)}"]
    if (fleet := one.get("fleet")) is not None:
        lines.append("  " + _share_text(fleet, f"{fleet['limit_here']:.3g}/s", f"{fleet['usage']:.3g}/s"))
    if at is not None:
        lines += [
            f"  {_count(refused['count'], 'connection')} refused by {refused['reason']}, "
            f"last at {_clock(refused['last_at'], at)}"
            for refused in one["refused"]
        ]
    return lines


def _shadow(mode: str) -> str:
    return ", shadow" if mode == "shadow" else ""


def _sharers(one: dict[str, Any]) -> str:
    user, client_id = one["group"]["user"], one["group"]["client_id"]
    if OVERFLOW in (user, client_id):
        return "overflow counter, shared by new clients of this entry beyond limits.max_clients"
    if "user" not in (one["level"] or ""):
        return f"one counter for all connections with client-id {safe(client_id)}, of all users"
    if "client-id" in one["level"]:
        return f"one counter for all connections of user {safe(user)} with client-id {safe(client_id)}"
    return f"one counter for all connections of user {safe(user)}, with any client-id"


def _entity(entity: dict[str, str] | None) -> str:
    if entity is None:
        return "-"
    names = (f"{label}: {name if name == '<default>' else safe(name)}" for label, name in entity.items())
    return "{" + ", ".join(names) + "}"


def _rate(kind: Kind, observed: float, now: dict[str, Any]) -> str:
    if kind is not Kind.MUTATION:
        return _short(kind, observed)
    return f"{-now['tokens']:.1f} overdrawn" if now["tokens"] < 0 else f"{now['tokens']:.1f} tokens left"


def _amount(kind: Kind, amount: float) -> str:
    if kind in _BYTES:
        return readable_size(amount)
    return f"{_span(amount)} of broker time" if kind is Kind.REQUEST else f"{amount:g} partitions"


def _clock(moment: str, now: str) -> str:
    """The time of day, to the second; with the date unless that is today's."""
    day, _, time = moment.partition("T")
    return f"{time[:8]}Z" if day == now.partition("T")[0] else f"{day} {time[:8]}Z"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
