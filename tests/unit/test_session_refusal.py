"""A held Produce request is answered REQUEST_TIMED_OUT shortly before its own `timeout_ms` is over (ADR 0026)."""

from __future__ import annotations

import struct
import uuid

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.refused import MAX_BATCHES, MAX_SKIPPING, RefusedBatches
from proxy.core.session.states import Throttled
from proxy.core.wire.refusal import MAX_ELEMENTS
from quota.entity import Kind
from quota.gate import AWAY_MS, MAX_REFUSED, MAX_REFUSED_MS
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import (
    METADATA,
    Cut,
    byte_by_byte,
    in_sevens,
    produce_response,
    request,
    session,
    whole,
)

KB = 1000
LIMIT = 100 * KB
TIMED_OUT = 7
EACH_VERSION = range(14)
TOPICS = {"orders": (0, 3, 7), "ß": (12,)}


def produce(
    number: int,
    *,
    version: int = 7,
    timeout_ms: int = 30_000,
    acks: int = -1,
    size: int = 500,
    topics: dict[str, tuple[int, ...]] = TOPICS,
    transaction: str | None = None,
    head: bytes = b"",
) -> bytes:
    """A request frame, as kafka-python encodes it; `head` begins each partition's records."""
    topic = ProduceRequest.TopicProduceData
    data = [
        topic(
            version=version,
            name=name,
            topic_id=uuid.UUID(int=len(name)),
            partition_data=[
                topic.PartitionProduceData(version=version, index=index, records=head.ljust(size, b"r"))
                for index in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    fields = {"transactional_id": transaction} if version >= 3 else {}
    message = ProduceRequest(version=version, acks=acks, timeout_ms=timeout_ms, topic_data=data, **fields)
    message.with_header(correlation_id=number, client_id="c")
    return bytes(message.encode(framed=True, header=True))


def answer(number: int, throttle_ms: int, version: int = 7, topics: dict[str, tuple[int, ...]] = TOPICS) -> bytes:
    """What refuses it, as kafka-python encodes it."""
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse
    responses = [
        topic(
            version=version,
            name=name,
            topic_id=uuid.UUID(int=len(name)),
            partition_responses=[
                part(version=version, index=index, error_code=TIMED_OUT, base_offset=-1, record_errors=[])
                for index in partitions
            ],
        )
        for name, partitions in topics.items()
    ]
    extra = {"throttle_time_ms": throttle_ms} if version else {}
    message = ProduceResponse(version=version, responses=responses, **extra)
    message.with_header(correlation_id=number)
    return bytes(message.encode(framed=True, header=True))


def limited() -> Ledger:
    """A ledger in which client "c" has `LIMIT`."""
    return Ledger(QuotaTable([Entry(client_id="c", producer_byte_rate=LIMIT)]), max_throttle_ms=120_000)


def indebted(seconds: int) -> Ledger:
    """The group of client "c" owes so many seconds of its limit at 0."""
    of = limited()
    account = of.account("ANONYMOUS", "c")
    of.charge(account, Kind.PRODUCE, 11 * LIMIT, 0.0)
    for _ in range(seconds - 1):
        of.charge(account, Kind.PRODUCE, LIMIT, 0.0)
    return of


class Client:
    """A session, and a shell that wakes it when it asks, looks for arrivals, and reads ahead."""

    def __init__(self, of: Ledger) -> None:
        self.one = session(of)
        self.now_ms = 0.0
        self.encrypted = 1.0
        """How many bytes are counted as unread for each."""
        self.heard: list[tuple[float, bytes]] = []
        """When which answers came."""
        self.forwarded: list[tuple[float, bytes]] = []

    def send(self, data: bytes, at_ms: float, cut: Cut = whole) -> None:
        """The client sends this at that time."""
        self.wait(at_ms)
        for part in cut(data):
            self.one.unread += part
            self._go(at_ms)

    def wait(self, until_ms: float) -> None:
        """Time passes."""
        while (at_ms := self.one._effects.wake_at_ms) <= until_ms:
            self._go(max(at_ms, self.now_ms))
        self.now_ms = until_ms

    def _go(self, now_ms: float) -> None:
        one, self.now_ms = self.one, now_ms
        one.carry_out(one.on_deadline(now_ms), now_ms)
        if len(one.unread) > one.read_ahead_over(now_ms):
            data, one.unread = one.unread, b""
            one.carry_out(one.on_client_bytes(memoryview(bytearray(data)), len(data), now_ms), now_ms)
        if one.mute_until_ms > now_ms:
            unread_bytes = int(len(one.unread) * self.encrypted)
            one.carry_out(one.on_unread(unread_bytes, False, now_ms), now_ms)
        for sent, into in ((one.taken(), self.forwarded), (one.seen(), self.heard)):
            if sent:
                into.append((now_ms, sent))


def number_of(frame: bytes) -> int:
    return struct.unpack_from(">i", frame, 4)[0]


def charged(of: Ledger) -> float:
    return of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount


@pytest.mark.parametrize("cut", [whole, byte_by_byte, in_sevens])
@pytest.mark.parametrize("version", EACH_VERSION)
def test_refusal_has_the_layout_of_its_version(version: int, cut: Cut) -> None:
    of = indebted(60)
    before = charged(of)
    one = Client(of)
    one.send(produce(9, version=version, transaction="t"), 1000.0, cut)
    one.wait(31_000.0)
    ((at_ms, frame),) = one.heard
    assert 29_000.0 <= at_ms <= 29_100.0
    ahead_ms = 59_000 + 800 - at_ms  # the debt, less what the gate lets pass
    told = ProduceResponse.decode(frame[4:], version=version, header=True).throttle_time_ms if version else 0
    assert told == pytest.approx(ahead_ms if version else 0, abs=2)
    assert frame == answer(9, told, version)
    assert not one.forwarded
    assert charged(of) == before
    assert one.one.state.counters.produces_refused == 1


@pytest.mark.parametrize(
    ("timeout_ms", "at_ms"), [(-1, 800), (1, 800), (1000, 800), (5000, 4500), (10_000, 9000), (60_000, 58_000)]
)
def test_no_refusal_before_a_tenth_of_the_timeout_is_left(timeout_ms: int, at_ms: int) -> None:
    one = Client(indebted(90))
    one.send(produce(1, timeout_ms=timeout_ms), 1010.0)
    one.wait(70_000.0)
    assert 1010 + at_ms <= one.heard[0][0] <= 1010 + at_ms + 100


@pytest.mark.parametrize(
    "request_", [produce(1, acks=0), produce(1, topics={"t": tuple(range(MAX_ELEMENTS))})], ids=["acks=0", "large"]
)
def test_what_cannot_be_refused_waits_for_its_turn(request_: bytes) -> None:
    one = Client(indebted(40))
    one.send(request_, 1000.0)
    one.wait(60_000.0)
    assert not one.heard
    ((at_ms, frame),) = one.forwarded
    assert frame == request_
    assert at_ms == pytest.approx(39_800, abs=200)


def test_a_refused_connection_keeps_its_place() -> None:
    of = indebted(40)
    first, second = Client(of), Client(of)
    first.send(produce(1, size=20 * KB), 1000.0)
    second.send(produce(1, timeout_ms=90_000, size=20 * KB), 2000.0)
    first.wait(29_000.0)
    assert [number_of(frame) for _, frame in first.heard] == [1]
    first.send(produce(2, size=20 * KB), 29_150.0)
    for now_ms in range(29_200, 45_000, 50):
        first.wait(now_ms)
        second.wait(now_ms)
    assert number_of(first.forwarded[0][1][4:]) == 2
    assert first.forwarded[0][0] < second.forwarded[0][0]
    assert charged(of) == 50 * LIMIT + sum(len(frame) - 4 for one in (first, second) for _, frame in one.forwarded)


def test_a_place_ends_when_no_other_request_comes() -> None:
    of = indebted(40)
    group = of.account("ANONYMOUS", "c").meter(Kind.PRODUCE).group
    assert group is not None
    one, other, last = Client(of), Client(of), Client(of)
    one.send(produce(1, size=20 * KB), 1000.0)
    one.wait(30_000.0)
    assert group.waiting == 1
    other.send(produce(1, acks=0), 30_000.0)
    other.wait(45_000.0)
    assert other.forwarded, "it is waited for no longer than for others"
    assert group.waiting == 1
    last.send(produce(1), 39_900.0 + AWAY_MS)
    assert last.forwarded
    assert group.waiting == 0


def test_pipelined_requests_are_refused_together() -> None:
    of = indebted(60)
    one = Client(of)
    one.send(produce(1, size=20 * KB), 1000.0)
    one.send(produce(2, size=20 * KB) + produce(3, size=20 * KB)[:100], 20_000.0)
    one.wait(28_900.0)
    one.send(produce(3, size=20 * KB)[100:], 29_010.0)
    one.wait(29_200.0)
    assert [number_of(frame) for frame in frames(one)] == [1, 2, 3]
    one.send(produce(4), 29_250.0)
    one.wait(50_000.0)
    assert [number_of(frame) for frame in frames(one)] == [1, 2, 3], "its own time begins"
    assert not one.forwarded


def batch(sequence: int, *, producer: int = 7, epoch: int = 1, magic: int = 2) -> bytes:
    """The head of a batch."""
    return struct.pack(">16xb26xqhii", magic, producer, epoch, sequence, 1)


@pytest.mark.parametrize(
    ("first", "later", "refused"),
    [
        (batch(5), batch(6), True),
        (batch(5), batch(5), False),
        (batch(5), batch(4), False),
        (batch(2**31 - 1), batch(0), True),
        (batch(0), batch(2**31 - 1), False),
        (batch(5), batch(6, epoch=2), False),
        (batch(5), batch(6, producer=8), False),
        (batch(5, producer=-1), batch(6, producer=-1), False),
        (batch(5, magic=1), batch(6, magic=1), False),
    ],
)
@pytest.mark.parametrize("version", [3, 9, 13])
def test_what_skips_a_refused_batch_is_refused(version: int, first: bytes, later: bytes, refused: bool) -> None:
    one = Client(indebted(60))
    one.send(produce(1, version=version, head=first, topics={"t": (0, 1), "u": (0,)}), 1000.0)
    one.send(produce(2, version=version, head=later, topics={"u": (0,)}), 35_000.0)
    one.wait(36_000.0)
    assert [number_of(frame) for frame in frames(one)] == [1, 2][: 1 + refused]
    one.wait(61_000.0)
    assert len(one.forwarded) == 1 - refused, "what is refused is not charged, what is held passes in its turn"


def test_refusals_of_what_skips_end() -> None:
    """At the batch that was refused, at one of another partition, after some time, and after so many."""
    again, other = produce(3, head=batch(5)), produce(3, head=batch(6), topics={"else": (0,)})
    later = [produce(number, head=batch(6)) for number in range(20, 30)]
    for sent, at_ms, answered in (
        (later[0] + again, 35_000.0, [1, 20]),
        (other, 35_000.0, [1]),
        (later[0], 60_000.0 + AWAY_MS - 500.0, [1, 20]),
        (later[0], 60_000.0 + AWAY_MS + 500.0, [1]),
        (b"".join(later), 35_000.0, [1, *range(20, 20 + MAX_SKIPPING)]),
    ):
        one = Client(indebted(60))
        one.send(produce(1, head=batch(5)), 1000.0)
        one.send(sent, at_ms)
        one.wait(at_ms + 500.0)
        assert [number_of(frame) for frame in frames(one)] == answered


def test_memory_of_refused_batches_is_bounded() -> None:
    one = RefusedBatches()
    for number in range(2 * MAX_BATCHES):
        one.add({(b"t", struct.pack(">i", number), 7): (0, 0)})
    assert len(one) == MAX_BATCHES


def frames(one: Client) -> list[bytes]:
    """The answers, one by one."""
    data, found = b"".join(frame for _, frame in one.heard), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def test_a_pipelined_request_is_as_old_as_its_bytes() -> None:
    """It is not younger because the one before it has passed."""
    of = indebted(20)
    one = Client(of)
    one.send(produce(1, size=20 * KB) + produce(2, size=400 * KB), 1000.0)
    one.wait(20_000.0)
    ((passed_ms, _),) = one.forwarded
    assert passed_ms == pytest.approx(19_800, abs=200)
    account = of.account("ANONYMOUS", "c")
    for _ in range(40):
        of.charge(account, Kind.PRODUCE, LIMIT, 20_000.0)
    one.wait(35_000.0)
    assert len(one.forwarded) == 1
    one.one.broker_sends(produce_response(1), one.now_ms)
    one._go(one.now_ms)
    assert number_of(frames(one)[-1]) == 2
    assert 29_000 <= one.heard[0][0] <= 35_000


def test_encrypted_bytes_make_no_request_older() -> None:
    of = indebted(20)
    one = Client(of)
    one.encrypted = 1.02
    one.send(produce(1), 1000.0)
    one.send(produce(2, size=5 * KB), 1000.0)
    assert one.one.unread
    one.wait(21_000.0)
    assert len(one.forwarded) == 2
    one.one.broker_sends(produce_response(1) + produce_response(2), 21_000.0)
    one.one.seen()
    account = of.account("ANONYMOUS", "c")
    for _ in range(40):
        of.charge(account, Kind.PRODUCE, LIMIT, 21_000.0)
    one.send(produce(3), 21_500.0)
    one.wait(55_000.0)
    assert 49_500 <= one.heard[0][0] <= 49_600


def test_a_muted_client_that_sends_is_refused_and_stays_muted() -> None:
    of = limited()
    one = Client(of)
    one.send(produce(1, size=1000 * KB, topics={"t": (0, 1, 2, 3, 4)}), 0.0)
    one.one.broker_sends(produce_response(1), 10.0)
    muted_ms = one.one.mute_until_ms
    assert muted_ms > 35_000
    before = charged(of)
    one.one.seen()
    one.send(produce(2), 1000.0)
    one.wait(29_500.0)
    ((at_ms, frame),) = one.heard
    assert 29_000 <= at_ms <= 29_100
    assert frame == answer(2, round(muted_ms - at_ms))
    assert one.one.mute_until_ms == muted_ms
    assert one.one.throttle.state is Throttled.MUTED
    metadata = request(METADATA, 1, 3, struct.pack(">i", 0))
    one.send(metadata, 30_000.0)
    one.wait(muted_ms - 1)
    assert len(one.forwarded) == 1, "anything else waits"
    one.wait(muted_ms + 1)
    assert one.forwarded[-1][1] == metadata
    assert charged(of) == before


def test_too_much_thrown_away_has_to_wait() -> None:
    of = indebted(90)
    size = 400 * KB
    burst = MAX_REFUSED * LIMIT * MAX_REFUSED_MS // 1000 // size
    clients = [Client(of) for _ in range(burst + 5)]
    for one in clients:
        one.send(produce(1, timeout_ms=1, size=size, topics={"t": (0,)}), 1000.0)
    for one in clients:
        one.wait(5000.0)
    assert sum(bool(one.heard) for one in clients) == burst - 1


def test_a_refused_request_that_ends_early_ends_the_connection() -> None:
    one = Client(indebted(60))
    cut = produce(1)[:-600]
    one.send(struct.pack(">i", len(cut) - 4) + cut[4:], 1000.0)
    with pytest.raises(SessionError) as ended:
        one.wait(30_000.0)
    assert ended.value.reason is CloseReason.CLIENT_MALFORMED


def test_metadata_behind_a_refused_request_passes() -> None:
    one = Client(indebted(60))
    metadata = request(METADATA, 1, 2, struct.pack(">i", 0))
    one.send(produce(1) + metadata, 1000.0)
    one.wait(29_500.0)
    assert len(one.heard) == 1
    assert [frame for _, frame in one.forwarded] == [metadata]
