"""What people read of requests that wait before they are forwarded (ADR 0026): explain, throttled, top, connections."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.app.admin.app import _connection_json, _group_json
from proxy.app.admin.explain import Moment, explanation_json, identity_of_connections
from proxy.app.admin.explain_text import explanation_text
from proxy.app.cli.top import chosen, page, rows
from proxy.app.throttle_log import QUIET_MS, ThrottleLog
from proxy.core.telemetry.observer import ConnectionInfo
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.status import counter_status
from quota.table import Entry, QuotaTable

AT = Moment(now_ms=4000.0, wall_s=1_790_000_000.0)
LIMITS = Entry(client_id=DEFAULT, producer_byte_rate=1000, request_percentage=10, controller_mutation_rate=5)


def connection(port: int, *, muted_ms: float = 0.0, waiting_for: str | None = None, waited_ms: float = 0.0) -> Any:
    peer = f"10.0.0.7:{port}"
    return ConnectionInfo(
        peer, "broker 1", "web", ("etl",), "lib 1", 0, muted_ms, 1, 2, 0.5, "static", waiting_for, waited_ms
    )


PEERS = [
    connection(1, muted_ms=900.0),
    connection(2, waiting_for="produce", waited_ms=3000.0),
    connection(3, waiting_for="produce", waited_ms=3000.0),
    connection(4),
]


@pytest.fixture
def ledger() -> Ledger:
    """web/etl used 8.4 s' worth more than its window has at 0, was told 1 s of that; two connections wait at 4 s."""
    made = Ledger(QuotaTable([LIMITS]), max_throttle_ms=1000)
    account = made.account("web", "etl")
    delay_ms = made.charge(account, Kind.PRODUCE, 18_400, 0)
    made.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=0, api_key=0, amount=18_400)
    made.note_throttle(account, Kind.PRODUCE, 4200, at_ms=3000, api_key=0, amount=100, queued=True)
    for each in PEERS[1:3]:
        assert made.queue(account, Kind.PRODUCE, each, 2000, 4000, whole=True).wait_ms > 0
    return made


def explained(ledger: Ledger) -> str:
    identity = identity_of_connections(PEERS, "web", "etl", ("web", "static"))
    return explanation_text(explanation_json(ledger, "web", "etl", identity=identity, at=AT, addresses=[]))


def test_explain_shows_waiting_requests(ledger: Ledger) -> None:
    text = explained(ledger)
    assert "4 open connections, 1 muted, 2 waiting for the group's debt" in text
    now = counter_status(next(ledger.groups(Kind.PRODUCE)), AT.now_ms)
    # 8.4 s less 4 s; 0.2 s may be owed when a request passes; the two that wait cost 2 s each
    assert now.line == (2, 4200, 8200, 4400)
    assert (now.owed_ms, now.wait_ms) == (4400, 8200)
    assert text.count("2 connections wait; the next passes in 4.2 s; the group owes 4.4 s") == 2
    assert "THROTTLED by produce (next request waits 8.2 s): " in text
    assert "owes 4.4 s beyond the announced delays; the next requests wait for it" in text
    assert "delayed 2 requests so far, 5.2 s in all; 1 waited 4.2 s before they were forwarded" in text
    assert "waited 4.2 s before it was forwarded: the group was in debt" in text


def test_the_next_passes_when_the_debt_is_paid() -> None:
    ledger = Ledger(QuotaTable([LIMITS]), max_throttle_ms=1000)
    account = ledger.account("web", "etl")
    ledger.charge(account, Kind.PRODUCE, 16_000, 0)  # 6 s over 10 s' worth
    (group,) = ledger.groups()
    now = 0
    while wait_ms := ledger.queue(account, Kind.PRODUCE, "c", 100, now, whole=True).wait_ms:
        line = group.line(now)
        assert line.waiting == 1
        assert now + line.next_ms == 5800  # 6 s, and 0.2 s may be owed
        now += wait_ms
    assert now == 5800
    assert group.line(now).waiting == 0


def test_log_distinguishes_holds_from_mutes() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def info(self, event: str, **values: Any) -> None:
            lines.append((event, values))

    ledger = Ledger(QuotaTable([LIMITS]))
    log = ThrottleLog(ledger, Log())
    account, other = ledger.account("web", "etl"), ledger.account("web", "other")
    for one in (account, other):
        ledger.charge(one, Kind.PRODUCE, 50_000, 0)
    ledger.note_throttle(other, Kind.PRODUCE, 1000, at_ms=7000, api_key=0)
    log.look(7500)
    ledger.note_throttle(account, Kind.PRODUCE, 5000, at_ms=8000, api_key=0, queued=True)
    log.look(8500)
    assert [(event, values["client_id"], values["why"]) for event, values in lines] == [
        ("throttling begins", "other", "over"),
        ("throttling begins", "etl", "held"),
    ]
    log.look(8000 + QUIET_MS)
    ended = {values["client_id"]: values["lasted_s"] for event, values in lines if event == "throttling has ended"}
    assert ended == {"other": 1.0, "etl": 5.0}


def test_top_and_quotas_show_waiting_connections(ledger: Ledger) -> None:
    (group,) = (_group_json(ledger, one, AT) for one in ledger.groups(Kind.PRODUCE))
    assert (group["waiting"], group["totals"]["held"], group["totals"]["held_ms"]) == (2, 1, 4200)
    (row,) = rows([group], {}, 0.0)
    assert row.state == "owes 4.4 s, 2 waiting"
    others = group | {"owed_ms": 0, "throttled_for_ms": 0, "client_id": "other"}
    waits, calm = rows([others, others | {"waiting": 0}], {}, 0.0)
    assert (waits.state, waits.throttled, calm.throttled) == ("2 waiting", True, False)
    assert chosen([calm, waits], "", "throttled") == [waits, calm]
    seen = {"connections": [_connection_json(one) for one in PEERS], "total": 4}
    head = page("http://h", {"total": 1}, seen, [row], 20, 200).renderables[0]  # type: ignore[union-attr]
    assert "connections 4 (1 muted, 2 waiting)   counters 1 (1 throttled)" in str(head)
