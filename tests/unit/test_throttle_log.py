"""The log's lines about throttling: one when it begins, one when it has ended, and never a flood."""

from typing import Any

import pytest

from proxy.app.throttle_log import MAX_EPISODES, MAX_LINES, QUIET_MS, ThrottleLog
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

Line = tuple[str, dict[str, Any]]


class Lines:
    def __init__(self) -> None:
        self.lines: list[Line] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def take(self) -> list[Line]:
        taken, self.lines = self.lines, []
        return taken


@pytest.fixture
def books() -> Ledger:
    return Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=500)]), smooth=False)


def throttle(
    of: Ledger, client_id: str, now_ms: float, delay_ms: int = 2000, user: str = "u", queued: bool = False
) -> None:
    account = of.account(user, client_id)
    of.charge(account, Kind.PRODUCE, 6000, now_ms)
    of.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=6000, queued=queued)


def test_logs_throttle_begin_and_end(books: Ledger) -> None:
    lines = Lines()
    log = ThrottleLog(books, lines)
    log.look(900)
    assert lines.take() == []
    throttle(books, "etl", 1000)  # 6 000 B in 10 s: 600 B/s against 500
    log.look(1100)
    names = {"quota": "produce", "user": None, "client_id": "etl"}
    more = {"by": "u/etl", "why": "over", "delay_ms": 2000, "limit": 500.0, "observed": 600.0}
    assert lines.take() == [("throttling begins", names | more)]
    throttle(books, "etl", 3000, delay_ms=500, user="v")  # the same counter
    log.look(3100)
    log.look(3500 + QUIET_MS - 1)
    assert lines.take() == []
    log.look(3500 + QUIET_MS)
    end = {"lasted_s": 2.5, "throttles_at_least": 2, "held_s_at_least": 2.5}
    assert lines.take() == [("throttling has ended", names | end)]
    log.look(1e6)
    assert lines.take() == []
    throttle(books, "etl", 2e6)
    throttle(books, "waits", 2e6, queued=True)  # which ended then
    log.look(2e6)
    begun = {(event, values["client_id"], values["why"]) for event, values in lines.take()}
    assert begun == {("throttling begins", "etl", "over"), ("throttling begins", "waits", "held")}
    log.look(2e6 + 2000 + QUIET_MS)
    assert {values["client_id"]: values["lasted_s"] for _, values in lines.take()} == {"etl": 2.0, "waits": 2.0}


def test_invented_names_cannot_flood_the_log_nor_memory(books: Ledger) -> None:
    lines = Lines()
    log = ThrottleLog(books, lines)
    for number in range(3 * MAX_EPISODES):
        throttle(books, f"c{number}", number / 10)
        if number % 100 == 0:
            log.look(number / 10)
    log.look(400)
    assert len(lines.take()) == MAX_LINES
    assert len(log._episodes) <= MAX_EPISODES
    log.look(60_500)
    ((event, values),) = lines.take()[:1]
    assert event == "messages about throttled counters omitted"
    assert values["left_out"] > 2 * MAX_EPISODES
