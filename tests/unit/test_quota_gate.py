"""A group in debt pays before its next request passes (ADR 0026): closed loops on a simulated clock.

The loops do what real attackers do: many connections, a new one for each request, large requests, all at once. What is
forwarded in a time is compared with the limit for that time.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from quota.entity import DEFAULT, Kind
from quota.gate import GRACE_MS, LOOK_AGAIN_MS, MAX_KEPT, MAX_KEPT_BYTES, MAX_KEPT_MS, REVIEW_MS, Gate
from quota.ledger import Account, Ledger
from quota.pacing import LARGE_MS
from quota.table import Entry, QuotaTable

PRODUCE, REQUEST = Kind.PRODUCE, Kind.REQUEST
KB, MB = 1000, 1_000_000
RECONNECTS = pytest.mark.parametrize("reconnects", [False, True], ids=["persistent", "reconnecting"])


@dataclass
class Loop:
    """What came of a closed loop; times in ms."""

    limit: float
    forwarded: list[tuple[float, int, float]] = field(default_factory=list)  # (when, by which connection, bytes)
    waits: list[tuple[float, int, float]] = field(default_factory=list)
    """(when it passed, which connection, how long it had been queued)"""

    def rate(self, begin_s: float, end_s: float) -> float:
        """Bytes forwarded in that time over what the limit allows in it."""
        amount = sum(each for at, _, each in self.forwarded if begin_s * 1000 <= at < end_s * 1000)
        return amount / (self.limit * (end_s - begin_s))

    def whole_rate(self, since_s: float) -> float:
        """The same between the first and the last request after `since_s`: requests are not cut in two."""
        after = [(at, each) for at, _, each in self.forwarded if at >= since_s * 1000]
        return sum(each for _, each in after[:-1]) / (self.limit * (after[-1][0] - after[0][0]) / 1000)


@dataclass(eq=False)
class Socket:
    """A connection, and the request that arrives on it at an even pace, from its begin on."""

    size: float = 0
    takes_ms: float = 0
    begun_ms: float = 0
    clock_ms: list[float] = field(default_factory=lambda: [0.0])

    @property
    def missing_bytes(self) -> int:
        arrived = (self.clock_ms[0] - self.begun_ms) / self.takes_ms if self.takes_ms else 1
        return int(self.size * max(1 - arrived, 0))


def limited(limit: float, **settings: Any) -> tuple[Ledger, Account]:
    ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=limit)]), **settings)
    return ledger, ledger.account("u", "c")


def closed_loop(
    connections: int,
    size: float | Callable[[int], float],
    limit: float,
    seconds: float = 400,
    *,
    reconnects: bool = False,
    streams_ms: float = 0,
    of: tuple[Ledger, Account] | None = None,
) -> Loop:
    """Connections that send one request after the other, each as soon as it may: after its mute, or with `reconnects`
    on a new connection 1 ms later. The last byte of a request comes `streams_ms` after its head."""
    ledger, account = of or limited(limit, max_throttle_ms=120_000)
    loop, clock_ms = Loop(limit), [0.0]
    sockets = {number: Socket(clock_ms=clock_ms) for number in range(connections)}
    since: dict[int, float] = {}
    events: list[tuple[float, int, str]] = [(0.0, number, "head") for number in range(connections)]
    while events[0][0] <= seconds * 1000:
        now, number, what = heapq.heappop(events)
        amount = size(number) if callable(size) else size
        clock_ms[0] = now
        if what == "head":
            since.setdefault(number, now)
            one = sockets[number]
            one.size, one.takes_ms, one.begun_ms = amount, streams_ms, now
            wait_ms = ledger.queue(account, PRODUCE, one, amount, now, whole=not streams_ms)
            if wait_ms:
                assert wait_ms <= LOOK_AGAIN_MS
                heapq.heappush(events, (now + wait_ms, number, "head"))
                continue
            loop.waits.append((now, number, now - since.pop(number)))
            if streams_ms:
                heapq.heappush(events, (now + streams_ms, number, "end"))
                continue
        delay_ms = ledger.charge(account, PRODUCE, amount, now)
        loop.forwarded.append((now, number, amount))
        if reconnects:
            ledger.leave_queue(account, PRODUCE, sockets[number])
            sockets[number] = Socket(clock_ms=clock_ms)
            delay_ms = 1
        heapq.heappush(events, (now + max(delay_ms, 1), number, "head"))
    return loop


@pytest.mark.parametrize("streams_ms", [0, 300])
@RECONNECTS
@pytest.mark.parametrize(
    ("connections", "size", "limit"),
    [
        (1, 4 * KB, 100 * KB),
        (1, 1 * MB, 1 * MB),
        (4, 100 * KB, 200 * KB),
        (30, 16 * KB, 1 * MB),
        (200, 4 * KB, 100 * KB),
        (200, 100 * KB, 100 * KB),
        (200, 100 * KB, 1 * MB),
        (64, 1 * MB, 1 * MB),
    ],
)
def test_connections_keep_the_limit(connections: int, size: int, limit: int, reconnects: bool, streams_ms: int) -> None:
    loop = closed_loop(connections, size, limit, reconnects=reconnects, streams_ms=streams_ms)
    assert loop.rate(11, 131) <= 1.05
    assert loop.rate(131, 391) <= 1.05
    if connections * size > limit * 1.4 or not streams_ms:  # else 300 ms for each request are the limit
        assert loop.rate(131, 391) >= 0.95, "nor is it limited to less"
    # At first the window lets ten seconds' worth pass, and what was on its way; in Kafka each connection.
    assert loop.rate(0, 11) * 11 <= 10 + 7 + max(size / limit, 300 / 1000 * (size / limit) * connections)


@RECONNECTS
@pytest.mark.parametrize(
    ("connections", "size", "limit"),
    [(1, 20 * MB, MB), (1, 20 * MB, 100 * KB), (4, 5 * MB, 100 * KB), (40, 100 * MB, MB), (4, 100 * MB, MB)],
)
def test_large_requests_pass_one_by_one(connections: int, size: int, limit: int, reconnects: bool) -> None:
    loop = closed_loop(connections, size, limit, 2000, reconnects=reconnects)
    assert loop.whole_rate(11) == pytest.approx(1.0, abs=0.02)
    apart = [b - a for (a, _, _), (b, _, _) in itertools.pairwise(loop.forwarded[1:])]
    assert min(apart) >= size / limit * 1000 - GRACE_MS - 100


def test_a_claim_lasts_while_the_request_arrives() -> None:
    """At 1 MB/s: 9.9 MB are announced, so 11 s of others do not fit. Of a slow one 12 % arrive in 5 s."""
    for takes_ms, waits in ((math.inf, False), (200_000, False), (40_000, False), (20_000, True)):
        (ledger, account), sender = limited(1 * MB), Socket(9.9 * MB, takes_ms)
        for one in (sender, Socket()):
            assert ledger.queue(account, PRODUCE, one, 9.9 * MB, 0) == 0
        sender.clock_ms[0] = REVIEW_MS
        wait_ms = ledger.queue(account, PRODUCE, Socket(), 1 * MB, REVIEW_MS)
        assert (wait_ms > 0) is waits, takes_ms


@pytest.mark.parametrize(("large", "size", "longest_ms"), [(1, 100 * MB, 12_500), (20, 20 * MB, 30_000)])
def test_large_requests_hold_group_mates_only_briefly(large: int, size: int, longest_ms: int) -> None:
    """100 MB at 1 MB/s are 100 s. The other five wait until it has left Kafka's window; from then on half of the limit
    is theirs, and the other half pays."""
    loop = closed_loop(large + 5, lambda number: size if number < large else 16 * KB, 1 * MB, 1200)
    assert max(queued for _, number, queued in loop.waits if number >= large) <= longest_ms
    assert {number for _, number, _ in loop.waits} == set(range(large + 5)), "nor the other way round"
    assert loop.whole_rate(11) == pytest.approx(1.0, abs=0.06)
    theirs = sum(each for _, number, each in loop.forwarded if number >= large)
    assert large > 1 or 0.3 <= theirs / sum(each for _, _, each in loop.forwarded) <= 0.7


@pytest.mark.parametrize(("connections", "part"), [(1, 0.6), (4, 0.85), (16, 0.95)])
def test_abandoned_requests_share_one_place(connections: int, part: float) -> None:
    ledger, account = limited(1 * MB)
    ledger.charge(account, PRODUCE, 12 * MB, 0)
    group = next(ledger.groups(PRODUCE))
    honest, numbers = {Socket() for _ in range(connections)}, itertools.count()
    passed, most, arrives_ms = {True: 0, False: 0}, 0, 0.0
    events: list[tuple[float, int, object]] = [(0.0, next(numbers), each) for each in honest]
    kept_until: dict[object, float] = {}
    while events[0][0] <= 60_000:
        now, _, who = heapq.heappop(events)
        while arrives_ms < now:
            arrives_ms += 5
            heapq.heappush(events, (arrives_ms, next(numbers), Socket()))
        if kept_until.get(who, now) < now:
            ledger.leave_queue(account, PRODUCE, who)
            continue
        wait_ms = ledger.queue(account, PRODUCE, who, 100 * KB, now, whole=True)
        if wait_ms and who not in honest and who not in kept_until:
            if not group.abandon(who, 100 * KB, int(now)):
                ledger.leave_queue(account, PRODUCE, who)
                continue
            kept_until[who] = now + MAX_KEPT_MS
            most = max(most, group.waiting - connections)
        if not wait_ms:
            passed[who in honest] += now > 20_000
            wait_ms = ledger.charge(account, PRODUCE, 100 * KB, now)
            if who not in honest:
                ledger.leave_queue(account, PRODUCE, who)
                continue
        heapq.heappush(events, (now + max(wait_ms, 1), next(numbers), who))
    assert passed[True] / (passed[True] + passed[False]) == pytest.approx(part, abs=0.03)
    assert passed[True] + passed[False] == pytest.approx(400, rel=0.05), "nor is the limit wasted"
    assert 1 <= most <= MAX_KEPT


@pytest.mark.parametrize(
    ("size", "kept"),
    [(1 * KB, MAX_KEPT), (MAX_KEPT_BYTES // 8, 8), (MAX_KEPT_BYTES + 1, 0)],
    ids=["number", "bytes", "too large"],
)
def test_what_is_kept_for_clients_that_have_gone_is_bounded(size: int, kept: int) -> None:
    gate = Gate()
    for number in range(100):
        assert gate.ask(number, 1, 1000, 0, 0) > 0
    assert sum(gate.abandon(number, size, 1000, 0, 0) for number in range(50)) == kept
    assert len(gate) == 100
    assert gate.ask("large", LARGE_MS + 1, 300_000, 0, 0) > 0
    assert not gate.abandon("large", 1, 300_000, 0, 0), "its turn is minutes away"
    assert not gate.abandon("unknown", 1, 0, 0, 0)
    for number in (*range(100), "large"):
        gate.leave(number)
    assert (len(gate), gate.ahead_ms(0)) == (0, 0)


@pytest.mark.parametrize("entry", [None, Entry(client_id=DEFAULT, producer_byte_rate=1 * MB, mode="shadow")])
def test_without_a_limit_in_force_nothing_waits(entry: Entry | None) -> None:
    ledger, account = limited(1 * MB)
    ledger.charge(account, PRODUCE, 100 * MB, 0)
    assert ledger.queue(account, PRODUCE, "waits", 100 * KB, 1, whole=True) > 0
    ledger.swap(QuotaTable([entry] if entry else []))
    assert ledger.queue(account, PRODUCE, "waits", 100 * KB, 2, whole=True) == 0
    assert ledger.queue(account, PRODUCE, "other", 100 * MB, 2) == 0


def test_exact_algorithm_holds_nothing_before_forwarding() -> None:
    """`pacing: kafka`, with all that follows from it: 4 x 5 MB at 0.1 MB/s got 3.7 times their limit from a broker."""
    loop = closed_loop(4, 5 * MB, 100 * KB, 95, of=limited(100 * KB, smooth=False, max_throttle_ms=None))
    assert max(queued for _, _, queued in loop.waits) == 0
    assert loop.rate(0, 95) == pytest.approx(3.7, abs=0.1), "as measured"
    loop = closed_loop(1, 100 * KB, 200 * KB, 30, of=limited(200 * KB, smooth=False), reconnects=True)
    assert loop.rate(0, 30) > 100


def test_renewal_allowance_is_the_groups_and_returns() -> None:
    ledger, account = limited(1 * MB)
    ledger.charge(account, PRODUCE, 100 * MB, 0)
    group = next(ledger.groups(PRODUCE))
    passed = sum(group.renews(1 * MB, 1000) for _ in range(1000))
    assert passed == 10  # ten seconds' worth
    assert not group.renews(1 * MB, 1500)
    assert sum(group.renews(1 * MB, 11_000) for _ in range(1000)) == 10  # 10 s at 1 MB/s


def test_large_and_ordinary_requests_take_turns() -> None:
    gate, large_ms = Gate(), LARGE_MS + 1
    early = [
        ("before", 100, 0),
        ("large", large_ms, 1),
        ("after", 100, 2),
        ("after", 100, 790),
        ("large", large_ms, 790),
    ]
    assert all(gate.ask(who, cost_ms, 1000.0, 0, now) > 0 for who, cost_ms, now in early)
    assert gate.ask("before", 0, 1000.0, 0, 800) == 0
    assert gate.ask("after", 0, 1000.0, 0, 810) > 0, "it is the large one's turn"
    assert gate.ask("large", large_ms, 1000.0, 0, 810) == 0


def test_a_raised_limit_lets_pass_what_waited_for_the_lower_one() -> None:
    """1 MB passed and 1 MB waits at 10 kB/s, so it would pass after 100 s; at 1 MB/s it does after one."""
    ledger, account = limited(10 * KB)
    ledger.charge(account, PRODUCE, 101 * KB, 0)
    first = Socket(1 * MB, 10_000)
    assert ledger.queue(account, PRODUCE, first, 1 * MB, 1_000) == 0
    first.clock_ms[0] = 2_500
    assert ledger.queue(account, PRODUCE, "second", 1 * MB, 1_000) == LOOK_AGAIN_MS
    ledger.swap(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=1 * MB)]))
    assert ledger.queue(account, PRODUCE, "second", 1 * MB, 2_500) == 0
