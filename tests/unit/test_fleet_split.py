"""The split of one limit among instances: the arithmetic, and what is held of it whatever happens to records."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota.entity import CounterKey
from quota.fleet.claim import exact
from quota.fleet.core import Fleet, ShareReason
from quota.fleet.demand import DemandEstimate
from quota.fleet.record import FleetRecordError, GroupUse, Record, decode, encode, group_hash
from quota.fleet.split import CAPACITY, RESERVE, floor_share, grant_of
from quota.fleet.timing import Timing
from quota.fleet.view import View
from quota.steps import whole
from tests.support.examples import examples
from tests.support.fleet_site import GROUP, HUNGRY, SEAL, Site

NEVER_MORE = CAPACITY + 1e-9
FRACTIONS = st.floats(0.0, 1.0, allow_nan=False, width=32)


def test_divides_spare_capacity_equally() -> None:
    # 1.0 - 0.3 = 0.7 is left, 0.35 for each on top of its demand.
    assert [grant_of(0.1, [0.2], 1.0), grant_of(0.2, [0.1], 1.0)] == pytest.approx([0.45, 0.55])


@given(st.lists(FRACTIONS, min_size=1, max_size=40))
@settings(max_examples=examples(300))
def test_grants_of_the_same_records_add_up_to_the_capacity(demands: list[float]) -> None:
    """Never above the limit, and nothing of it lost: with the floors of as many instances it is the whole limit."""
    grants = [grant_of(mine, demands[:at] + demands[at + 1 :]) for at, mine in enumerate(demands)]
    floors = floor_share(len(demands)) * len(demands)
    assert sum(grants) == pytest.approx(CAPACITY)
    assert sum(grants) + floors <= 1.0 + 1e-9
    # Work-conserving: an instance that has less than it wants has no less than any other.
    hungry = [grant for grant, demand in zip(grants, demands, strict=True) if grant < demand - 1e-9]
    assert all(grant >= max(grants) - 1e-9 for grant in hungry)


MEMBERS = st.integers(0, 2**64 - 1)
USES = st.lists(st.builds(GroupUse, MEMBERS, FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS)).map(tuple)
FIELDS = st.tuples(MEMBERS, st.integers(0, 2**63), st.integers(1, 600_000), st.booleans(), st.text(max_size=20), USES)


@given(FIELDS)
def test_records_come_back_as_they_were(fields: tuple[Any, ...]) -> None:
    record = Record(*fields)
    found = decode(SEAL, 0, encode(SEAL, 0, record))
    assert found._replace(name="") == record._replace(name="", has_groups=bool(record.groups))


def _data(**changes: float) -> bytes:
    use = GroupUse(GROUP, 1.0, 0.5, 0.5, 0.25, 0.25)._replace(**changes)
    return encode(SEAL, 0, Record(1, 7, 1000, False, "a", (use,)))


@given(st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    for each in (data, _data()[:48] + data):
        with suppress(FleetRecordError):
            assert all(0 <= use.held <= 1 and 0 <= use.claim <= 1 for use in decode(SEAL, 0, each).groups)


MALFORMED = {
    "empty": b"",
    "cut": b"kq",
    "short": _data()[:-1],
    "long": _data() + b"\0",
    "magic": b"KQ" + _data()[2:],
    "flags": b"kq\2\2" + _data()[4:],
    "nan": _data(held=float("nan")),
    "above": _data(claim=1.5),
    "below": _data(demand=-0.1),
    "infinite": _data(usage=float("inf")),
    "level": _data(level=float("nan")),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_records_are_ignored_and_counted(data: bytes) -> None:
    fleet = Site(1).fleets[0]
    fleet.read(0, data, 0.0)
    assert fleet.ignored["malformed"] == 1
    assert not fleet.view.members


def test_tells_groups_apart_by_kind_and_names() -> None:
    keys = [CounterKey(*names) for names in (("a", None), (None, "a"), ("a", ""), ("a", "a"), ("", "a"))]
    assert len({group_hash(kind, key) for kind in ("produce", "fetch") for key in keys}) == 10


@given(FRACTIONS)
def test_fractions_are_read_as_they_were_meant(fraction: float) -> None:
    meant = exact(fraction)
    assert meant <= fraction
    assert decode(SEAL, 0, _data(held=meant)).groups[0].held == meant


def test_requests_what_it_uses_and_more_when_throttled() -> None:
    estimate = DemandEstimate()
    asked = [estimate.sample(0.1, True, 0.1, 0.2) for _ in range(6)]
    # 1.5 * 0.2 and 3 * 0.2, two samples each; then everything.
    assert asked == pytest.approx([0.3, 0.3, 0.6, 0.6, 1.0, 1.0])
    for used, demand in ((0.2, 0.21), (0.0, 0.0)):
        estimate = DemandEstimate()
        assert [estimate.sample(used, False, 0.5, 0.5) for _ in range(6)][-1] == pytest.approx(demand)


@given(st.lists(st.sampled_from([0.0, 0.05, 0.2, 2.0]), min_size=2, max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_nothing_is_lost_while_an_instance_waits(wants: list[float]) -> None:
    """Its limit but for the floors of the idle, and the 5 % by which those that have enough ask for more."""
    site = Site(len(wants), wants=0.0)
    site.run(3.0, NEVER_MORE)
    site.wants(*wants)
    site.run(12.0, NEVER_MORE)
    used = sum(map(min, wants, site.shares()))
    assert used >= min(sum(wants), CAPACITY) - 0.05 * sum(want for want in wants if want < 1) - 1e-3


def test_without_records_keeps_share_then_divides_limit() -> None:
    site = Site(4, wants=0.1)
    silent = site.fleets[0]
    site.want[silent] = HUNGRY
    site.run(6.0, NEVER_MORE)
    before = site.shares()[0]
    site.silent.add(silent)
    site.run(4.5)
    assert site.shares()[0] == pytest.approx(before, rel=0.05)
    assert silent.standing(GROUP, site.now).why is ShareReason.LAST
    site.run(10.5)
    standing = silent.standing(GROUP, site.now)
    assert (standing.share, standing.why, silent.lost) == (0.25, ShareReason.ALONE, True)
    # The others have taken over what it held, and give it back when it is heard again.
    site.wants(*[HUNGRY] * 4)
    site.run(5.0)
    assert site.shares()[1] > 0.3
    site.silent.clear()
    site.run(10.0)
    assert not silent.lost
    assert site.held() <= NEVER_MORE
    assert site.shares() == pytest.approx([0.25] * 4, rel=0.02)


def test_instance_that_hears_no_other_divides_limit() -> None:
    fleet = Fleet(SEAL, 1, "a", 0.0, at_least=4)
    fleet.join(GROUP, 0.0)
    assert fleet.share(GROUP) == RESERVE / 4
    assert whole(fleet.steps(14_000.0)) == []
    assert fleet.share(GROUP) == RESERVE / 4
    whole(fleet.steps(15_001.0))
    assert (fleet.share(GROUP), fleet.lost) == (0.25, True)


def test_the_interval_grows_with_the_instances_in_a_partition() -> None:
    timing = Timing()
    assert [timing.interval_of(count) for count in (1, 250, 1000, 10_000)] == [1000, 1000, 4000, 40_000]


def test_an_unused_group_is_published_once_more_and_then_not() -> None:
    site = Site(2)
    site.wants(0.2, 0.0)
    site.run(3.0)
    site.wants(0.0, 0.0)
    site.run(70.0)
    assert decode(SEAL, *site.log[-1]).groups == ()
    assert site.fleets[1].standing(GROUP, site.now).instances == 1


def test_only_the_partitions_of_groups_that_are_here_are_read() -> None:
    fleet = Fleet(SEAL, 1, "a", 0.0)
    fleet.join(10, 0.0)
    fleet.connected(7)
    fleet.join(12, 0.0)
    assert fleet.wanted == {0, 3, 5}
    fleet.part(12)
    assert fleet.wanted == {0, 3}


def test_usage_of_killed_instance_fades() -> None:
    site = Site(2)
    site.run(8.0)
    site.fleets.pop()
    fleet, killed_ms = site.fleets[0], site.now
    levels = []
    for _ in range(22 * 4):
        site.run(0.25)
        levels.append((site.now - killed_ms, fleet.level(GROUP, site.now), fleet.share(GROUP)))
    # Its last record was at most one interval before the kill: it is gone after 9 to 10 s. Then its level fades.
    assert min(level for after_ms, level, _ in levels if after_ms < 9_000) == pytest.approx(1.0)
    assert min(share for after_ms, _, share in levels if after_ms > 14_000) > 0.98
    assert min(level for _, level, _ in levels) > 0.9, "while the share grows, what fades is used by the other"


@pytest.mark.parametrize(
    ("now", "level"), [(10_000.0, 0.0), (10_001.0, 0.8), (15_000.0, 0.4), (19_999.0, 0.0), (20_000.0, 0.0)]
)
def test_level_of_gone_instance_fades_over_a_window(now: float, level: float) -> None:
    view = View(Timing())
    view.follow(GROUP)
    view.take(0, Record(9, 0, 1000, False, "other", (GroupUse(GROUP, 0.0, 1.0, 0.8, 1.0, 1.0),)), 0.0)
    assert view.level_of_gone(GROUP, now) == pytest.approx(level, abs=1e-4)


def test_probing_instance_is_not_forgotten_sooner() -> None:
    fleet = Site(1).fleets[0]
    fleet.read(0, encode(SEAL, 0, Record(9, 0, 1000, False, "other", ())), 0.0)
    for now in range(0, 12_000, 50):
        whole(fleet.steps(float(now)))
    assert fleet.view.instances(11_750.0) == 1
    assert fleet.view.instances(31_000.0) == 0, "three of those were missed"
