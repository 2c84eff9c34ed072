"""What one instance has read: which instances exist, and each one's last report about each group that it follows.

Times are the reader's own: when a record arrived, never when it was written. Memory and work are bounded whatever
records say: only groups that are followed are kept, and no more members, reports and time than the limits below.
"""

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Final

from quota.fleet.record import GroupUse, Record
from quota.fleet.timing import Timing

MAX_MEMBERS: Final = 50_000
"""More members than any fleet has, those that are gone for some minutes included; further ones are ignored."""
MAX_USES: Final = 200_000
"""Members' reports about groups that are kept, some 70 MB; further ones are ignored. A thousand instances that share
200 groups."""
MISSED: Final = 3
"""Presence records that may be missing before an instance counts as gone."""
MOVED: Final = 0.3
"""A demand that changed by more than this fraction of itself moves the split at once, not at the next interval."""
_SWEEP_MS: Final = 1000
_AT_ONCE: Final = 2000
"""Reports that one sweep looks at, some tenths of a millisecond; the next one goes on from there."""


@dataclass(slots=True)
class LastUse:
    """One member's last report about one group."""

    use: GroupUse
    gone_ms: float
    """Its member leaves the split after this time, unless it reports again before."""

    @property
    def bound(self) -> float:
        """The most that the member uses of the group until its next record: what it holds or claims."""
        return max(self.use.held, self.use.claim)


@dataclass(slots=True)
class FleetPeer:
    """One process of the fleet."""

    gone_after_ms: float
    """It is forgotten after this long without any record."""
    at_ms: float = 0.0
    left: bool = False
    """It has left. Processes do not come back: a new one has another number."""
    seqs: dict[int, int] = field(default_factory=dict)
    """The last sequence number by partition."""


class View:
    """The last records of all members. `partitions` may be read at different speeds: each has its own order."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.members: Final[dict[int, FleetPeer]] = {}
        self._groups: dict[int, dict[int, LastUse]] = {}
        """The last reports about each group that is followed, by member."""
        self._uses = 0
        self._to_sweep: list[int] = []
        self._writers: dict[int, dict[int, float]] = {}
        """By partition, the members that report groups in it, and until when that counts."""
        self._next_sweep = 0.0
        self._counted = 0
        self._count_until = 0.0
        self.moves: Final[Counter[int]] = Counter()
        """By group, how often a demand has moved."""
        self.repeated = 0
        """Records older than one already read: repeated, or overtaken."""
        self.refused = 0
        """Records of members and reports of groups beyond the limits."""

    @property
    def followed(self) -> Container[int]:
        """The groups whose reports are kept."""
        return self._groups

    def follow(self, group: int) -> None:
        """Keep what members report about this group from now on."""
        self._groups.setdefault(group, {})

    def unfollow(self, group: int) -> None:
        """Forget what they reported about it."""
        self._uses -= len(self._groups.pop(group, ()))
        self.moves.pop(group, None)

    def take(self, partition: int, record: Record, now: float) -> None:
        """A record arrived. One that is not newer than the member's last one changes nothing."""
        member = self.members.get(record.member)
        if member is None:
            if len(self.members) >= MAX_MEMBERS:
                self.refused += 1
                return
            member = self.members[record.member] = FleetPeer(MISSED * self._timing.presence * self._timing.interval_ms)
        if member.left or record.seq <= member.seqs.get(partition, -1):
            self.repeated += 1
            return
        member.seqs[partition] = record.seq
        member.at_ms = now
        if record.leaving:
            self._forget(record.member, now)
            return
        timing = self._timing
        far_ms = timing.far * timing.interval_of(len(self.members))
        ends = now + timing.forget * min(record.interval_ms, far_ms)
        if record.has_groups:
            self._writers.setdefault(partition, {})[record.member] = ends
        else:  # a probe whether anything comes back says nothing of its presence interval
            own_ms = timing.presence * timing.interval_ms
            member.gone_after_ms = float(MISSED * max(min(record.interval_ms, timing.presence * far_ms), own_ms))
        for use in record.groups:
            group = self._groups.get(use.group)
            if group is not None:
                self._take_use(group, record.member, use, ends)

    def _take_use(self, group: dict[int, LastUse], member: int, use: GroupUse, ends: float) -> None:
        before = group.get(member)
        was = 0.0 if before is None else before.use.demand
        if abs(use.demand - was) > MOVED * max(use.demand, was) or (use.held == 0) != (before is None):
            self.moves[use.group] += 1
        if not (use.demand or use.held or use.claim or use.level):
            self._uses -= group.pop(member, None) is not None
        elif before is not None:
            before.use, before.gone_ms = use, ends
        elif self._uses < MAX_USES:
            self._uses += 1
            group[member] = LastUse(use, ends)
        else:
            self.refused += 1

    def group(self, group: int, now: float) -> Iterator[tuple[int, LastUse]]:
        """What members that are not forgotten report of a group."""
        for member, seen in self._groups.get(group, {}).items():
            if now <= seen.gone_ms:
                yield member, seen

    def level_of_gone(self, group: int, now: float) -> float:
        """What gone members have left in the fleet's window, as :attr:`GroupUse.level`.

        All of it when they are forgotten, nothing a window later: level * (1 - time since then / window). A member that
        takes over their share takes over a window that is as full; otherwise ten seconds' worth would pass at once.
        """
        window_ms = self._timing.window_ms
        return sum(
            [
                seen.use.level * (1.0 - (now - seen.gone_ms) / window_ms)
                for seen in self._groups.get(group, {}).values()
                if seen.gone_ms < now < seen.gone_ms + window_ms
            ]
        )

    def instances(self, now: float) -> int:
        """The number of instances heard of; counted once a second."""
        if now >= self._count_until:
            self._count_until = now + _SWEEP_MS
            peers = self.members.values()
            self._counted = sum(1 for one in peers if not one.left and now - one.at_ms <= one.gone_after_ms)
        return self._counted

    def writers(self, partition: int, now: float) -> int:
        """How many instances report groups in a partition."""
        return sum(1 for ends in self._writers.get(partition, {}).values() if ends >= now)

    def sweep(self, now: float) -> None:
        """Drop what is forgotten: all of it once a second, in pieces of bounded work."""
        left = _AT_ONCE
        while self._to_sweep and left > 0:
            group = self._groups.get(self._to_sweep.pop(), {})
            left -= 1 + len(group)
            gone = [one for one, seen in group.items() if now > seen.gone_ms + self._timing.window_ms]
            self._uses -= len(gone)
            for member in gone:
                del group[member]
        if self._to_sweep or now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_MS
        self._to_sweep = list(self._groups)
        for writers in self._writers.values():
            for one in [one for one, ends in writers.items() if ends < now]:
                del writers[one]
        # As long as one of its records may still be young enough to count, so that none counts twice.
        kept_ms = 2 * self._timing.max_age_ms
        for one in [one for one, member in self.members.items() if now - member.at_ms > kept_ms + member.gone_after_ms]:
            del self.members[one]

    def _forget(self, leaving: int, now: float) -> None:
        self.members[leaving].left = True
        for key, group in self._groups.items():
            seen = group.get(leaving)
            if seen is not None and now <= seen.gone_ms:
                seen.gone_ms = nextafter(now, -inf)  # from now on, this very millisecond included
                self.moves[key] += 1
        for writers in self._writers.values():
            writers.pop(leaving, None)
