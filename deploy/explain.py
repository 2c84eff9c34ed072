"""Why a client has the limits that it has: the eight levels, the one in force, and who shares the counter.

One structure for the file (`kquota explain --config`), for the live sidecar (`/explain`) and for what people read.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from deploy.text import UNITS, columns, readable_limit, safe
from quota.entity import Kind
from quota.ledger import Explanation, KindExplanation

ASK_TIMEOUT_S = 10.0
_MOST_ANSWER_BYTES = 1_000_000


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """What `/explain` answers."""
    return {
        "user": explanation.user,
        "client_id": explanation.client_id,
        "kinds": [_kind_json(one) for one in explanation.kinds],
    }


def _kind_json(one: KindExplanation) -> dict[str, Any]:
    winner = one.winner.level.label if one.winner is not None and one.limit is not None else None
    return {
        "kind": one.kind.value,
        "unit": UNITS[one.kind],
        "limit": one.limit,
        "level": winner,
        "mode": one.mode,
        "group": {"user": one.group[0], "client_id": one.group[1]},
        "observed": one.observed,
        "throttle_ms": one.throttle_ms,
        "levels": [
            {"level": candidate.level.label, "limit": candidate.limit, "wins": candidate.level.label == winner}
            for candidate in one.candidates
        ],
    }


def ask(admin_url: str, user: str, client_id: str) -> dict[str, Any]:
    """The answer of a running sidecar. Raises OSError with one readable sentence."""
    query = urllib.parse.urlencode({"user": user, "client_id": client_id})
    url = f"{admin_url.rstrip('/')}/explain?{query}"
    if not url.startswith(("http://", "https://")):
        raise OSError(f"{admin_url!r} is no URL, expected something like http://127.0.0.1:9404")
    try:
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as response:
            answer = json.loads(response.read(_MOST_ANSWER_BYTES))
        if not isinstance(answer, dict) or not {"user", "client_id", "kinds"} <= answer.keys():
            raise ValueError("it answered something else")
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"{url}: HTTP {error.code} {error.reason}; is this a kquota admin port?") from error
    except urllib.error.URLError as error:
        raise OSError(f"{url}: {error.reason}") from error
    except ValueError as error:
        raise OSError(f"{url}: this is no kquota admin port: {error}") from error
    return answer


def explanation_text(answer: dict[str, Any], *, live: bool) -> str:
    """The explanation as people read it: one row per level, one column per kind, the level in force marked."""
    kinds = answer["kinds"]
    rows = [["level", *(one["kind"] for one in kinds)]]
    for index, level in enumerate(kinds[0]["levels"]):
        cells = []
        for one in kinds:
            candidate = one["levels"][index]
            mark = " <- in force" if candidate["wins"] else ""
            cells.append(readable_limit(Kind(one["kind"]), candidate["limit"]) + mark)
        rows.append([level["level"], *cells])
    client = answer["client_id"]
    head = f"user {safe(answer['user'])}, client-id {safe(client)}, levels from most to least specific:"
    return "\n".join([head, columns(rows), "", *(_kind_text(one, live=live) for one in kinds)])


def _kind_text(one: dict[str, Any], *, live: bool) -> str:
    kind = Kind(one["kind"])
    if one["limit"] is None:
        text = "no limit"
        if any(candidate["limit"] is not None for candidate in one["levels"]):
            text += " (the levels above do not reach this client: see empty_client_id in docs/configuration.md)"
        return f"{kind.value:9} {text}"
    shadow = ", shadow: measured, never applied" if one["mode"] == "shadow" else ""
    text = f"{readable_limit(kind, one['limit'])} from {one['level']}{shadow}; {_sharers(one)}"
    if live:
        mutation = kind is Kind.MUTATION
        text += f"; tokens left {one['observed']:.2f}" if mutation else f"; now {readable_limit(kind, one['observed'])}"
        text += f", a request now would wait {one['throttle_ms']} ms" if one["throttle_ms"] else ", nobody waits"
    return f"{kind.value:9} {text}"


def _sharers(one: dict[str, Any]) -> str:
    user, client_id = one["group"]["user"], one["group"]["client_id"]
    by_user = "user" in (one["level"] or "")
    if not by_user:
        return f"one counter for all connections with client-id {safe(client_id)}, of every user"
    if "client-id" in one["level"]:
        return f"one counter for all connections of user {safe(user)} with client-id {safe(client_id)}"
    return f"one counter for all connections of user {safe(user)}, whatever their client-id"
