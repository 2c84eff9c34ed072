"""A held Produce request is answered REQUEST_TIMED_OUT shortly before its own `timeout_ms` is over (ADR 0026)."""

import struct
import uuid
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.exchange import new_in_flight
from proxy.core.session.states import Throttled
from proxy.core.session.throttle import MAX_ENDING
from proxy.core.wire.apis import END_TXN
from proxy.core.wire.refusal import MAX_ELEMENTS
from quota.entity import Kind
from quota.gate import AWAY_MS, MAX_REFUSED, MAX_REFUSED_MS
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support import session_tools as tools
from tests.support.session_tools import request, response, session
from tests.support.wire_tools import kafka_python_frame

KB = 1000
LIMIT = 100 * KB
TIMED_OUT = 7
TOPICS = {"orders": (0, 3, 7), "ß": (12,)}
METADATA_5 = request(tools.METADATA, 1, 5, struct.pack(">i", 0))
END = request(END_TXN, 1, 5, struct.pack(">h1sqh?", 1, b"t", 7, 0, True))
ENDED = response(END_TXN, 1, 5, struct.pack(">ih", 0, 0))


def topics_of(version: int, topics: dict[str, tuple[int, ...]], field: str, **values: Any) -> list[dict[str, Any]]:
    return [
        ({"topic_id": uuid.UUID(int=len(name))} if version >= 13 else {"name": name})
        | {field: [{"index": index, **values} for index in partitions]}
        for name, partitions in topics.items()
    ]


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
    fields: dict[str, Any] = {"transactional_id": transaction} if version >= 3 else {}
    fields["topic_data"] = topics_of(version, topics, "partition_data", records=head.ljust(size, b"r"))
    return kafka_python_frame(ProduceRequest, version, number, "c", acks=acks, timeout_ms=timeout_ms, **fields)


def answer(number: int, throttle_ms: int, version: int = 7) -> bytes:
    refused = {"error_code": TIMED_OUT, "base_offset": -1, "record_errors": []}
    responses = topics_of(version, TOPICS, "partition_responses", **refused)
    extra = {"throttle_time_ms": throttle_ms} if version else {}
    return kafka_python_frame(ProduceResponse, version, number, responses=responses, **extra)


def indebted(seconds: int) -> Ledger:
    """The group of client "c" owes so many seconds of `LIMIT` at 0."""
    of = Ledger(QuotaTable([Entry(client_id="c", producer_byte_rate=LIMIT)]), max_throttle_ms=120_000)
    owe(of, seconds + 10 if seconds else 0, 0.0)
    return of


def owe(of: Ledger, seconds: int, now_ms: float) -> None:
    for _ in range(seconds):
        of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, LIMIT, now_ms)


class Client:
    """A session, and a shell that wakes it when it asks, looks for arrivals, and reads ahead."""

    def __init__(self, of: Ledger) -> None:
        self.one, self.now_ms = session(of), 0.0
        self.heard: list[tuple[float, bytes]] = []  # when which answers came
        self.forwarded: list[tuple[float, bytes]] = []

    def send(self, data: bytes, at_ms: float, cut: tools.Cut = tools.whole) -> None:
        self.wait(at_ms)
        for part in cut(data):
            self.one.unread += part
            self._go(at_ms)

    def wait(self, until_ms: float) -> None:
        while (at_ms := self.one._effects.wake_at_ms) <= until_ms:
            self._go(max(at_ms, self.now_ms))
        self.now_ms = until_ms

    def _go(self, now_ms: float) -> None:
        one, self.now_ms = self.one, now_ms
        one.wake(now_ms)
        for sent, into in ((one.taken(), self.forwarded), (one.seen(), self.heard)):
            if sent:
                into.append((now_ms, sent))

    def numbers(self) -> list[int]:
        """Of the answers that came."""
        return [int.from_bytes(frame[4:8], "big") for frame in tools.frames(b"".join(data for _, data in self.heard))]


def charged(of: Ledger) -> float:
    return of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize("version", range(14))
def test_refusal_has_the_layout_of_its_version(version: int, cut: tools.Cut) -> None:
    of = indebted(60)
    one, before = Client(of), charged(of)
    one.send(produce(9, version=version, transaction="t"), 1000.0, cut)
    one.wait(31_000.0)
    ((at_ms, frame),) = one.heard
    assert 29_000.0 <= at_ms <= 29_100.0
    ahead_ms = 59_000 + 800 - at_ms  # the debt, less what the gate lets pass
    result = ProduceResponse.decode(frame[4:], version=version, header=True).throttle_time_ms if version else 0
    assert result == pytest.approx(ahead_ms if version else 0, abs=2)
    assert frame == answer(9, result, version)
    assert (one.forwarded, charged(of), one.one.state.counters.produces_refused) == ([], before, 1)


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
    assert first.numbers() == [1]
    first.send(produce(2, size=20 * KB), 29_150.0)
    for now_ms in range(29_200, 45_000, 50):
        first.wait(now_ms)
        second.wait(now_ms)
    assert first.forwarded[0][1][8:12] == b"\0\0\0\2"
    assert first.forwarded[0][0] < second.forwarded[0][0]
    assert charged(of) == 50 * LIMIT + sum(len(frame) - 4 for one in (first, second) for _, frame in one.forwarded)


def test_a_place_ends_when_no_other_request_comes() -> None:
    of = indebted(40)
    (group,) = of.groups(Kind.PRODUCE)
    one, other, last = Client(of), Client(of), Client(of)
    one.send(produce(1, size=20 * KB), 1000.0)
    one.wait(30_000.0)
    assert group.waiting == 1
    other.send(produce(1, acks=0), 30_000.0)
    other.wait(45_000.0)
    assert other.forwarded, "it is waited for no longer than for others"
    assert group.waiting == 1
    last.send(produce(1), 39_900.0 + AWAY_MS)
    assert (len(last.forwarded), group.waiting) == (1, 0)


def test_pipelined_requests_are_refused_together() -> None:
    one = Client(indebted(60))
    one.send(produce(1, size=20 * KB), 1000.0)
    one.send(produce(2, size=20 * KB) + produce(3, size=20 * KB)[:100], 20_000.0)
    one.wait(28_900.0)
    one.send(produce(3, size=20 * KB)[100:] + METADATA_5, 29_010.0)
    one.wait(29_200.0)
    assert one.numbers() == [1, 2, 3]
    assert [frame for _, frame in one.forwarded] == [METADATA_5], "what has no limit passes"
    one.one.broker_sends(response(tools.METADATA, 1, 5, struct.pack(">iii", 0, -1, 0)), one.now_ms)
    one.one.seen()
    one.send(produce(4), 29_250.0)
    one.wait(50_000.0)
    assert one.numbers() == [1, 2, 3], "its own time begins"


def batch(sequence: int, *, producer: int = 7, first_ms: int = 0) -> bytes:
    return struct.pack(">16xb10xq8xqhii", 2, first_ms, producer, 1, sequence, 1)


def plain(first_ms: int) -> bytes:
    return batch(-1, producer=-1, first_ms=first_ms)


def in_records(data: bytes) -> list[bytes]:
    """As Java's client writes a Produce request through TLS."""
    return [data[:4], data[4:20], data[20:]]


@pytest.mark.parametrize(
    ("software", "first", "later", "refused"),
    [
        ("librdkafka", batch(5), batch(6), True),
        ("librdkafka", batch(2**31 - 1), batch(0), True),
        ("librdkafka", batch(5), batch(4), False),
        ("librdkafka", batch(5), batch(6, producer=8), False),
        ("librdkafka", plain(5), plain(6), False),
        ("kgo", batch(5), batch(6), True),
        ("kgo", plain(5), plain(6), True),
        ("kgo", plain(5), plain(5), False),
        ("kgo", plain(5), batch(6), False),
    ],
)
@pytest.mark.parametrize("cut", [tools.whole, in_records])
@pytest.mark.parametrize("version", [3, 13])
def test_batches_ahead_are_refused(
    version: int, software: str, first: bytes, later: bytes, refused: bool, cut: tools.Cut
) -> None:
    of = indebted(60)
    one, before = Client(of), charged(of)
    one.send(kafka_python_frame(ApiVersionsRequest, 3, 0, "c", client_software_name=software), 0.0)
    one.forwarded.clear()
    one.send(produce(1, version=version, head=first, topics={"t": (0, 1), "u": (0,)}), 1000.0, cut)
    one.wait(30_000.0)
    # Past the announced time: what is sent ahead of it is refused at once, and it passes.
    ahead = produce(2, version=version, head=later, topics={"u": (0,)})
    again = produce(3, version=version, head=first, topics={"u": (0,)})
    one.send(ahead, 61_000.0, cut)
    one.send(again, 61_100.0, cut)
    one.wait(62_000.0)
    passed = [again] if refused else [ahead, again]
    assert b"".join(frame for _, frame in one.forwarded) == b"".join(passed)
    assert charged(of) == before + sum(len(frame) - 4 for frame in passed)


def test_a_pipelined_request_is_as_old_as_its_bytes() -> None:
    of = indebted(20)
    one = Client(of)
    one.send(produce(1, size=20 * KB) + produce(2, size=400 * KB), 1000.0)
    one.wait(20_000.0)
    ((passed_ms, _),) = one.forwarded
    assert passed_ms == pytest.approx(19_800, abs=200)
    owe(of, 40, 20_000.0)
    one.wait(35_000.0)
    assert len(one.forwarded) == 1
    one.one.broker_sends(tools.produce_response(1), one.now_ms)
    one._go(one.now_ms)
    assert one.numbers()[-1] == 2
    assert 29_000 <= one.heard[0][0] <= 35_000


def test_a_muted_client_that_sends_is_refused_and_stays_muted() -> None:
    of = indebted(0)
    one = Client(of)
    one.send(produce(1, size=1000 * KB, topics={"t": (0, 1, 2, 3, 4)}), 0.0)
    one.one.broker_sends(tools.produce_response(1), 10.0)
    muted_ms = one.one.mute_until_ms
    assert muted_ms > 35_000
    before = charged(of)
    one.one.seen()
    one.send(produce(2), 1000.0)
    one.wait(29_500.0)
    ((at_ms, frame),) = one.heard
    assert 29_000 <= at_ms <= 29_100
    assert frame == answer(2, round(muted_ms - at_ms))
    assert (one.one.mute_until_ms, one.one.throttle.state) == (muted_ms, Throttled.MUTED)
    one.send(METADATA_5, 30_000.0)
    one.wait(muted_ms - 1)
    assert len(one.forwarded) == 1, "anything else waits"
    one.wait(muted_ms + 1)
    assert one.forwarded[-1][1] == METADATA_5
    assert charged(of) == before


@pytest.mark.parametrize(
    ("smooth", "timeout_ms", "kind", "passes"),
    [
        (True, 30_000, Kind.PRODUCE, True),
        (False, 30_000, Kind.PRODUCE, False),
        (True, 0, Kind.PRODUCE, False),
        (True, 30_000, Kind.REQUEST, False),
    ],
)
def test_a_muted_client_ends_one_transaction(smooth: bool, timeout_ms: int, kind: Kind, passes: bool) -> None:
    entry = Entry(client_id="c", producer_byte_rate=LIMIT)
    of = Ledger(QuotaTable([entry]), max_throttle_ms=120_000, smooth=smooth)
    one = Client(of)
    one.send(END, 0.0)
    one.one.broker_sends(ENDED, 1.0)
    one.send(produce(1, size=1000 * KB, topics={"t": (0, 1, 2)}, timeout_ms=timeout_ms), 2.0)
    one.one.broker_sends(tools.produce_response(1), 10.0)
    if kind is Kind.REQUEST:  # that of another quota besides
        account = of.account("ANONYMOUS", "c")
        one.one.throttle.impose(new_in_flight(2, END_TXN, 1, account, 10.0), kind, 5000, 10.0)
    until_ms = one.one.mute_until_ms
    assert until_ms > 15_000
    one.forwarded.clear()
    one.send(END, 1000.0)
    one.send(END + produce(2), 2000.0)
    one.wait(until_ms - 1)
    assert one.forwarded == [(1000.0, END)] * passes
    one.wait(until_ms + 1)
    assert b"".join(frame for _, frame in one.forwarded).startswith(2 * END)


def test_requests_that_end_a_transaction_are_few() -> None:
    one = Client(indebted(0))
    one.send(END, 0.0)
    one.send(produce(1, size=1000 * KB, topics={"t": (0, 1, 2)}), 2.0)
    one.one.broker_sends(ENDED + tools.produce_response(1), 10.0)
    one.forwarded.clear()
    for number in range(MAX_ENDING + 2):
        one.send(METADATA_5, 100.0 * number + 100.0)
    assert len(one.forwarded) == MAX_ENDING
    assert one.one.mute_until_ms > 15_000


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
