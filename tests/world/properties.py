"""What holds in every world, watched from outside: at clients, at brokers' logs, and at what instances send."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from quota.entity import Kind
from quota.fleet.record import group_hash
from quota.reservation import FetchCounter
from tests.support.history import Event, History, check
from tests.world.messages import Batch
from tests.world.script import FREE

if TYPE_CHECKING:
    from tests.world.client import Client, Producer
    from tests.world.instance import Instance
    from tests.world.world import World

STRETCH_S = 24.0
APART_S = 30.0  # after instances have not heard of each other
FLOORS = 0.01  # of the limit: each instance that is going while the next one has begun has a floor as well
FIRST_S = 11.0  # the first window: Kafka's eleven samples
MOST = 1.05
LEAST = 0.9  # of the limit, in a whole minute without faults
MOST_AT_ONCE = 2 * FIRST_S
"""Seconds' worth in a first window: what fits into it may come at once, and then the limit's rate goes on."""
MINUTE_S = 60.0
MOST_OF_FLEET, LEAST_OF_FLEET, LEAST_OF_WANDERERS = 1.12, 0.6, 0.5
"""Shares move: the part of an instance where nobody asks is used elsewhere after some seconds. A client that reconnects
to another instance every few seconds leaves part of a share unused at each."""
MOST_WASTED = 1.12
"""With clients that vanish inside requests: what was forwarded of those is charged when they are given up."""
SETTLES_S = 60.0  # after a fault
FREE_ANSWER_S = 1.5  # an answer to a client without a limit comes within this time when nothing is wrong


class Violation(BaseException):
    """A property does not hold. No `Exception`, which the event loop would blame one connection for."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Meter:
    """The bytes of one group that one limit is for."""

    def __init__(self, judge: Judge, name: str, whole: float, factor: float) -> None:
        self._judge = judge
        self._name = name
        self.whole = whole  # the limit in the script
        self.limit = whole * factor
        self.most, self.least = MOST, LEAST
        self.largest_bytes = 0  # the largest request or response
        self.requests = 1  # so many of these may come on top: one for each instance
        self.hungry = False  # some client always wants more
        self.timeout_s = 0.0  # how long such a client waits for an answer, at most
        self.asked_bytes = 0.0  # what all clients of the group ask for at once
        self.worst = 0.0  # the highest rate over a stretch, over the limit
        self._stretch: deque[tuple[float, int]] = deque()
        self._window: deque[tuple[float, int]] = deque()
        self._stretch_bytes = self._window_bytes = 0
        self._busy_s = self._checked_s = -1e9
        self._changes = 0
        self._forgot_s = -FIRST_S
        self._next = self.limit
        self._minute_bytes = 0

    def fresh(self, now_s: float) -> None:
        """A first window begins: the limit was raised, or the past was forgotten."""
        self._checked_s = max(self._checked_s, now_s + FIRST_S)

    def forgot(self, now_s: float) -> None:
        """What was used before counts no more."""
        self._forgot_s = max(self._forgot_s, now_s)
        self.fresh(now_s)

    def change(self, now_s: float, limit: float) -> None:
        """The limit is another one; for a stretch, the higher of both applies."""
        if limit > self.limit:
            self.forgot(now_s + 2.0)
        self._changes += 1
        self._next = limit
        self.limit = max(self.limit, limit)
        self._judge.world.clock.after(STRETCH_S + 2.0, self._changed, self._changes)

    def _changed(self, number: int) -> None:
        if number == self._changes:
            self.limit = self._next

    def add(self, count: int) -> None:
        now_s = self._judge.world.clock.now_s
        if now_s - self._busy_s >= 2 * FIRST_S:
            self.fresh(now_s)
        self._minute_bytes += count
        self._stretch_bytes = _slide(self._stretch, self._stretch_bytes, now_s, count, STRETCH_S)
        self._window_bytes = _slide(self._window, self._window_bytes, now_s, count, FIRST_S)
        if self._window_bytes >= 0.95 * self.limit * (FIRST_S - 1):
            self._busy_s = now_s
        burst = (self._window_bytes - self.requests * self.largest_bytes) / self.limit
        if burst > MOST_AT_ONCE and now_s > self._forgot_s + FIRST_S:
            text = f"{burst:.1f} s of its limit in {FIRST_S:.0f} s besides one request"
            self._judge.fail("burst", f"{self._name}: {text}")
        if now_s - STRETCH_S < self._checked_s:
            return
        rate = (self._stretch_bytes - self.requests * self.largest_bytes) / STRETCH_S / self.limit
        self.worst = max(self.worst, rate)
        if rate > (MOST_WASTED if now_s < self._judge.late_until_s else self.most):
            self._judge.fail("rate", f"{self._name}: {rate:.3f} of its limit in {STRETCH_S:.0f} s besides one request")

    def minute(self, now_s: float, calm: bool) -> None:
        """A minute is over, in which nothing was wrong if `calm`."""
        used = (self._minute_bytes + self.largest_bytes) / MINUTE_S / self.limit
        self._minute_bytes = 0
        # A client whose answers come later than it waits reconnects, and wants nothing meanwhile.
        answered = self.asked_bytes / self.limit < self.timeout_s
        if calm and self.hungry and answered and used < self.least:
            self._judge.fail("work", f"{self._name}: {used:.3f} of its limit in a minute, while clients want more")


def _slide(kept: deque[tuple[float, int]], total: int, now_s: float, count: int, length_s: float) -> int:
    kept.append((now_s, count))
    total += count
    while kept[0][0] <= now_s - length_s:
        total -= kept.popleft()[1]
    return total


class Judge:
    """Ends the world with a Violation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.meters: dict[tuple[int, str, str], Meter] = {}  # by instance (0: the fleet), group and kind
        self.wrong_until_s = 0.0  # faults, and what follows from them, are over then
        self.late_until_s = 0.0  # slow paths may release requests until then that were charged before
        self.acknowledged_batches = 0
        self._histories: dict[int, History] = defaultdict(list)  # by partition, each of which one client writes to
        self.apart_s = -APART_S  # instances do not hear of each other until then

    def fail(self, name: str, text: str) -> None:
        raise Violation(name, f"{text} (at {self.world.clock.now_s:.3f} s)")

    def disturbed(self, until_s: float) -> None:
        self.wrong_until_s = max(self.wrong_until_s, until_s)

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def minute(self) -> None:
        now_s = self.world.clock.now_s
        calm = now_s - MINUTE_S >= max(self.wrong_until_s, 0.0) + SETTLES_S
        for meter in self.meters.values():
            meter.minute(now_s, calm)

    def addresses(self, client: Client, nodes: dict[int, tuple[str, int]]) -> None:
        if any(host.startswith("b") for host, _ in nodes.values()):
            self.fail("addresses", f"{client} was shown {nodes}")

    def announced(self, client: Client, throttle_ms: int) -> None:
        if client.habits.group == FREE and throttle_ms and not self.world.brokers_throttle:
            self.fail("others", f"{client} has a throttle of {throttle_ms} ms announced")

    def answered(self, client: Client, sent_s: float) -> None:
        took_s = self.world.clock.now_s - sent_s
        if client.habits.group == FREE and took_s > FREE_ANSWER_S and sent_s > self.wrong_until_s + FREE_ANSWER_S:
            self.fail("others", f"{client} waited {took_s:.3f} s for an answer")

    def expelled(self, client: Client) -> None:
        """A member was not heard for a session."""
        if self.world.clock.now_s > self.wrong_until_s + SETTLES_S:
            self.fail("member", f"{client} was expelled from its group")

    def shares(self) -> None:
        """Called every two seconds: of each limit, instances in contact may use no more than all of it together."""
        world, now_s = self.world, self.world.clock.now_s
        members = [member for member in world.members if not member.instance.dead]
        if any(member.fleet.lost for member in members):
            self.apart_s = max(self.apart_s, now_s)
        if members and now_s < self.apart_s + APART_S:
            for meter in self.meters.values():
                meter.forgot(now_s + STRETCH_S)
            return
        for group in [group for member in members for group in member.instance.ledger.groups()]:
            number = group_hash(group.kind, group.key)
            held = sum(member.fleet.share(number) for member in members)
            if held > 1.0 + FLOORS * (1 + max(len(members) - world.script.instances, 0)):
                self.fail("shares", f"{held:.3f} of the {group.kind} limit of {group.key} may be used")

    def sends(self, client: Producer, batch: Batch) -> None:
        self._histories[client.partition].append(Event("sent", client.number, batch))

    def acknowledged(self, client: Producer, batch: Batch, offset: int) -> None:
        self.acknowledged_batches += 1
        self._histories[client.partition].append(Event("acknowledged", client.number, batch, offset=offset))

    def read(self, client: Client, batch: Batch, offset: int) -> None:
        if batch.number != offset or batch.producer != client.partition:
            self.fail("read", f"{client}: {batch} came where {offset} was expected")

    # ---- at the end -------------------------------------------------------------------------------------------------

    def waits(self, client: Client) -> None:
        """A client that was stopped long ago has not ended what it had begun. That may be where its group asks at once
        for what takes longer than the client waits: it gives up, and asks again."""
        world, habits = self.world, client.habits
        group = world.groups.get(habits.group)
        limit = 0.0 if group is None else (group.produce or group.fetch) * world.factor
        if client.owed and not (limit and world.asked_bytes(habits.group) / limit >= habits.timeout_s):
            self.fail("waits", f"{client} still waits for {client.owed} answers")

    def finish(self) -> None:
        """All clients have closed, and instances had time to forward what they had sent."""
        for client in self.world.clients.values():
            self._log(client)
        for instance in self.world.instances:
            self._same_limits(instance)
            self._nothing_left(instance)

    def _log(self, client: Client) -> None:
        log = self.world.cluster.logs[client.partition].batches
        history = [*self._histories[client.partition], *(Event("polled", "", one, 0, at) for at, one in enumerate(log))]
        habits = client.habits
        disturbed = habits.leave or client.timeouts or self.world.script.faults or habits.in_flight > 1
        # Some batches have no answer for ever, and without idempotence others overtake those of a broken connection.
        but = ("unanswered", "reordered") if disturbed and not habits.idempotent else ("unanswered",)
        for kind, few in check(history).items():
            if kind not in but:
                self.fail(kind, f"{client}: {few[:2]}")

    def _same_limits(self, instance: Instance) -> None:
        for group in self.world.script.groups:
            user, client_id = (group.name, "any") if group.by_user else ("u", group.name)
            for kind, limit in ((Kind.PRODUCE, group.produce), (Kind.FETCH, group.fetch)):
                expected = limit * self.world.factor or None
                found = instance.ledger.table.resolve(kind, user, client_id)
                counter = instance.ledger.counters.get(kind, found.key)
                used = found.limit if counter is None else counter.whole
                if found.limit != expected or used != expected:
                    limits = f"{found.limit}, in use {used}, not {expected}"
                    self.fail("table", f"{instance.name}: the {kind} limit of {group.name} is {limits}")

    def _nothing_left(self, instance: Instance) -> None:
        ledger, counters = instance.ledger, instance.counters
        fetches = [group for group in ledger.groups() if isinstance(group, FetchCounter)]
        left = {
            "links": len(instance.links),
            "sockets": len(instance.poller.sockets),
            "reservations": ledger.reservations,
            "kept requests": ledger.kept.requests,
            "kept bytes": ledger.kept.bytes,
            "muted": counters.connections.muted,
            "waiting": counters.connections.waiting,
            "read ahead": instance.shared.ahead_bytes,
            "queued": sum(group.waiting for group in ledger.groups()),
            "connections of accounts": sum(account.connections for account in ledger.accounts()),
            "fetches under way": sum(one._admitted + one._outstanding for one in fetches),
        }
        if any(left.values()):
            self.fail("left", f"{instance.name}: { {name: count for name, count in left.items() if count} }")
        now_ms = self.world.clock.now_s * 1000.0 + 2 * 3_600_000.0
        for _ in range(2):
            sum(ledger.sweep(now_ms))
        groups = sum(1 for _ in ledger.groups()) + (0 if instance.member is None else instance.member.shares.count)
        if ledger.clients or groups:
            self.fail("left", f"{instance.name}: {ledger.clients} accounts and {groups} counters, two hours later")
