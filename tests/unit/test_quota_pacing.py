"""Smooth pacing, simulated: clients in a closed loop (ask, get a delay, wait, ask again) on a simulated clock."""

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from quota.entity import DEFAULT, Kind
from quota.ledger import Account, Ledger
from quota.table import Entry, QuotaTable

PRODUCE, FETCH = Kind.PRODUCE, Kind.FETCH
MB = 1_000_000
LINK_BYTES_PER_MS = 120_000  # all clients share a link of 120 MB/s, so that nothing is infinitely fast
OVERHEAD = 90  # bytes of a response besides its records
PARTITION_BYTES = 1 << 20  # max.partition.fetch.bytes, the consumer's default: each reads a single partition


@dataclass
class Run:
    """What passed: (when in ms, bytes on the wire, bytes in whole batches, connection), and how many were refused."""

    limit: float
    passed: list[tuple[float, int, int, int]] = field(default_factory=list)
    refused: int = 0

    def between(self, start_ms: float, end_ms: float) -> list[tuple[float, int, int, int]]:
        return [one for one in self.passed if start_ms <= one[0] < end_ms]

    def achieved(self, start_ms: float, end_ms: float, *, what: int = 1) -> float:
        """Rate over limit."""
        return sum(one[what] for one in self.between(start_ms, end_ms)) / ((end_ms - start_ms) / 1000) / self.limit

    def payload(self, start_ms: float, end_ms: float) -> float:
        """That of whole batches: what the consumers' applications see."""
        return self.achieved(start_ms, end_ms, what=2)

    def longest_gap_ms(self, start_ms: float, end_ms: float) -> float:
        times = [start_ms, *(one[0] for one in self.between(start_ms, end_ms)), end_ms]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def fairness(self, start_ms: float, end_ms: float) -> float:
        """Jain's index of the connections' shares: 1 when all are equal, 1/n when one has everything."""
        shares: dict[int, int] = defaultdict(int)
        for _, size, _, connection in self.between(start_ms, end_ms):
            shares[connection] += size
        return sum(shares.values()) ** 2 / (len(shares) * sum(share * share for share in shares.values()))


def limited(limit: float) -> tuple[Ledger, Account]:
    ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=limit, consumer_byte_rate=limit)]))
    return ledger, ledger.account("u", "c")


class Log:
    """One partition as a broker serves it, to a client that starts again at the first batch that did not come whole."""

    def __init__(self, batch: int, mixed: bool, seed: int) -> None:
        sizes = random.Random(seed)
        self._batches = [sizes.randint(batch // 8, batch) if mixed else batch for _ in range(997)]
        self._next = 0

    def read(self, max_bytes: int) -> tuple[int, int]:
        """(bytes of records in the response, those of them in whole batches): exactly as many as are allowed, the last
        batch cut off in the middle (`FileRecords.slice`), but at least the first batch (KIP-74)."""
        whole = 0
        while True:
            size = self._batches[self._next % len(self._batches)]
            if whole and whole + size > max_bytes:
                return max_bytes, whole
            whole += size
            self._next += 1
            if whole >= max_bytes:
                return whole, whole


def fetch(
    limit: float,
    batch: int,
    connections: int,
    rtt_ms: float = 5,
    until_ms: float = 90_000,
    *,
    idle: int = 0,
    mixed: bool = False,
) -> Run:
    """Each connection asks for 50 MB and gets what its log holds, up to what it is allowed. `mixed` batches are of all
    sizes from an eighth of `batch`. `idle` more connections wait at the end of their log for half a second each."""
    (ledger, account), run = limited(limit), Run(limit)
    logs = [Log(batch, mixed, seed) for seed in range(connections)]
    following: Any
    events: list[Any] = [(number * 0.01, number, None, 0, 0) for number in range(connections + idle)]
    while events[0][0] < until_ms:
        t, connection, grant, size, useful = events[0]
        if grant is not None:  # a response
            ledger.settle(account, FETCH, grant, size, t)
            if connection < connections:
                run.passed.append((t, size, useful, connection))
            following = (t + rtt_ms, connection, None, 0, 0)
        elif (grant := ledger.admit(account, FETCH, 50 * MB, t)).throttle_ms > 0:
            run.refused += 1
            following = (t + grant.throttle_ms + rtt_ms, connection, None, 0, 0)
        elif connection < connections:
            size, useful = logs[connection].read(min(grant.max_bytes or 0, PARTITION_BYTES))
            size += OVERHEAD
            following = (t + rtt_ms + size / LINK_BYTES_PER_MS, connection, grant, size, useful)
        else:
            following = (t + rtt_ms + 500, connection, grant, 60, 0)
        heapq.heapreplace(events, following)
    return run


def test_pacing_forgives_lateness_of_the_client() -> None:
    # One connection, requests worth 50 ms, and 300 ms of silence after each twentieth. If lateness were lost, it would
    # reach 1000 / (1000 + 300) = 77 %.
    (ledger, account), t, sent = limited(1 * MB), 0.0, 0
    for turn in range(2500):
        t += ledger.charge(account, PRODUCE, 50_000, t) + (300 if turn % 20 == 0 else 1)
        sent += 50_000 if 26_000 <= t < 86_000 else 0
    assert sent / 60 / MB == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("connections", [1, 8, 64])
@pytest.mark.parametrize(
    ("limit", "batch", "rtt_ms", "waste"),
    [
        *((1 * MB, batch, rtt_ms, 0.02) for batch, rtt_ms in ((1000, 1), (16_384, 7.3), (50_000, 5), (100_000, 20))),
        *((10 * MB, batch, rtt_ms, 0.02) for batch, rtt_ms in ((1000, 20), (1 * MB, 1))),
        (10 * MB, 100_000, 7.3, 0.05),  # ten batches in 1 MiB: the consumer's own limit cuts the eleventh
    ],
)
def test_consumers_run_evenly_at_limit(limit: float, batch: int, rtt_ms: float, waste: float, connections: int) -> None:
    """`waste`: the largest share of bytes on the wire that may be of no use."""
    run = fetch(limit, batch, connections, rtt_ms)
    # Admitted one by one, they never overdraw the first window, so they run evenly as soon as it is over.
    assert run.achieved(12_000, 72_000) == pytest.approx(1, abs=0.02)
    assert 1 - run.payload(12_000, 72_000) / run.achieved(12_000, 72_000) <= waste
    seconds = [run.achieved(second, second + 1000) for second in range(12_000, 72_000, 1000)]
    assert 0.5 <= min(seconds) <= max(seconds) <= 1.5  # portions are half a second at most
    assert run.longest_gap_ms(12_000, 72_000) <= 1000
    assert run.fairness(12_000, 72_000) >= 0.85
    assert run.refused / 90 < 40  # empty responses per second, all connections together


@pytest.mark.parametrize(
    ("limit", "batch", "payload"),
    [
        *((1 * MB, batch, 0.97) for batch in (16_384, 100_000, 400_000, 1 * MB)),
        *((limit, batch, 0.97) for limit, batch in ((10 * MB, 1 * MB), (100_000, 16_384))),
        *((limit, batch, 0.95) for limit, batch in ((1 * MB, 50_000), (10 * MB, 100_000))),
        (2500, 1000, 0.8),  # the response itself is a tenth of it
    ],
)
def test_batches_of_all_sizes_are_hardly_cut(limit: float, batch: int, payload: float) -> None:
    run = fetch(limit, batch, 1, mixed=True)
    assert payload <= run.payload(12_000, 72_000) <= 1.02
    assert run.longest_gap_ms(12_000, 72_000) <= 2000


@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize(("limit", "batch"), [(10_000, 1 * MB), (10_000, 300_000), (50_000, 1 * MB), (30, 3463)])
def test_batches_worth_more_than_a_window_keep_the_limit(limit: float, batch: int, connections: int) -> None:
    """Brokers send a whole batch however little is asked for: fetchers owe no more than two."""
    run = fetch(limit, batch, connections, until_ms=3_600_000)
    for hour in (0.25, 0.5, 1):
        passed = sum(size for _, size, _, _ in run.between(0, hour * 3_600_000))
        assert passed <= limit * (hour * 3600 + 2) + 2 * (batch + OVERHEAD)  # 2 s are their tolerance
        assert passed >= 0.95 * limit * hour * 3600


@pytest.mark.parametrize("batch", [16_384, 100_000])
@pytest.mark.parametrize(("idle", "least"), [(3, 0.95), (8, 0.95), (63, 0.93), (200, 0.9)])
def test_consumers_without_data_do_not_hold_up_the_one_with_data(idle: int, least: float, batch: int) -> None:
    run = fetch(1 * MB, batch, 1, idle=idle)
    assert least <= run.payload(20_000, 80_000) <= 1.02


def paced(ledger: Ledger) -> bool:
    return any(group.paced for group in ledger.groups())


def test_episode_begins_with_kafkas_delay_ends_after_calm() -> None:
    ledger, account = limited(1 * MB)
    # 12 MB at 1 MB/s: 1.2 MB/s over 10 s, (1.2 - 1) / 1 * 10 s = 2 s, pacing or not
    assert ledger.charge(account, PRODUCE, 10 * MB, 0) == 0
    assert not paced(ledger)
    assert ledger.charge(account, PRODUCE, 2 * MB, 0) == 2000
    assert paced(ledger)
    assert ledger.charge(account, PRODUCE, 52 * MB, 2000) == 30_000
    ledger.charge(account, PRODUCE, 1000, 40_000)
    assert paced(ledger), "waiting is not calm, although the window is empty"
    for t in range(60_000, 105_000, 100):  # at half the limit: 50 KB each 100 ms
        ledger.charge(account, PRODUCE, 50_000, t)
    assert not paced(ledger)
    # The window holds 12 s x 0.5 MB/s at most, so at least 4 MB pass at once.
    assert ledger.charge(account, PRODUCE, 4 * MB, 105_000) == 0


def test_settled_admission_frees_its_reservation() -> None:
    ledger, account = limited(1 * MB)
    for now in (0, 2):  # nothing is left of the first eleven then
        admissions = [ledger.admit(account, FETCH, 100 * MB, now) for _ in range(11)]
        # each is promised one second's worth (with 64 B besides records), in full while nothing is known; ten fill the
        # window, and the eleventh waits for the shortest portion
        assert [one.max_bytes for one in admissions] == [1 * MB - 64] * 10 + [0]
        assert [one.throttle_ms for one in admissions] == [0] * 10 + [250]
        for one in admissions[:10]:
            ledger.settle(account, FETCH, one, 0, now + 1)
    assert not paced(ledger)


def test_departed_fetchers_leave_the_queue() -> None:
    # 10 000 connections ask once within a second, nearly all are refused, and none comes back
    ledger, account = limited(1 * MB)
    ledger.settle(account, FETCH, ledger.admit(account, FETCH, 10 * MB, 0), 10 * MB, 0)
    delays = []
    for tenths in range(10_000):
        grant = ledger.admit(account, FETCH, 10 * MB, 12_000 + tenths / 10)
        delays.append(grant.throttle_ms)
        if not grant.throttle_ms:
            ledger.settle(account, FETCH, grant, 100_000, 12_000 + tenths / 10)
    assert delays.count(0) < 125  # 10 MB fit into the window, and 1 MB a second after that
    assert 25_000 < max(delays) <= 30_000
    assert ledger.admit(account, FETCH, 10 * MB, 45_000).throttle_ms == 0


def test_fetches_at_once_share_the_room() -> None:
    ledger, account = limited(1 * MB)
    ledger.charge(account, FETCH, 9_640_000, 0)
    grants = [ledger.admit(account, FETCH, 200_000, 0).max_bytes or 0 for _ in range(2)]
    assert 350_000 < sum(grants) <= 360_000
