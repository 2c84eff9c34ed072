"""How often a throttle is announced: Java's logs a line for each response that carries a throttle time (KAFKA-19117).

Clients in a closed loop, on a simulated clock: send, read the response, wait as announced, and be read after the mute.
"""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest

from proxy.core.wire.apis import END_TXN, FETCH
from quota.entity import Kind
from quota.ledger import Ledger
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, produce, request, response, session
from tests.support.wire_tools import kio_read

RATE = 200_000
MINUTE_MS = 60_000.0


class Loop:
    """One connection of one client; `announced`: times (ms) and lengths of the throttles that responses carry."""

    def __init__(self, book: Ledger) -> None:
        self.book, self.session = book, session(book)
        self.now_ms, self.passed, self.throttled = 0.0, 0, 0
        self.announced: list[tuple[float, int]] = []

    def note(self, throttle_ms: int) -> None:
        self.throttled += self.session.mute_until_ms > self.now_ms
        if throttle_ms:
            self.announced.append((self.now_ms, throttle_ms))
        self.now_ms = max(self.now_ms, self.session.mute_until_ms) + 1.0

    def produce(self, size_bytes: int, until_ms: float) -> Loop:
        while self.now_ms < until_ms:
            from_client(self.session, produce(1, size_bytes), self.now_ms)
            answer = from_broker(self.session, tools.produce_response(1), self.now_ms)
            self.passed += size_bytes
            self.note(*struct.unpack_from(">i", answer, len(answer) - 4))
        return self

    def fetch(self, until_ms: float) -> Loop:
        """A consumer without a session that always has more to read."""
        while self.now_ms < until_ms:
            asked = from_client(
                self.session, request(FETCH, 11, 1, tools.fetch_body(11, partitions={0: 0})), self.now_ms
            )
            if asked:
                records = max(int.from_bytes(asked[27:31], "big"), 10_000)  # max_bytes; but a whole batch at least
                body = struct.pack(">ihii", 0, 0, 0, 0) + bytes(records)
                from_broker(self.session, response(FETCH, 11, 1, body), self.now_ms)
                self.passed += records
                self.note(0)
            else:
                announced = kio_read(self.session.seen(), FETCH, 11).throttle_time
                self.note(announced // datetime.timedelta(milliseconds=1))
        return self

    def told_in_minute(self, minute: int) -> int:
        return sum(minute * MINUTE_MS <= at < (minute + 1) * MINUTE_MS for at, _ in self.announced)


def imposed(book: Ledger, kind: Kind) -> tuple[int, int]:
    """(throttles, their sum in ms) by the metrics."""
    meter = book.account("ANONYMOUS", "c").meters[kind]
    return meter.throttled, meter.throttle_ms


@pytest.mark.parametrize("size_bytes", [4096, 16_384, 100_000])
def test_paced_producer_is_shown_no_longer_throttle(size_bytes: int) -> None:
    paced = Loop(ledger(produce_rate=RATE)).produce(size_bytes, 3 * MINUTE_MS)
    kafka = Loop(ledger(produce_rate=RATE, smooth=False)).produce(size_bytes, 3 * MINUTE_MS)
    assert paced.passed == pytest.approx(RATE * 180, rel=0.02)
    assert paced.announced[0][1] > 0, "the first one always"
    for minute in range(1, 3):
        assert 0 < paced.told_in_minute(minute) <= kafka.told_in_minute(minute)
    # The mutes are as they are, and the metrics count all of them.
    throttled, throttle_ms = imposed(paced.book, Kind.PRODUCE)
    assert throttled == paced.throttled
    assert throttle_ms == pytest.approx(170_000, rel=0.08)  # all but the first ten seconds' worth, and 1 ms each
    assert paced.session.state.counters.throttled_responses == len(paced.announced)


@pytest.mark.parametrize(
    ("size_bytes", "smooth", "announced"), [(1_000_000, True, False), (6_000_000, True, True), (1_000_000, False, True)]
)
def test_announces_long_throttles_of_transactions(size_bytes: int, smooth: bool, announced: bool) -> None:
    """Of those that last for most of the 30 s that the producer waits."""
    one = Loop(ledger(produce_rate=RATE, smooth=smooth))
    from_client(one.session, request(END_TXN, 1, 1, struct.pack(">h1sqh?", 1, b"t", 7, 0, True)), 0.0)
    from_broker(one.session, response(END_TXN, 1, 1, struct.pack(">ih", 0, 0)), 0.0)
    one.produce(size_bytes, 5 * MINUTE_MS)
    assert bool(one.announced) is announced
    assert one.throttled > 5
    assert one.passed <= RATE * 310 + size_bytes


def test_paced_consumer_is_shown_no_longer_throttle() -> None:
    paced = Loop(ledger(fetch_rate=RATE)).fetch(3 * MINUTE_MS)
    assert paced.passed == pytest.approx(RATE * 180, rel=0.02)
    assert all(0 < paced.told_in_minute(minute) <= 6 for minute in range(1, 3))
    throttled, _ = imposed(paced.book, Kind.FETCH)
    assert throttled > 10 * len(paced.announced)


@pytest.mark.parametrize(
    ("smooth", "size_bytes"), [(True, 300_000), (False, 4096)], ids=["1.5 s each", "Kafka's formula"]
)
def test_long_and_kafkas_throttles_are_all_announced(smooth: bool, size_bytes: int) -> None:
    one = Loop(ledger(produce_rate=RATE, smooth=smooth)).produce(size_bytes, MINUTE_MS)
    assert (len(one.announced), sum(ms for _, ms in one.announced)) == imposed(one.book, Kind.PRODUCE)


def test_request_time_is_announced_with_a_short_mute() -> None:
    one = Loop(ledger(produce_rate=RATE, request_percentage=1.0)).produce(4096, 20_000)
    state = one.session.state
    from_client(one.session, produce(2, 20_000), one.now_ms)
    pending: Any = state.exchange.oldest
    assert (pending.penalty.delay_ms > 0, pending.penalty.announced_until_ms) == (True, 0.0)
    state.throttle.impose(pending, Kind.REQUEST, 20, one.now_ms)
    assert pending.penalty.announced_until_ms == one.now_ms + 20 < pending.penalty.until_ms
    answer = from_broker(one.session, tools.produce_response(2), one.now_ms + 1)
    assert struct.unpack_from(">i", answer, len(answer) - 4) == (19,)
