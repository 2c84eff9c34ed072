"""Brokers: logs, leaders, producers' sequences, transactions, groups, fetch sessions, and what goes wrong with them."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from tests.world import messages as kafka
from tests.world.clock import Clock
from tests.world.messages import Batch, Head
from tests.world.network import Socket

SESSION_TIMEOUT_S = 10.0
KNOWN_BATCHES = 5  # of a producer, whose repetition a leader recognises


@dataclass
class Log:
    leader: int
    batches: list[Batch] = field(default_factory=list)
    last: tuple[int, int] = (-1, -1)
    """Epoch and number of the last idempotent batch: one producer writes to each partition."""
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=KNOWN_BATCHES))
    """Epoch, number and offset of the latest ones."""
    endless_bytes: int = 0  # it has batches of this size without end, for readers
    epoch: int = 0
    transaction: int = 0  # the open one; 0: none
    ended: set[int] = field(default_factory=set)  # transactions with an end marker

    def append(self, batch: Batch, idempotent: bool) -> tuple[int, int]:
        """Error and offset."""
        if batch.transaction and (batch.epoch < self.epoch or batch.transaction != self.transaction):
            return (kafka.FENCED if batch.epoch < self.epoch else kafka.BAD_TXN), -1
        if idempotent:
            for epoch, number, offset in self.recent:
                if (epoch, number) == (batch.epoch, batch.number):
                    return 0, offset
            epoch, number = self.last
            if batch.number != (number + 1 if epoch == batch.epoch else 0):
                return kafka.OUT_OF_ORDER, -1
            self.last = batch.epoch, batch.number
            self.recent.append((batch.epoch, batch.number, len(self.batches)))
        self.batches.append(batch)
        return 0, len(self.batches) - 1


class Cluster:
    def __init__(self, clock: Clock, count: int) -> None:
        self.clock = clock
        self.logs: dict[int, Log] = {}
        self.brokers = [Broker(self, number) for number in range(count)]
        self.members: dict[int, float] = {}  # of groups, and when they were heard last

    def move(self, partition: int) -> None:
        log = self.logs[partition]
        log.leader = (log.leader + 1) % len(self.brokers)

    def sweep(self) -> list[int]:
        """Expel members that were not heard; which."""
        found = [member for member, heard_s in self.members.items() if self.clock.now_s - heard_s > SESSION_TIMEOUT_S]
        for member in found:
            del self.members[member]
        return found


class Broker:
    """One broker. Requests of a connection are handled one after the other, as Kafka does."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.down_until_s = 0.0
        self.slow_s = 0.0  # so much longer takes each request
        self.lies = ""
        """What it says that is not true: "throttled" (it does not wait itself), "number" (of another request)."""
        self.rate = 0.0  # bytes per second of a connection, by a quota of its own; 0: none
        self.connections: dict[Serving, None] = {}

    def accept(self, socket: Socket, chance: Random) -> None:
        serving = Serving(self, socket, chance)
        self.connections[serving] = None
        socket.notify = serving.heard
        serving.heard(0)

    def restart(self, down_s: float) -> None:
        """All connections break, and none is accepted for a while."""
        self.down_until_s = self.cluster.clock.now_s + down_s
        for serving in list(self.connections):
            serving.socket.abort()
            serving.over()


class Serving:
    def __init__(self, broker: Broker, socket: Socket, chance: Random) -> None:
        self.broker = broker
        self.socket = socket
        self.chance = chance
        self._came = bytearray()
        self._left = b""  # of responses that the socket did not take
        self._busy = False
        self._ended = False
        self._muted_until_s = 0.0
        self._sessions: dict[int, list[int]] = {}  # epoch, partition and offset of each fetch session

    def over(self) -> None:
        self.broker.connections.pop(self, None)

    def heard(self, _flags: int) -> None:
        try:
            while (data := self.socket.read()) is not None:
                if not data:
                    self._ended = True
                    break
                self._came += data
            if self._left:
                self._left = self._left[self.socket.send(self._left) :]
        except ConnectionError:
            self._end()
        else:
            self._next()

    def _end(self) -> None:
        self.socket.close()
        self.over()

    def _next(self) -> None:
        """Handle the next request, if it is whole and nothing is under way."""
        if self._busy or self not in self.broker.connections:
            return
        came = self._came
        size = 4 + int.from_bytes(came[:4], "big") if len(came) >= 4 else 1 << 40
        if len(came) >= size:
            frame = bytes(came[:size])
            del came[:size]
            self._busy = True
            broker, clock = self.broker, self.broker.cluster.clock
            wait_s = max(self._muted_until_s - clock.now_s, 0.0)
            clock.after(wait_s + broker.slow_s + self.chance.random() * 0.004, self._handle, frame)
        elif self._ended:
            self._end()  # at once, answers owed or not

    def _handle(self, frame: bytes) -> None:
        if self not in self.broker.connections:
            return
        head = kafka.head_of(frame)
        throttle_ms = self._throttle(len(frame))
        if head.api == kafka.PRODUCE:
            self._produce(head, frame, throttle_ms)
        elif head.api == kafka.FETCH:
            self._fetch(head, kafka.wanted_of(frame, head.body), throttle_ms, 0.0)
        elif head.api == kafka.METADATA:
            cluster = self.broker.cluster
            nodes = [(one.number, f"b{one.number}", 9092) for one in cluster.brokers]
            leaders = {number: log.leader for number, log in cluster.logs.items()}
            self._answer(head, kafka.metadata_answer(head.correlation, nodes, leaders))
        else:
            self._simple(head, *kafka.simple_of(frame, head), throttle_ms)

    def _throttle(self, size_bytes: int) -> int:
        broker, now_s = self.broker, self.broker.cluster.clock.now_s
        if broker.lies == "throttled":
            return self.chance.choice((0, 5, 700, -1))
        if not broker.rate:
            return 0
        self._muted_until_s = now_s + size_bytes / broker.rate
        return round(size_bytes / broker.rate * 1000)

    def _produce(self, head: Head, frame: bytes, throttle_ms: int) -> None:
        acks, partition, batch = kafka.produced(frame, head.body)
        cluster = self.broker.cluster
        log = cluster.logs[partition]
        if log.leader != self.broker.number:
            error, offset = kafka.NOT_LEADER, -1
        else:
            error, offset = log.append(batch, acks == -1 and batch.producer >= 0)
        if not acks:
            self._busy = False
            if error:
                self._end()  # the only way to say so
            else:
                self._next()
            return
        answer = kafka.produce_answer(head.correlation, partition, error, offset, throttle_ms)
        replicated_s = self.chance.random() * 0.02 if acks == -1 else 0.0
        cluster.clock.after(replicated_s, self._answer, head, answer)

    def _fetch(self, head: Head, wanted: kafka.Wanted, throttle_ms: int, waited_s: float) -> None:
        """Of endless logs, as much as may be; else after `max_wait_ms`, nothing."""
        if self not in self.broker.connections:
            return
        cluster, session, error = self.broker.cluster, 0, 0
        partition, offset = wanted.partition, wanted.offset
        if wanted.epoch == 0:
            session = self.chance.randint(1, 1 << 30)
            self._sessions[session] = [1, partition, offset]
        elif wanted.epoch > 0:
            session = wanted.session
            known = self._sessions.get(session)
            if known is None or known[0] != wanted.epoch:
                error = kafka.BAD_SESSION if known is None else kafka.BAD_EPOCH
                self._answer(head, kafka.fetch_answer(head.correlation, error, 0, -1, 0, b"", throttle_ms))
                return
            known[0] += 1
            if partition >= 0:
                known[1:] = partition, offset
            partition, offset = known[1:]
        log = cluster.logs[partition]
        partition_error, records = 0, b""
        if log.leader != self.broker.number:
            partition_error = kafka.NOT_LEADER
        elif log.endless_bytes:
            size, most = log.endless_bytes, max(wanted.max_bytes, log.endless_bytes)  # one batch comes whole
            last = offset + -(-most // size)
            whole = b"".join([kafka.batch_bytes(Batch(partition, 0, one, 0, size)) for one in range(offset, last)])
            records = whole[:most]
        elif waited_s < wanted.max_wait_ms / 1000:
            again = wanted._replace(epoch=-1, partition=partition, offset=offset, session=session)
            wait_s = wanted.max_wait_ms / 1000
            cluster.clock.after(wait_s, self._fetch, head, again, throttle_ms, wait_s)
            return
        session = session or (wanted.session if waited_s else 0)
        answer = kafka.fetch_answer(head.correlation, 0, session, partition, partition_error, records, throttle_ms)
        self._answer(head, answer)

    def _simple(self, head: Head, who: int, epoch: int, number: int, throttle_ms: int) -> None:
        cluster, error = self.broker.cluster, 0
        if head.api == kafka.JOIN:
            cluster.members[who] = cluster.clock.now_s
        elif head.api == kafka.HEARTBEAT:
            if who in cluster.members:
                cluster.members[who] = cluster.clock.now_s
            else:
                error = kafka.UNKNOWN_MEMBER
        else:
            log = cluster.logs[who]
            if head.api == kafka.INIT:
                epoch = log.epoch = log.epoch + 1
                log.ended.add(log.transaction)  # it is aborted
                log.transaction = 0
            elif epoch < log.epoch:
                error = kafka.FENCED
            elif head.api == kafka.ADD:
                log.transaction = number
                error = kafka.BAD_TXN if number in log.ended else 0
            else:
                log.ended.add(number)
                log.transaction = 0
        self._answer(head, kafka.simple_answer(head.correlation, error, who, epoch, throttle_ms))

    def _answer(self, head: Head, answer: bytes) -> None:
        if self not in self.broker.connections:
            return
        if self.broker.lies == "number" and self.chance.random() < 0.3:
            answer = answer[:4] + (head.correlation + 1).to_bytes(4, "big") + answer[8:]
        try:
            if self._left:
                self._left += answer
            else:
                self._left = answer[self.socket.send(answer) :]
        except ConnectionError:
            self._end()
        else:
            self._busy = False
            self._next()
