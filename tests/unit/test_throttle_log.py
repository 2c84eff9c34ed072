"""The log's lines about throttling: one when it begins, one when it has ended, and never a flood."""

from typing import Any

from proxy.app.throttle_log import MAX_EPISODES, MAX_LINES, QUIET_MS, ThrottleLog
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable


class Books:
    """Counters of 500 B/s, and the lines about them."""

    def __init__(self) -> None:
        self.ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=500)]), smooth=False)
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.log = ThrottleLog(self.ledger, self)

    def info(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def look(self, now_ms: float) -> list[tuple[str, dict[str, Any]]]:
        self.lines = []
        self.log.look(now_ms)
        return self.lines

    def throttle(self, client_id: str, now_ms: float, delay_ms: int = 2000, user: str = "u", **more: bool) -> None:
        account = self.ledger.account(user, client_id)
        self.ledger.charge(account, Kind.PRODUCE, 6000, now_ms)
        self.ledger.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=6000, **more)


def test_logs_throttle_begin_and_end() -> None:
    books = Books()
    assert books.look(900) == []
    books.throttle("etl", 1000)  # 6 000 B in 10 s: 600 B/s against 500
    names = {"quota": "produce", "user": None, "client_id": "etl"}
    more = {"by": "u/etl", "why": "over", "delay_ms": 2000, "limit": 500.0, "observed": 600.0}
    assert books.look(1100) == [("throttling begins", names | more)]
    books.throttle("etl", 3000, delay_ms=500, user="v")  # the same counter
    assert books.look(3100) == books.look(3500 + QUIET_MS - 1) == []
    end = {"lasted_s": 2.5, "throttles_at_least": 2, "held_s_at_least": 2.5}
    assert books.look(3500 + QUIET_MS) == [("throttling has ended", names | end)]
    assert books.look(1e6) == []
    books.throttle("etl", 2e6)
    books.throttle("waits", 2e6, queued=True)  # which ended then
    begun = {(event, values["client_id"], values["why"]) for event, values in books.look(2e6)}
    assert begun == {("throttling begins", "etl", "over"), ("throttling begins", "waits", "held")}
    ended = books.look(2e6 + 2000 + QUIET_MS)
    assert {values["client_id"]: values["lasted_s"] for _, values in ended} == {"etl": 2.0, "waits": 2.0}


def test_invented_names_cannot_flood_the_log_nor_memory() -> None:
    books, written = Books(), 0
    for number in range(3 * MAX_EPISODES):
        books.throttle(f"c{number}", number / 10)
        if number % 100 == 0:
            written += len(books.look(number / 10))
    assert written + len(books.look(400)) == MAX_LINES
    assert len(books.log._episodes) <= MAX_EPISODES
    event, values = books.look(60_500)[0]
    assert event == "messages about throttled counters omitted"
    assert values["left_out"] > 2 * MAX_EPISODES
