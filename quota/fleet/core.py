"""One instance of a fleet: its groups, what it reads, what it publishes, and what it may use. Sans-IO.

The caller passes in what was read (:meth:`Fleet.read`), the state of its groups (:meth:`Fleet.sample`) and the time
(:meth:`Fleet.steps`), publishes what is returned, and applies :meth:`Fleet.share`. Times are monotonic milliseconds.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from quota.fleet.claim import Claim, exact
from quota.fleet.demand import DemandEstimate
from quota.fleet.record import MAC_BYTES, FleetRecordError, GroupUse, Record, Seal, decode, encode, next_member
from quota.fleet.split import CAPACITY, floor_share, grant_of
from quota.fleet.timing import Timing
from quota.fleet.view import MOVED, LastUse, View
from quota.steps import Steps

LEARNING: Final = 1.25
"""Intervals for which a group is only read: every member that reports it has then been heard."""
_WORTH: Final = 0.02
"""A grant that changes by less than this fraction of itself waits for the next interval."""

Outgoing = tuple[int, bytes]
"""A partition and the record to publish there."""


class ShareReason(StrEnum):
    """Where a share comes from."""

    SPLIT = "split"
    """The fleet's split."""
    FLOOR = "floor"
    """The floor alone: not used here lately, or just now for the first time."""
    LAST = "last"
    """Our own records do not come back: the last share stays for a while."""
    ALONE = "alone"
    """They have not for longer: the limit / known instances."""


class FleetStatus(NamedTuple):
    """The state of a group, for metrics and people."""

    share: float
    """What this instance may use, as a fraction of the limit."""
    why: ShareReason
    demand: float
    usage: float
    """The whole fleet's rate, in the group's unit per second."""
    instances: int
    """Those that reported the group."""
    known: int
    """All instances of the fleet."""


class _Sent(NamedTuple):
    at_ms: float
    """When it was handed over to be published."""
    mac: bytes


@dataclass(slots=True)
class _Partition:
    sent_ms: float = float("-inf")
    in_flight: dict[int, _Sent] = field(default_factory=dict)
    """By sequence number, oldest first, our own records that were not read back yet."""
    learned_from: float | None = None
    """When our first own record came back."""
    lost: bool = False

    @property
    def oldest_ms(self) -> float | None:
        """When the oldest of our own records that did not come back was handed over."""
        return next((sent.at_ms for sent in self.in_flight.values()), None)


@dataclass(slots=True)
class _Own:
    group: int
    partition: int
    since: float
    """From then on the others' reports of it are kept."""
    claim: Claim
    estimate: DemandEstimate
    usage: float = 0.0
    level: float = 0.0
    used_ms: float | None = None
    """When it was last used; None: never, so it is not published."""
    published: float = 0.0
    """The demand that was published last."""
    raising: bool = False
    """A claim above what is held has been published once."""
    moves: int = 0
    """The view's count of moves at the last check."""
    lowered: bool = False
    """What is held was lowered, and no record has said so yet."""


STEP: Final = 100
"""Groups of one step."""
RECORD: Final = 250
"""Groups of one record: to write or read it takes a millisecond or two."""
MAX_IN_FLIGHT: Final = 1000
"""Own records of a partition that may still come back; while none does, there is one more for each interval."""


class Fleet:
    """See the module. `member` is a random 64-bit number, drawn by each process."""

    def __init__(
        self,
        seal: Seal,
        member: int,
        name: str,
        now: float,
        *,
        timing: Timing | None = None,
        at_least: int = 1,
        view: View | None = None,
    ) -> None:
        """`at_least`: the number of instances known without hearing of any. `view`: shared with others that read at the
        same speed (simulations)."""
        self.timing: Final = timing or Timing()
        self.view: Final = view or View(self.timing)
        self.seal = seal
        """Another one takes its place when the keys change."""
        self.member = member
        self.renumbered = 0
        """How often another instance used our number, and a new one took its place."""
        self.epoch_ms = 0.0
        """What the wall clock shows less the time that is given as `now`; the caller keeps it current."""
        self._name = name
        self._at_least = at_least
        self._started = now
        self._seq = 0
        self._count = 0
        self._partitions: dict[int, _Partition] = {}
        self._own: dict[int, _Own] = {}
        self._groups_in: Counter[int] = Counter()
        """By partition."""
        self._left = False
        self._alone = False
        """The topic was not found for longer than other instances may need to start."""
        self._present_ms = self._count_ms = float("-inf")
        self.ignored: Final[Counter[str]] = Counter()
        """Records that were read and changed nothing: by `FleetRecordError.outcome`, or outdated, which were written
        too long ago, or in the future, by this host's clock."""
        self.known = max(at_least, 1)
        """The number of instances."""

    # ---- what the caller reports ------------------------------------------------------------------------------------

    def connected(self, partitions: int) -> None:
        """The topic was found and has this many partitions."""
        self._count = partitions
        self._partitions.setdefault(0, _Partition())
        self._groups_in.clear()
        for own in self._own.values():
            own.partition = own.group % partitions
            self._groups_in[own.partition] += 1
            self._partitions.setdefault(own.partition, _Partition())

    @property
    def wanted(self) -> frozenset[int]:
        """Partitions to be read: that of the instances and those of this instance's groups."""
        return frozenset(self._partitions)

    def join(self, group: int, now: float) -> None:
        """This instance has a counter of this group."""
        if group in self._own:
            return
        partition = self._partition_of(group)
        self._own[group] = _Own(group, partition, now, Claim(), DemandEstimate())
        self._groups_in[partition] += 1
        self.view.follow(group)
        if self._count and partition not in self._partitions:
            self._partitions[partition] = _Partition()

    def part(self, group: int) -> None:
        """It no longer has. The others' reports of the group are forgotten."""
        own = self._own.pop(group, None)
        self.view.unfollow(group)
        if own is not None:
            self._groups_in[own.partition] -= 1
            if own.partition and not self._groups_in[own.partition]:
                self._partitions.pop(own.partition, None)

    def sample(self, group: int, usage: float, fraction: float, level: float, short: bool, now: float) -> None:
        """Half a second of a group: `usage` is its rate, `fraction` the same over the limit, `level` how full its
        window is as a fraction of the whole limit's, `short` whether the limit throttled clients."""
        own = self._own[group]
        own.usage, own.level = usage, min(level, 1e6)
        if usage > 0 or short:
            own.used_ms = now
        if own.used_ms is None:
            return
        share = own.claim.held + floor_share(self.known)
        own.estimate.sample(fraction, short, share, CAPACITY / self.instances(group, now))

    def read(self, partition: int, data: bytes, now: float) -> None:
        """A record of the topic, in the order of its partition. Only a record of this fleet changes anything."""
        try:
            record = decode(self.seal, partition, data, self.view.followed)
        except FleetRecordError as error:
            self.ignored[error.outcome] += 1
        else:
            if abs(now + self.epoch_ms - record.written_ms) > self.timing.max_age_ms:
                self.ignored["outdated"] += 1
            elif record.member != self.member:
                self.view.take(partition, record, now)
            elif self._is_own(partition, record, data[-MAC_BYTES:]):
                self.view.take(partition, record, now)
                self.came_back(partition, record, now)

    def _is_own(self, partition: int, record: Record, mac: bytes) -> bool:
        """Whether a record with our number is one of ours that has not come back yet."""
        mine = self._partitions.get(partition)
        sent = None if mine is None else mine.in_flight.get(record.seq)
        if sent is not None and sent.mac == mac:
            return True
        if sent is None and record.seq < self._seq:
            self.view.repeated += 1
        else:
            self._renumber(mac)
        return False

    def _renumber(self, mac: bytes) -> None:
        """Another instance uses our number (a copied virtual machine): continue under a new one, from the floor. What
        the old one holds is the other's."""
        self.renumbered += 1
        self.member = next_member(self.member, mac)
        for partition in self._partitions.values():
            partition.in_flight.clear()
        for own in self._own.values():
            own.claim, own.raising = Claim(), False
        self._present_ms = float("-inf")

    def came_back(self, partition: int, record: Record, now: float) -> None:
        """One of our own records was read, and with it all earlier ones of its partition."""
        mine = self._partitions[partition]
        for seq in [seq for seq in mine.in_flight if seq <= record.seq]:
            del mine.in_flight[seq]
        if mine.learned_from is None:
            mine.learned_from = now
        for use in record.groups:
            own = self._own.get(use.group)
            if own is not None and not self._lost(own.partition):
                own.claim.came_back(record.seq, self._available(own.group, now))
                own.raising = own.claim.held < use.claim * (1 - _WORTH)

    def steps(self, now: float) -> Steps[list[Outgoing]]:
        """Some time has passed (a quarter of an interval, say). Returns what to publish now, after steps of less than a
        millisecond. Groups may come and go between two, and nothing be read."""
        view = self.view
        if self._left:
            return []
        view.sweep(now)
        yield from self._look_who_is_there(now)
        used: dict[int, list[_Own]] = {}
        """By partition."""
        for number, own in enumerate(list(self._own.values()), 1):
            moves = view.moves[own.group]
            if moves != own.moves:
                own.moves = moves
                self._settle_for_less(own, now)
            if own.used_ms is not None:
                used.setdefault(own.partition, []).append(own)
            if number % STEP == 0:
                yield
        found: list[Outgoing] = []
        if not self._count:
            return found
        for number, partition in list(self._partitions.items()):
            interval_ms = self.timing.interval_of(view.writers(number, now))
            if now < partition.sent_ms + interval_ms / self.timing.urgent:
                continue
            groups = used.get(number, [])
            if now < partition.sent_ms + interval_ms and not (yield from self._any_urgent(groups)):
                continue
            # Without groups: to find out whether anything comes back.
            for start in range(0, len(groups) or bool(partition.in_flight), RECORD):
                mine = [own for own in groups[start : start + RECORD] if own.group in self._own]
                uses = tuple([self._use(own, now) for own in mine])
                found.append(self._send(number, partition, interval_ms, uses, now))
                partition.sent_ms = now
                if len(groups) > RECORD:
                    yield
        presence_ms = max(self.timing.presence * self.timing.interval_ms, self.timing.interval_of(self.known))
        if now >= self._present_ms + presence_ms:  # a record that says only that the instance exists
            self._present_ms = now
            found.append(self._send(0, self._partitions[0], presence_ms, (), now, self._name))
        return found

    def _any_urgent(self, groups: list[_Own]) -> Steps[bool]:
        for start in range(0, len(groups), STEP):
            if any(self._urgent(own) for own in groups[start : start + STEP]):
                return True
            if len(groups) > STEP:
                yield
        return False

    def leave(self, now: float) -> list[Outgoing]:
        """The instance leaves: the floors suffice from now on. Returns what to publish."""
        self._left = True
        interval_ms = self.timing.interval_ms
        found = [self._send(*place, interval_ms, (), now, leaving=True) for place in self._partitions.items()]
        for own in self._own.values():
            own.claim.lower(0.0)
        return found

    # ---- what the caller asks ---------------------------------------------------------------------------------------

    def share(self, group: int) -> float:
        """The fraction of the limit that may be used here now; never above 1."""
        own = self._own.get(group)
        if self._lost(self._partition_of(group) if own is None else own.partition):
            return 1.0 / self.known
        return min((0.0 if own is None else own.claim.held) + floor_share(self.known), 1.0)

    def _partition_of(self, group: int) -> int:
        return group % self._count if self._count else 0

    def standing(self, group: int, now: float) -> FleetStatus:
        """The state of a group."""
        own = self._own[group]
        share = self.share(group)
        usage, instances, mine = own.usage, 1, 0
        for member, seen in self.view.group(group, now):
            if member == self.member:
                mine = 1
            else:
                usage += seen.use.usage
                instances += 1
        partition = self._partitions.get(own.partition)
        why = ShareReason.SPLIT if own.claim.held and mine else ShareReason.FLOOR
        if self._lost(own.partition):
            why = ShareReason.ALONE
        elif partition is not None and self._late(partition, now):
            why = ShareReason.LAST
        return FleetStatus(share, why, own.estimate.demand, usage, instances, self.known)

    def level(self, group: int, now: float) -> float:
        """How full the fleet's window is, as a fraction of the limit's; at most 1."""
        own = self._own.get(group)
        total = 0.0 if own is None else own.level
        total += sum([seen.use.level for seen in self._others(group, now)])
        return min(total + self.view.level_of_gone(group, now), 1.0)

    @property
    def lost(self) -> bool:
        """Whether some groups have no split, because our own records do not come back."""
        return any(partition.lost for partition in self._partitions.values()) or (not self._count and self._alone)

    @property
    def floor(self) -> float:
        """What every instance may use without asking."""
        return floor_share(self.known)

    def active(self, group: int) -> bool:
        """Whether a group is published: it was used here not long ago."""
        own = self._own.get(group)
        return own is not None and own.used_ms is not None

    def instances(self, group: int, now: float) -> int:
        """How many instances reported a group, this one included."""
        return 1 + len(self._others(group, now))

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _lost(self, number: int) -> bool:
        if not self._count:
            return self._alone
        mine, first = self._partitions.get(number), self._partitions[0]
        return first.lost or (mine is not None and mine.lost)

    def _late(self, partition: _Partition, now: float) -> bool:
        """Whether our own records should have come back two intervals ago."""
        oldest_ms = partition.oldest_ms
        return oldest_ms is not None and now - oldest_ms > 2 * self.timing.interval_ms

    def _look_who_is_there(self, now: float) -> Steps[None]:
        """Count the instances, and find out whether anything still comes back."""
        timing = self.timing
        for number, partition in self._partitions.items():
            interval_ms = timing.interval_of(self.view.writers(number, now))
            oldest_ms = partition.oldest_ms
            partition.lost = oldest_ms is not None and now - oldest_ms > timing.hold * interval_ms
        self._alone = not self._count and now - self._started > timing.start * timing.interval_ms
        if self.lost:
            # They cannot be heard, but they exist: the number stays as it was.
            for number, own in enumerate(list(self._own.values()), 1):
                if self._lost(own.partition):
                    own.claim.hold_alone(1.0 / self.known - floor_share(self.known))
                if number % STEP == 0:
                    yield
            return
        if now < self._count_ms + timing.interval_ms:
            return
        self._count_ms = now
        there = self.view.instances(now)
        self.known = max(there if self.member in self.view.members else there + 1, self._at_least, 1)

    def _others(self, group: int, now: float) -> list[LastUse]:
        return [seen for member, seen in self.view.group(group, now) if member != self.member]

    def _available(self, group: int, now: float) -> float:
        return CAPACITY - sum([seen.bound for seen in self._others(group, now)])

    def _settle_for_less(self, own: _Own, now: float) -> None:
        """The others ask for more: give up their part at once."""
        if not self._lost(own.partition):
            target = grant_of(own.estimate.demand, [seen.use.demand for seen in self._others(own.group, now)])
            before = own.claim.held
            if own.claim.lower(target) and own.claim.held < before * (1 - _WORTH):
                own.lowered = True

    def _urgent(self, own: _Own) -> bool:
        published, demand = own.published, own.estimate.demand
        return own.raising or own.lowered or abs(demand - published) > MOVED * max(demand, published)

    def _use(self, own: _Own, now: float) -> GroupUse:
        others = self._others(own.group, now)
        demand = own.published = exact(own.estimate.demand)
        own.lowered = False
        claim = own.claim
        if not self._lost(own.partition):
            if own.used_ms is not None and now - own.used_ms > self.timing.stay_ms:
                own.used_ms = None  # not used here any more: this is the last record about it
                own.claim, own.estimate, own.raising = Claim(), DemandEstimate(), False
                return GroupUse(own.group, 0.0, 0.0, 0.0, 0.0, 0.0)
            target = grant_of(demand, [seen.use.demand for seen in others])
            claim.lower(target)
            available = CAPACITY - sum([seen.bound for seen in others])
            wanted = exact(min(target, max(available, claim.held)))
        else:
            wanted = claim.held
        learned_from = self._partitions[own.partition].learned_from
        if learned_from is None or now - max(learned_from, own.since) < LEARNING * self.timing.interval_of(
            self.view.writers(own.partition, now)
        ):
            wanted = claim.held
        own.raising = wanted > claim.held * (1 + _WORTH)
        return GroupUse(own.group, own.usage, demand, own.level, claim.held, wanted)

    def _send(
        self,
        number: int,
        partition: _Partition,
        interval_ms: int,
        uses: tuple[GroupUse, ...],
        now: float,
        name: str = "",
        *,
        leaving: bool = False,
    ) -> Outgoing:
        seq, self._seq = self._seq, self._seq + 1
        for use in uses:
            self._own[use.group].claim.sent(seq, use.claim)
        written_ms = max(int(now + self.epoch_ms), 0)
        record = Record(self.member, seq, interval_ms, leaving, name, uses, written_ms)
        data = encode(self.seal, number, record)
        if len(partition.in_flight) >= MAX_IN_FLIGHT:  # the oldest one stays: it says since when none comes back
            del partition.in_flight[next(islice(partition.in_flight, 1, None))]
        partition.in_flight[seq] = _Sent(now, data[-MAC_BYTES:])
        return number, data
