"""Clients: what librdkafka, Java's and others do with their connections, and what they should not do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from tests.world import messages as kafka
from tests.world.broker import SESSION_TIMEOUT_S
from tests.world.messages import Batch
from tests.world.network import Socket

if TYPE_CHECKING:
    from tests.world.world import World

Leave = Literal["", "close", "half", "reset", "vanish", "inside"]
"""How a client ends its connections: in order, by half, by a reset, without a word; inside a request."""
BACKOFF_S = 0.1, 2.0
HEARTBEAT_S = 3.0


@dataclass(frozen=True)
class Habits:
    kind: Literal["producer", "fetcher", "member", "transactional"]
    group: str
    size_bytes: int = 1000  # of a batch, and of what a fetch asks for
    in_flight: int = 1
    obeys: bool = True  # throttle times
    timeout_s: float = 30.0
    acks: int = -1
    idempotent: bool = False
    leave: Leave = ""
    requests: int = 0  # after so many on one connection it leaves; 0: never
    pause_s: float = 0.0  # between a response and the next request
    slow_bytes_per_s: int = 0  # it reads no faster; 0: at any speed
    sends_timeout: bool = False  # its requests have its own timeout; else some have a longer one, as librdkafka's
    sessions: bool = False  # of fetches (KIP-227)
    heartbeats: bool = False
    """A fetcher is a member of a group that heartbeats on the connection it fetches on (sarama, kafkajs)."""
    starts_s: float = 0.0

    def uses(self, kind: str) -> bool:
        """Whether its requests are limited as "fetch", or else as "produce"."""
        return (self.kind == "fetcher") == (kind == "fetch")

    @property
    def persistent(self) -> bool:
        """It always wants more, stays connected, and reads its answers at once."""
        stays = self.acks and not self.leave and not self.slow_bytes_per_s
        return bool(stays) and self.kind in ("producer", "fetcher")


class Channel:
    """One connection of a client: requests out, responses in, in order."""

    def __init__(self, client: Client, socket: Socket) -> None:
        self.client, self.socket = client, socket
        self.sent = 0  # requests
        self._waiting: deque[tuple[int, float, Callable[[bytes], object]]] = deque()
        self._came = bytearray()
        self.unsent = b""
        self.alive = True
        socket.notify = self.heard
        if client.habits.slow_bytes_per_s:
            client.world.clock.after(0.5, self._read_slowly)

    @property
    def owed(self) -> int:
        return len(self._waiting)

    def send(self, frame: bytes, answered: Callable[[bytes], object] | None) -> None:
        """Send a request; `answered` gets its response, None: there is none."""
        self.sent += 1
        if answered is not None:
            number = int.from_bytes(frame[8:12], "big")
            self._waiting.append((number, self.client.world.clock.now_s, answered))
            self.client.world.clock.after(self.client.habits.timeout_s, self._late, number)
        self.write(frame)

    def write(self, data: bytes) -> None:
        """Bytes, of which the socket takes what it has room for."""
        self.unsent += data
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except ConnectionError:
            self.lost()
        else:
            if not self.unsent:
                self.client.written()

    def heard(self, _flags: int) -> None:
        if self.unsent:
            self.write(b"")
        if self.alive and not self.client.habits.slow_bytes_per_s:
            self._read(1 << 30)

    def _read_slowly(self) -> None:
        if self.alive:
            self._read(self.client.habits.slow_bytes_per_s // 2)
            self.client.world.clock.after(0.5, self._read_slowly)

    def _read(self, most: int) -> None:
        try:
            data = self.socket.read(most)
        except ConnectionError:
            data = b""
        if data is None:
            return
        if not data:
            self.lost()
            return
        came = self._came
        came += data
        while self.alive and len(came) >= 8:
            size = 4 + int.from_bytes(came[:4], "big")
            if len(came) < size:
                return
            frame = bytes(came[:size])
            del came[:size]
            number = int.from_bytes(frame[4:8], "big")
            if not self._waiting or self._waiting[0][0] != number:
                self.client.world.judge.fail("answers", f"{self.client} got answer {number}, expected {self._waiting}")
            _, sent_s, answered = self._waiting.popleft()
            self.client.world.judge.answered(self.client, sent_s)
            answered(frame)

    def _late(self, number: int) -> None:
        """The request has waited for `timeout_s`; throttle times meanwhile come on top."""
        client = self.client
        if not self.alive or number not in [one for one, _, _ in self._waiting]:
            return
        told_s = client.wait_until_s - client.world.clock.now_s
        if told_s > 0 and client.habits.obeys:
            client.world.clock.after(told_s, self._late, number)
            return
        client.timeouts += 1
        self.end("close")

    def end(self, how: Leave) -> None:
        if how == "half":
            self.socket.shutdown()
            return
        self.alive = False
        {"vanish": self.socket.vanish, "reset": self.socket.abort}.get(how, self.socket.close)()
        self.client.disconnected(self)

    def lost(self) -> None:
        if self.alive:
            self.end("close")


class Client:
    def __init__(self, world: World, number: int, habits: Habits, chance: Random) -> None:
        self.world, self.number, self.habits, self.chance = world, number, habits, chance
        group = world.groups.get(habits.group)
        self.client_id = (f"{habits.group}-{number}" if group is not None and group.by_user else habits.group).encode()
        self.channel: Channel | None = None
        self.partition = number
        self.node = -1  # the partition's leader, as far as it knows; -1: not at all
        self.wait_until_s = 0.0  # a throttle was announced
        self.here = 0  # the broker that it is connected to
        self.connections = self.timeouts = 0
        self.stopped = self.dismissed = False
        self._connecting = False
        self._connects_s = 0.0
        self._backoff_s = BACKOFF_S[0]
        self._correlation = 0
        self.heartbeats = Heartbeats(self)
        world.clock.at(habits.starts_s, self.step)

    def __repr__(self) -> str:
        return f"client {self.number} ({self.habits.kind} of {self.habits.group})"

    def stop(self) -> None:
        self.stopped = True
        self.step()

    def dismiss(self) -> None:
        self.dismissed = True
        if self.channel is not None:
            self.channel.end("close")

    def next_number(self) -> int:
        self._correlation += 1
        return self._correlation

    def announced(self, throttle_ms: int) -> None:
        if throttle_ms > 0 and self.habits.obeys:
            now_s = self.world.clock.now_s
            self.wait_until_s = max(self.wait_until_s, now_s + throttle_ms / 1000)
            self.world.clock.at(self.wait_until_s, self.step)

    @property
    def owed(self) -> int:
        return 0 if self.channel is None else self.channel.owed

    def step(self) -> None:
        """Go on: connect, ask for the leader, send."""
        if self.channel is None:
            early = self.world.clock.now_s < self._connects_s
            if not (early or self.dismissed or self._connecting or (self.stopped and not self.has_more())):
                self._connecting = True
                self.connections += 1
                self.world.open(self, max(self.node, 0), self._connected)
        elif self.world.clock.now_s >= self.wait_until_s:
            if self.node < 0:
                if not self.channel.owed:
                    self.channel.send(kafka.metadata(self.next_number(), self.client_id), self._metadata)
            elif self.stopped and not self.has_more():
                if not self.channel.owed and not self.channel.unsent:
                    self.channel.end("close")
            else:
                self.go_on(self.channel)

    def has_more(self) -> bool:
        """Something was begun and has to be ended although the client is stopped."""
        return False

    def go_on(self, channel: Channel) -> None:
        raise NotImplementedError

    def written(self) -> None: ...

    def gave_up(self) -> None:
        """The connection has ended."""
        self.heartbeats.gave_up()

    def moved(self) -> None:
        """The leader is another one: ask, on a connection to any broker."""
        self.node = -1
        self.step_later()

    def step_later(self) -> None:
        wait_s = self._backoff_s * (0.8 + 0.4 * self.chance.random())
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_S[1])
        if self.channel is None:
            self._connects_s = self.world.clock.now_s + wait_s
        self.world.clock.after(wait_s, self.step)

    def leaves(self, channel: Channel) -> bool:
        """Whether it is time to leave the connection; it has left then."""
        habits = self.habits
        if not habits.leave or channel.sent < habits.requests or self.stopped:
            return False
        if habits.leave == "half":
            if not channel.socket.shut and not channel.unsent:
                channel.end("half")
        elif habits.leave != "close" or not channel.owed or not habits.obeys:
            if habits.leave == "inside":
                batch = Batch(-1, 0, 0, 0, max(habits.size_bytes, 100))
                frame = kafka.produce(self.next_number(), self.client_id, -1, self.partition, batch)
                channel.write(frame[: self.chance.randint(1, len(frame) - 1)])
            if channel.alive:
                channel.end("close" if habits.leave == "inside" else habits.leave)
        return True

    def _connected(self, socket: Socket | None) -> None:
        self._connecting = False
        if socket is None:
            self.node = -1
            self.step_later()
            return
        if self.dismissed:
            socket.close()
            return
        self.channel = Channel(self, socket)
        self.wait_until_s = 0.0
        self.step()

    def _metadata(self, frame: bytes) -> None:
        nodes, leaders = kafka.metadata_answered(frame)
        self.world.judge.addresses(self, nodes)
        self.node = leaders[self.partition]
        if self.node != self.here and self.channel is not None:
            self.channel.end("close")
        else:
            self.step()

    def disconnected(self, channel: Channel) -> None:
        if self.channel is channel:
            self.channel = None
            self.gave_up()
            self.step_later()

    def succeeded(self) -> None:
        self._backoff_s = BACKOFF_S[0]


class Producer(Client):
    """Batches of one partition. An idempotent one sends them again in order until each is acknowledged."""

    epoch = 0
    transaction = 0

    def __init__(self, world: World, number: int, habits: Habits, chance: Random) -> None:
        super().__init__(world, number, habits, chance)
        self.next_batch = 0
        self._again: list[Batch] = []
        self._out: deque[Batch] = deque()
        own = habits.sends_timeout or number % 3 < 2
        self._timeout_ms = int(habits.timeout_s * 1000) if own else kafka.TIMEOUT_MS

    def has_more(self) -> bool:
        return bool(self._out or self._again) and self.habits.idempotent

    def go_on(self, channel: Channel) -> None:
        habits = self.habits
        if channel.socket.shut or self.leaves(channel) or channel.unsent:
            return
        while channel.alive and len(self._out) < habits.in_flight and not channel.unsent:
            if self._again:
                if self._out and habits.idempotent and self._out[-1].number > self._again[0].number:
                    return  # those under way come first
                batch = self._again.pop(0)
            else:
                fresh = None if self.stopped else self.new_batch()
                if fresh is None:
                    return
                batch = fresh
                self.world.judge.sends(self, batch)
            head = self.next_number(), self.client_id, habits.acks, self.partition
            frame = kafka.produce(*head, batch, self._timeout_ms)
            if habits.acks:
                self._out.append(batch)
                channel.send(frame, lambda answer, batch=batch: self._answered(batch, answer))  # type: ignore[misc]
            else:
                channel.send(frame, None)
                if not channel.unsent:
                    return  # `written` has gone on
            if habits.leave and channel.sent >= habits.requests:
                self.leaves(channel)
                return

    def new_batch(self) -> Batch | None:
        """The next one; None: not now."""
        number, self.next_batch = self.next_batch, self.next_batch + 1
        size = max(int(self.habits.size_bytes * (0.9 + 0.2 * self.chance.random())), kafka.MIN_BATCH_BYTES)
        producer = self.number if self.habits.idempotent else -1
        return Batch(producer, self.epoch, number, self.transaction, size)

    def written(self) -> None:
        if not self.habits.acks and self.channel is not None:
            self.world.clock.after(max(self.habits.pause_s, 0.001), self.step)

    def _answered(self, batch: Batch, frame: bytes) -> None:
        error, offset, throttle_ms = kafka.produce_answered(frame)
        self._out.remove(batch)
        self.announced(throttle_ms)
        self.world.judge.announced(self, throttle_ms)
        if error:
            self.refused(batch, error)
        else:
            self.world.judge.acknowledged(self, batch, offset)
            self.succeeded()
            self.world.clock.after(self.habits.pause_s, self.step)

    def refused(self, batch: Batch, error: int) -> None:
        self.put_back(batch)
        if error == kafka.NOT_LEADER:
            self.moved()
        else:
            self.step_later()

    def put_back(self, *batches: Batch) -> None:
        if self.habits.idempotent:
            self._again = sorted([*self._again, *batches], key=lambda batch: batch.number)

    def gave_up(self) -> None:
        self.put_back(*self._out)
        self._out.clear()


class Fetcher(Client):
    """Reads an endless partition."""

    offset = _session = _epoch = 0
    _named = -1  # the offset that the session knows
    _fetching = False

    def go_on(self, channel: Channel) -> None:
        if self.habits.heartbeats:
            self.heartbeats.send(channel)
        if channel.socket.shut or self._fetching or self.leaves(channel):
            return
        self._fetching = True
        session, epoch = (self._session, self._epoch) if self.habits.sessions else (0, -1)
        partition = -1 if epoch > 0 and self._named == self.offset else self.partition
        self._named = self.offset
        wanted = kafka.Wanted(500, self.habits.size_bytes, session, epoch, partition, self.offset)
        channel.send(kafka.fetch(self.next_number(), self.client_id, wanted), self._answered)

    def _answered(self, frame: bytes) -> None:
        self._fetching = False
        throttle_ms, error, session, partition_error, batches = kafka.fetch_answered(frame)
        self.announced(throttle_ms)
        self.world.judge.announced(self, throttle_ms)
        if self.habits.sessions:
            self._session, self._epoch = (0, 0) if error or not session else (session, self._epoch + 1)
        for batch in batches:
            self.world.judge.read(self, batch, self.offset)
            self.offset += 1
        if partition_error:
            self.moved()
        else:
            self.succeeded()
            pause_s = self.habits.pause_s or (0.0 if batches or self.habits.obeys else 0.1)
            self.world.clock.after(pause_s, self.step)

    def gave_up(self) -> None:
        self._session = self._epoch = 0
        self._fetching = False
        super().gave_up()


class Heartbeats:
    """The heartbeats of a member of a group: one at a time, every `HEARTBEAT_S`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._joined = self._waits = False
        self._next_s = 0.0

    def send(self, channel: Channel) -> None:
        """Send one if it is time, or join."""
        client, now_s = self._client, self._client.world.clock.now_s
        if self._waits or now_s < self._next_s:
            return
        self._waits, self._next_s = True, now_s + HEARTBEAT_S
        client.world.clock.at(self._next_s, client.step)
        number, session_ms = client.next_number(), int(SESSION_TIMEOUT_S * 1000)
        if self._joined:
            frame = kafka.simple(kafka.HEARTBEAT, number, client.client_id, client.number)
        else:
            frame = kafka.join(number, client.client_id, client.number, session_ms)
        channel.send(frame, self._answered)

    def _answered(self, frame: bytes) -> None:
        throttle_ms, error, _, _ = kafka.simple_answered(frame)
        self._client.announced(throttle_ms)
        self._client.world.judge.announced(self._client, throttle_ms)
        self._joined, self._waits = not error, False
        self._client.succeeded()
        self._client.step()

    def gave_up(self) -> None:
        self._waits, self._next_s = False, 0.0


class Member(Client):
    """A member of a group, whose heartbeats have a connection of their own."""

    def go_on(self, channel: Channel) -> None:
        self.heartbeats.send(channel)


class Transactional(Producer):
    """Some batches, then the end of their transaction. After a failure it starts over, with a new epoch."""

    state: Literal["new", "begin", "send", "end"] = "new"
    _left = 0

    def has_more(self) -> bool:
        return False

    def go_on(self, channel: Channel) -> None:
        if channel.socket.shut:
            return
        if self.state == "send":
            if self._left or self._out:
                super().go_on(channel)
                return
            self.state = "end"
        if channel.owed:
            return
        api = {"new": kafka.INIT, "begin": kafka.ADD, "end": kafka.END}[self.state]
        if self.state == "begin":
            self.transaction += 1
        frame = kafka.simple(api, self.next_number(), self.client_id, self.partition, self.epoch, self.transaction)
        channel.send(frame, self._changed)

    def new_batch(self) -> Batch | None:
        if not self._left:
            return None
        self._left -= 1
        return super().new_batch()

    def _changed(self, frame: bytes) -> None:
        throttle_ms, error, _, epoch = kafka.simple_answered(frame)
        self.announced(throttle_ms)
        if error:
            self.put_back()
        elif self.state == "new":
            self.epoch, self.next_batch, self.state = epoch, 0, "begin"
        elif self.state == "begin":
            self.state, self._left = "send", self.chance.randint(1, 4)
        else:
            self.state = "begin"
        self.world.clock.after(self.habits.pause_s, self.step)

    def put_back(self, *_batches: Batch) -> None:
        self._out.clear()
        self._left, self.state = 0, "new"


KINDS: dict[str, type[Client]] = {
    "producer": Producer, "fetcher": Fetcher, "member": Member, "transactional": Transactional
}  # fmt: skip
