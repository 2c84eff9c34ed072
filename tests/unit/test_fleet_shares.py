"""A ledger whose limits are those of a fleet: shares are in force, windows and buckets move with them."""

from collections.abc import Iterator
from typing import Any

import pytest

from quota.connections import ConnectionEntry, ConnectionLimits, EntityType, Ticket
from quota.entity import DEFAULT, Kind
from quota.fleet.core import STEP, Fleet
from quota.fleet.record import Seal
from quota.fleet.shares import SOON_MS, Shares
from quota.fleet.split import CAPACITY, RESERVE
from quota.ledger import Ledger
from quota.overlay import laid_over
from quota.rate import SampledRate
from quota.steps import whole
from quota.table import RATE_FIELD, CandidateLimits, Entry, QuotaTable

MB = 1_000_000.0


class Site:
    """Some instances with a ledger each, around one log."""

    def __init__(self, count: int, table: QuotaTable) -> None:
        self.now = 0.0
        self.ledgers = [Ledger(table) for _ in range(count)]
        fleets = [Fleet(Seal([b"key"], "topic", "f"), number + 1, f"i{number}", 0.0) for number in range(count)]
        self.shares = [Shares(ledger, fleet, 0.0) for ledger, fleet in zip(self.ledgers, fleets, strict=True)]
        for fleet in fleets:
            fleet.connected(4)
        self.log: list[tuple[int, bytes]] = []
        self.read = [0] * count

    def run(self, seconds: float, work: dict[int, float] | None = None, kind: Kind = Kind.PRODUCE) -> list[float]:
        """Clients of some instances (`work`: its rate) as honest ones; what each was charged."""
        used, free = [0.0] * len(self.ledgers), [self.now] * len(self.ledgers)
        for _ in range(int(seconds * 20)):
            self.now += 50.0
            for at, ledger in enumerate(self.ledgers):
                amount = (work or {}).get(at, 0.0) / 20
                if amount and free[at] <= self.now:
                    account = ledger.account("u", "c")
                    wait = ledger.queue(account, kind, "client", amount, self.now, whole=True)
                    if wait:
                        free[at] = self.now + min(wait, 50)
                        continue
                    ledger.leave_queue(account, kind, "client")
                    if delay := ledger.charge(account, kind, amount, self.now):
                        ledger.note_throttle(account, kind, delay)
                    used[at] += amount
                    free[at] = self.now + delay
            if self.now % 250 == 0:
                self.step()
        return used

    def step(self) -> None:
        for at, shares in enumerate(self.shares):
            for partition, data in self.log[self.read[at] :]:
                shares.fleet.read(partition, data, self.now)
            self.read[at] = len(self.log)
            self.log += whole(shares.steps(self.now))

    def limits(self, kind: Kind = Kind.PRODUCE) -> list[float]:
        found = [ledger.account("u", "c").meters[kind].group for ledger in self.ledgers]
        return [0.0 if group is None or group.limit is None else group.limit for group in found]


def shared(**limits: float) -> QuotaTable:
    return QuotaTable([Entry(DEFAULT, None, scope="fleet", **limits)])  # type: ignore[arg-type]


PRODUCE = shared(producer_byte_rate=MB)


@pytest.mark.parametrize(
    ("kind", "written", "limit", "warm_s", "within"),
    [
        pytest.param(Kind.PRODUCE, MB, MB, 25, 0.03, id="bytes"),
        pytest.param(Kind.REQUEST, 20.0, 200.0, 15, 0.05, id="time"),  # ms of busy time per second
        pytest.param(Kind.MUTATION, 10.0, 10.0, 40, 0.1, id="mutations"),
    ],
)
def test_fleet_splits_equally(kind: Kind, written: float, limit: float, warm_s: float, within: float) -> None:
    site = Site(4, shared(**{RATE_FIELD[kind]: written}))
    hungry = dict.fromkeys(range(4), 4 * limit)
    site.run(warm_s, hungry, kind)
    used = site.run(40, hungry, kind)
    assert sum(used) / 40 == pytest.approx(limit, rel=within)
    # Jain's index: (sum x)^2 / (n * sum x^2).
    assert sum(used) ** 2 / (4 * sum(one**2 for one in used)) >= 0.95
    assert sum(site.limits(kind)) <= written


def test_new_counter_starts_from_floor_with_short_mutes() -> None:
    site = Site(4, PRODUCE)
    site.run(3)
    ledger = site.ledgers[0]
    account = ledger.account("u", "c")
    # 4 instances: 1 % / 4 of 1 MB/s is 2500 B/s; 1 MB is 397 s over ten seconds of that.
    assert ledger.charge(account, Kind.PRODUCE, MB, site.now) == SOON_MS
    assert site.limits()[0] == pytest.approx(MB * RESERVE / 4)
    site.run(4)
    assert site.limits()[0] == pytest.approx(MB * (CAPACITY + RESERVE / 4), rel=0.01)
    assert ledger.check(account, Kind.PRODUCE, site.now) <= 1100  # 1 MB at 1 MB/s


def test_a_request_that_waits_for_old_debt_asks_for_a_share() -> None:
    site = Site(3, PRODUCE)
    site.run(3)
    account = site.ledgers[0].account("u", "c")
    site.ledgers[0].charge(account, Kind.PRODUCE, 200 * MB, site.now)
    site.run(90)  # a minute without use gives the share back
    assert site.limits()[0] == pytest.approx(MB * RESERVE / 3)
    site.run(5, {0: MB})
    assert site.limits()[0] == pytest.approx(MB * (CAPACITY + RESERVE / 3), rel=0.01)


def test_reload_changes_the_limit_and_keeps_the_share() -> None:
    site = Site(2, PRODUCE)
    both = dict.fromkeys(range(2), MB)
    site.run(10, dict.fromkeys(both, 4 * MB))
    before = site.limits()
    for ledger in site.ledgers:
        ledger.swap(shared(producer_byte_rate=2 * MB))
    site.run(0.1, both)
    assert site.limits() == pytest.approx([2 * one for one in before], rel=0.01)
    for ledger in site.ledgers:
        ledger.swap(QuotaTable([Entry(DEFAULT, None, producer_byte_rate=MB)]))
    site.run(2, both)
    assert (site.limits(), site.shares[0].count) == ([MB, MB], 0)


def test_shadow_and_candidate_limits_are_shared_as_well() -> None:
    shadow_entry = Entry(DEFAULT, None, producer_byte_rate=MB, mode="shadow", scope="fleet")
    candidate = CandidateLimits(consumer_byte_rate=MB / 2)
    on_trial = Entry(None, "c", consumer_byte_rate=MB, candidate=candidate, scope="fleet")
    site = Site(2, QuotaTable([shadow_entry, on_trial]))
    site.run(12, dict.fromkeys(range(2), 4 * MB))
    meters = site.ledgers[0].account("u", "c").meters
    shadow: Any = meters[Kind.PRODUCE].group
    assert shadow.shadowed.limit == shadow.limit == pytest.approx(MB / 2, rel=0.02)
    assert shadow.shadowed.throttled > 0
    site.run(8, {0: MB / 10}, Kind.FETCH)
    fetch: Any = meters[Kind.FETCH].group
    assert fetch.candidate.limit == pytest.approx(fetch.limit / 2)


def test_shares_connection_rates_and_allows_one_per_window() -> None:
    limits = ConnectionLimits([ConnectionEntry(EntityType.IP, DEFAULT, 10.0, scope="fleet")])
    site = Site(2, QuotaTable(connections=limits))
    admitted = [0, 0]
    assert isinstance(site.ledgers[0].connections.admit("10.0.0.9", None, 0.0), Ticket)
    for tick in range(36 * 20):
        site.now += 50.0
        for at, ledger in enumerate(site.ledgers):
            got = ledger.connections.admit("10.0.0.1", None, site.now)
            admitted[at] += isinstance(got, Ticket) and tick > 12 * 20
            assert isinstance(got, Ticket) or got.limit <= 10.0
        if tick % 5 == 0:
            site.step()
    # 24 s of 10/s, two of the cycles in which a window lets pass ten seconds' worth and then nothing.
    assert sum(admitted) == pytest.approx(240, rel=0.1)
    assert admitted[0] == pytest.approx(admitted[1], rel=0.2)


def test_overlay_keeps_the_scope() -> None:
    table = QuotaTable([Entry("a", None, producer_byte_rate=MB, scope="fleet")], default_scope="instance")
    overlay = {(("user", name),): {"producer_byte_rate": 5.0} for name in "ab"}
    changed = laid_over(table, overlay)
    assert [changed.of_fleet(changed.get(name, None)) for name in "ab"] == [True, False]
    of_fleets = laid_over(QuotaTable(default_scope="fleet"), overlay)
    assert of_fleets.of_fleet(of_fleets.get("b", None))


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_a_window_s_past_moves_with_the_share(level: float) -> None:
    rate = SampledRate()
    for second in range(20):
        rate.record(100.0, second * 1000)
    before = rate.measure(19_500)
    rate.move(100.0, 25.0, level, 19_500)
    assert rate.measure(19_500) == pytest.approx(before / 4)
    # 75/s more of a window that is full to `level`; ten seconds of it, over the 10.5 s that the window is long now.
    rate.move(25.0, 100.0, level, 19_500)
    assert rate.measure(19_500) == pytest.approx(before / 4 + 75 * level * 10 / 10.5, rel=0.06)
    for second in range(20, 40):
        rate.record(100.0, second * 1000)
    assert rate.measure(39_000) == pytest.approx(100.0, rel=0.1)


def test_a_window_in_which_nothing_was_is_filled_evenly() -> None:
    rate = SampledRate()
    rate.move(1.0, 101.0, 1.0, 50_000)
    assert rate.measure(50_000) == pytest.approx(100.0)
    assert rate.measure(55_000) == pytest.approx(50.0, rel=0.2)
    assert rate.empty(61_000)


def test_many_groups_are_split_in_many_steps() -> None:
    many = 600
    site = Site(1, QuotaTable([Entry(client_id=DEFAULT, scope="fleet", producer_byte_rate=MB)]))
    ledger, shares = site.ledgers[0], site.shares[0]
    shares.fleet.connected(1)
    accounts = [ledger.account("u", f"c{number}") for number in range(many)]

    def steps() -> Iterator[None]:
        site.log = yield from shares.steps(site.now)

    most = 0
    for tick in range(28):
        site.now += 250.0
        for account in accounts if tick % 4 == 0 else ():
            ledger.charge(account, Kind.PRODUCE, 10.0, site.now)
        for partition, data in site.log:
            shares.fleet.read(partition, data, site.now)
        most = max(most, 1 + sum(1 for _ in steps()))
    assert most >= 4 * many / STEP
    assert min(group.limit or 0.0 for group in ledger.groups(Kind.PRODUCE)) == pytest.approx(MB, rel=0.01)
