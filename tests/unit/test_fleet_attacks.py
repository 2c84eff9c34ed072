"""What others write to the fleet's topic, captured or made up, changes nothing; work and memory stay bounded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.app.sources.security import BadFileError, FleetKeys
from quota.fleet import claim, core, view
from quota.fleet.record import GroupUse, Record, Seal, decode, encode
from quota.fleet.split import CAPACITY, floor_share
from quota.fleet.timing import Timing
from quota.fleet.view import View
from quota.steps import whole
from tests.support import fleet_site
from tests.support.fleet_site import GROUP, ID, SEAL, TOPIC
from tests.support.turns import Watch, growth

OLD, NEW, STRANGE = b"old" * 12, b"new" * 12, b"strange" * 5
STRANGER = Seal([STRANGE], TOPIC, ID)
SEQ = 2**64 - 1
ALL = GroupUse(GROUP, 1e9, 1.0, 1.0, 1.0, 1.0)
Written = tuple[int, bytes]


class Site(fleet_site.Site):
    def forged(self, record: Record, seal: Seal = STRANGER) -> Written:
        return 0, encode(seal, 0, record._replace(written_ms=int(self.now)))

    def forge(self, record: Record) -> None:
        self.log.append(self.forged(record, SEAL))


def _goodbye(fleet: core.Fleet) -> Record:
    return Record(fleet.member, SEQ, 1000, True, "", ())


def _captured_goodbye(site: Site) -> list[Written]:
    third = site.start()
    site.run(8)
    (_, goodbye), *_ = found = third.leave(site.now)
    site.fleets.remove(third)
    for fleet in site.fleets:
        data = goodbye[:12] + fleet.member.to_bytes(8, "big") + goodbye[20:]
        found += [(partition, data) for partition in range(4)]
    return found


OTHERS = Seal([OLD], "staging-fleet", ID), Seal([OLD], TOPIC, "staging")
ATTACKS: dict[str, tuple[Callable[[Site], list[Written]], int, int]] = {
    "goodbyes": (lambda site: [site.forged(_goodbye(one)) for one in site.fleets], 2, 0),
    "crowd": (lambda site: [site.forged(Record(one, 0, 600_000, False, "", (ALL,))) for one in range(1000)], 1000, 0),
    "captured goodbye": (_captured_goodbye, 8, 0),
    "other partition": (lambda site: [(to, data) for _, data in site.log[-8:] for to in (1, 2, 3)], 24, 0),
    "other topic": (lambda site: [site.forged(_goodbye(site.fleets[0]), seal) for seal in OTHERS], 1, 1),
    "old": (lambda site: site.log[:400], 0, 0),
}
"""What is written to the topic, and how many of it are ignored for their MAC, and as another fleet's."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_leaves_shares_unchanged(attack: str) -> None:
    written, bad_mac, other_fleet = ATTACKS[attack]
    site = Site()
    site.run(10)
    repeated = [fleet.view.repeated for fleet in site.fleets]
    site.log += written(site)
    site.run(20)
    assert site.shares() == pytest.approx([0.5, 0.5], rel=0.02)
    for fleet, before in zip(site.fleets, repeated, strict=True):
        assert (fleet.known, fleet.ignored["bad_mac"], fleet.ignored["other_fleet"]) == (2, bad_mac, other_fleet)
        assert fleet.ignored["malformed"] == 0
        assert (fleet.view.repeated > before) == (attack == "old")


def test_records_of_a_dead_instance_expire() -> None:
    site = Site(3)
    site.run(8)
    dead = site.fleets.pop()
    captured = [one for one in site.log if decode(SEAL, *one).member == dead.member]
    for minutes in (1, 4, 12):
        site.run(minutes * 60 - site.now / 1000)
        newcomer = site.start() if minutes == 12 else None
        for record in captured:
            site.log.append(record)
            site.run(0.5)
        for one in site.fleets:
            assert dead.member not in {who for who, _ in one.view.group(GROUP, site.now)}
        assert newcomer is None or newcomer.ignored["outdated"] == len(captured)


def test_duplicate_instance_ids_become_two() -> None:
    site = Site(3)
    site.fleets[1].member = site.fleets[0].member
    site.run(20)
    assert len({fleet.member for fleet in site.fleets}) == 3
    assert site.fleets[0].renumbered + site.fleets[1].renumbered >= 1
    assert sum(site.shares()) <= 1.0 + 1e-9
    assert site.shares() == pytest.approx([1 / 3] * 3, rel=0.02)


@pytest.mark.parametrize("ticks", range(80, 84))
def test_newcomer_to_group_hears_others_first(ticks: int) -> None:
    site = Site()
    late = site.fleets.pop()
    late.part(GROUP)
    late.join(GROUP + 4, 0.0)
    for _ in range(ticks):
        site.run(0.25)
        for partition, data in site.log[site.read[late] :]:
            late.read(partition, data, site.now)
        site.read[late] = len(site.log)
        late.sample(GROUP + 4, 1.0, 0.1, 0.1, False, site.now)
        site.log += whole(late.steps(site.now))
    assert site.shares()[0] > 0.98
    late.join(GROUP, site.now)
    site.fleets.append(late)
    site.lag = 8  # ticks of 250 ms by which the holder reads later
    for _ in range(60):
        site.run(0.25)
        assert sum(site.shares()) <= 1.0 + 1e-9
    assert site.shares() == pytest.approx([0.5, 0.5], rel=0.02)


def test_only_own_groups_are_kept() -> None:
    def read(groups: int, watch: Watch) -> None:
        site = Site()
        uses = tuple(ALL._replace(group=4 * number) for number in range(groups))
        for member in range(5):
            site.forge(Record(member, 0, 600_000, False, "", uses))
        watch(lambda: site.run(1))
        assert [len(fleet.view._groups) for fleet in site.fleets] == [1, 1]
        site.fleets[0].part(GROUP)
        assert not site.fleets[0].view._groups

    assert growth(read, 2500) < 8


def test_memory_is_bounded_for_any_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_MEMBERS", 50)
    monkeypatch.setattr(view, "MAX_USES", 60)
    seen = View(Timing())
    for group in range(4):
        seen.follow(group)
    for member in range(100):
        uses = tuple(ALL._replace(group=group) for group in range(8))
        seen.take(0, Record(member, 0, 1000, False, "", uses), 0.0)
    assert (len(seen.members), sum(map(len, seen._groups.values()))) == (50, 60)
    assert seen.refused == 50 + (50 * 4 - 60)
    for second in range(10, 700):
        seen.sweep(second * 1000.0)
    assert (len(seen.members), seen._uses) == (0, 0)


def test_memory_is_bounded_while_no_own_record_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_IN_FLIGHT", 20)
    monkeypatch.setattr(claim, "MAX_SENT", 20)
    site = Site()
    silent = site.fleets[0]
    site.run(10)
    site.silent.add(silent)
    site.run(60)
    assert silent.lost
    kept = [len(one.in_flight) for one in silent._partitions.values()] + [len(silent._own[GROUP].claim._sent)]
    assert max(kept) == 20
    site.silent.clear()
    site.run(20)
    assert not silent.lost
    assert site.shares() == pytest.approx([0.5, 0.5], rel=0.02)


def test_ignores_implausible_intervals() -> None:
    site = Site()
    site.run(10)
    site.forge(Record(7, 0, 600_000, False, "", (ALL,)))
    site.run(5)
    assert max(site.shares()) < 0.4
    site.run(90)  # 10 * 8 * 1 s
    assert site.shares() == pytest.approx([0.5, 0.5], rel=0.02)


def test_an_instance_without_the_key_is_alone() -> None:
    site = Site(seals=[SEAL, SEAL, STRANGER])
    site.run(15)
    assert site.shares() == pytest.approx([0.5, 0.5, CAPACITY + floor_share(1)], rel=0.02)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "got 0 keys, expected 1 to 4, one a line"),
        ("\n".join(["k" * 32] * 5), "got 5 keys, expected 1 to 4, one a line"),
        (f"{'k' * 32}\nsecret\n", "key 2 has 6 characters, expected at least 32 (openssl rand -base64 32)"),
        ("k" * 5000, "at most 4096 are read"),
    ],
    ids=["missing", "empty", "many", "short", "large"],
)
def test_a_file_without_good_keys_is_refused(content: str | None, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadFileError) as caught:
        FleetKeys(str(path))
    assert complaint in str(caught.value)
    assert f"fleet.key_file {path}" in str(caught.value)


def test_keys_are_lines_and_the_first_one_signs(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{NEW.decode()}\n\n  {OLD.decode()}\n")
    keys = FleetKeys(str(path)).current
    assert keys == (NEW, OLD)
    record = Record(1, 2, 1000, False, "", ())
    assert encode(Seal(keys, TOPIC, ID), 3, record) == encode(Seal([NEW], TOPIC, ID), 3, record)
