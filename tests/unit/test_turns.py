"""No call of the session takes long, whatever a peer sends: what is left of it waits while others are served.

Bounds are CPU time of this thread, so that what else the machine does changes nothing.
"""

import struct
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.interceptors.quota_admin import MAX_ALTERED, QuotaAdmin
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.session.effects import Effects
from proxy.core.session.fetch import MAX_MISSED_PARTITIONS, MAX_SESSIONS, FetchShaper
from proxy.core.session.frames import FRAMES_PER_TURN
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.messages import framed
from proxy.core.wire.primitives import compact_string, uvarint
from proxy.core.wire.requests import FetchFields, parse_fetch
from proxy.core.wire.topics import CREATE_TOPICS, DELETE_TOPICS, MAX_TOPICS
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Authority,
    Driven,
    answers,
    fetch_body,
    ledger,
    produce,
    produce_response,
    request,
    response,
    translate,
)
from tests.support.turns import BUSY, TURN_MS, Watch

READ_BYTES = 65_536


def in_reads(data: bytes) -> list[bytearray]:
    return [bytearray(data[at : at + READ_BYTES]) for at in range(0, len(data), READ_BYTES)]


class Timed(Driven):
    """A session of which each door is timed by `watch`."""

    watch: Watch


def timed(name: str) -> Callable[..., Effects]:
    door = getattr(Session, name)

    def call(one: Timed, *arguments: Any) -> Effects:
        result: Effects = one.watch(partial(door, one, *arguments))
        return result

    return call


for each in ("on_client_bytes", "on_broker_bytes", "on_turn", "on_deadline", "on_decision"):
    setattr(Timed, each, timed(each))


def session(of: Ledger, **settings: Any) -> Timed:
    return Timed(of, Counters(), user="ANONYMOUS", translate=translate, **settings)


def client_sends(one: Timed, data: bytes, watch: Watch, now_ms: float = 0.0) -> bytes:
    one.watch = watch
    for part in in_reads(data):
        one.client_sends(bytes(part), now_ms)
    return one.taken()


def broker_sends(one: Timed, data: bytes, watch: Watch, now_ms: float = 1.0) -> bytes:
    one.watch = watch
    for part in in_reads(data):
        one.broker_sends(bytes(part), now_ms)
    return answers(one)


def header_of_tags() -> bytes:
    """A Metadata request with as many tagged fields in its header as may be."""
    tags = b"".join(bytes((i, 0)) for i in range(100))
    return framed(struct.pack(">hhih", 3, 9, 1, 1) + b"c" + b"\x64" + tags + b"\1\0\0\0")


TINY = {
    "ApiVersions": request(API_VERSIONS, 0, 1, b"", client_id=""),
    "ApiVersions that is answered here": request(API_VERSIONS, 99, 1, b"", client_id=""),
    "DescribeClientQuotas": request(48, 0, 1, struct.pack(">ib", 0, 0)),
    "Produce without acks": produce(1, 60, acks=0),
    "an unknown API": request(999, 0, 1, b""),
    "headers of a hundred tagged fields": header_of_tags(),
    "Fetch": request(FETCH, 12, 1, fetch_body(12)),
}


@pytest.mark.parametrize("what", TINY)
@pytest.mark.parametrize("limit", [None, 1e12], ids=["no limit", "a limit"])
def test_a_pipeline_of_tiny_requests_goes_in_slices(what: str, limit: float | None) -> None:
    of = ledger(produce_rate=limit, fetch_rate=limit, request_percentage=limit)
    one, watch = session(of, max_in_flight=1_000_000), Watch()
    frame = TINY[what]
    data = frame * (2 * READ_BYTES // len(frame))
    sent = client_sends(one, data, watch)
    assert len(sent) == (0 if "answered here" in what else len(data))
    if "hundred" not in what:
        assert len(watch.took) >= data.count(frame) // FRAMES_PER_TURN
    watch.check()


def test_a_pipeline_of_tiny_responses_goes_in_slices() -> None:
    count = 3000
    data = produce_response(1) * count
    for step in (READ_BYTES, 1001):
        one, watch = session(ledger(), max_in_flight=1_000_000), Watch()
        client_sends(one, produce(1, 60) * count, Watch())
        told = [broker_sends(one, data[at : at + step], watch) for at in range(0, len(data), step)]
        assert b"".join(told) == data
        assert len(watch.took) >= count // FRAMES_PER_TURN
        assert not one.exchange
        watch.check()


NO_RECORDS = b"\0" + struct.pack(">hi", 1, 1000) + b"\1\0"
"""The body of a Produce request for no topic."""


def array(elements: list[bytes]) -> bytes:
    return uvarint(len(elements) + 1) + b"".join(elements)


def metadata_of(brokers: int) -> bytes:
    nodes = [
        struct.pack(">i", n) + compact_string(f"broker-{n}.kafka") + struct.pack(">i", 9092) for n in range(brokers)
    ]
    head = struct.pack(">i", 0) + array([node + b"\0\0" for node in nodes])
    return head + compact_string("cluster") + struct.pack(">i", 0) + b"\1\0"


def produced_to(partitions: int, endpoints: int = 0) -> bytes:
    """The answer to a Produce of one topic; with the new leaders' addresses."""
    each = [struct.pack(">ihqqq", number, 6, -1, -1, -1) + b"\1\0\0" for number in range(partitions)]
    node = struct.pack(">i", 1) + compact_string("broker-1.kafka") + struct.pack(">i", 9092) + b"\0\0"
    tags = b"\1\0" + uvarint(len(nodes := array([node] * endpoints))) + nodes if endpoints else b"\0"
    return array([compact_string("t") + array(each) + b"\0"]) + struct.pack(">i", 0) + tags


def metadata_with_the_fleets_topic() -> bytes:
    partition = struct.pack(">hiii", 0, 0, 1, 0) + b"\2\0\0\0\1\2\0\0\0\1\1\0"
    named = [compact_string(name) for name in (*(f"t{number}" for number in range(10_000)), FLEET)]
    topics = [b"\0\0" + name + b"\0" + array([partition] * 9) + bytes(5) for name in named]
    return metadata_of(3)[:-2] + array(topics) + bytes(5)


FLEET = "kquota-fleet"
LARGE = {
    "Metadata of 10 000 brokers": (METADATA, 9, b"\0\0\0\0\0", metadata_of(10_000), 1.5 * TURN_MS),
    "Metadata with a hidden topic": (METADATA, 9, b"\0\0\0\0\0", metadata_with_the_fleets_topic(), 5.0),
    "Produce to 50 000 partitions": (PRODUCE, 10, NO_RECORDS, produced_to(50_000), 1.5 * TURN_MS),
    "Produce with 20 000 leaders": (PRODUCE, 10, NO_RECORDS, produced_to(1, 20_000), 1.5 * TURN_MS),
}


@pytest.mark.parametrize("what", LARGE)
@pytest.mark.parametrize("limit", [None, 1.0], ids=["no limit", "a limit"])
def test_large_responses_are_rewritten_in_slices(what: str, limit: float | None) -> None:
    api_key, version, asked, told, most_ms = LARGE[what]
    of = ledger(request_percentage=limit)
    one, watch = session(of, reserved=ReservedTopic(FLEET, {}, lambda: None) if "hidden" in what else None), Watch()
    client_sends(one, request(api_key, version, 1, asked), Watch())
    got = broker_sends(one, response(api_key, version, 1, told), watch, 20_000.0)
    assert got.count(b"broker-") == got.count(FLEET.encode()) == 0
    assert got.count(b"sidecar") == told.count(b"broker-")
    assert got.count(b"t9999") == told.count(b"t9999")
    assert struct.unpack_from(">i", got)[0] == len(got) - 4
    assert not one.exchange
    watch.check(most_ms)  # up to 4 MB of it are copied


@pytest.mark.parametrize("partitions", [450, 900])
def test_what_a_broker_missed_is_told_or_forgotten_at_once(partitions: int) -> None:
    """As much as is remembered of all sessions of a connection: one of them is told, and then the connection ends."""
    shaper, watch = FetchShaper(), Watch()

    def fetch(number: int, epoch: int, offsets: dict[int, int]) -> tuple[FetchFields, memoryview]:
        body = fetch_body(12, session_id=number, epoch=epoch, partitions=offsets)
        fields = parse_fetch(body, 0, len(body), 12)
        assert fields is not None
        return fields, memoryview(body)

    for epoch in (1, 2):
        offsets = dict.fromkeys(range(epoch * partitions, (epoch + 1) * partitions), 0)
        for number in range(MAX_SESSIONS):
            fields, body = fetch(number + 1, epoch, offsets)
            watch(partial(shaper.take_over, fields, body, 12))
    for number, offsets in ((3, {}), (4, dict.fromkeys(range(partitions), 1))):
        fields, body = fetch(number, 3, offsets)
        told = watch(partial(shaper.forward, fields, body, 12, None))
        if 2 * partitions + len(offsets) < MAX_MISSED_PARTITIONS:
            assert told is not None
            assert len(told) > 2 * partitions * 33
        else:
            assert told is None, "the client's own epoch is not the broker's: it starts over"
            assert number not in shaper.missed
    del fields, body
    watch(shaper.missed.clear)
    watch.check(5.0)


@pytest.mark.parametrize("what", ["Fetch", "Produce without acks"])
def test_a_connection_with_all_in_flight_ends_at_once(what: str) -> None:
    of, watches = ledger(fetch_rate=1e12, produce_rate=1e12), []
    for _ in range(3):
        one, watch = session(of, max_in_flight=1024), Watch()
        client_sends(one, TINY[what] * 1024, Watch())
        assert one.must_wait == (what == "Fetch")
        watch(partial(one.close, 1.0))
        watches += watch.took
    assert not of.reservations
    assert min(watches) < BUSY * 5.0


DESCRIBE, ALTER = 48, 49
MANY = 195_000
"""Elements of one request, just below what is refused as malformed."""
NO_ID = bytes(16)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """The schemas of all these messages, which are imported when the first one comes."""
    one, _ = administered(1.0)
    for data in (
        create_topics(of_topics("t", 1)),
        delete_topics(MAX_TOPICS + 1),
        request(ALTER, 1, 1, of_entries([entry("u", 1)])),
        request(DESCRIBE, 1, 1, array([]) + b"\0\0"),
    ):
        client_sends(one, data, Watch())


def entry(name: str, ops: int) -> bytes:
    """An entry of an AlterClientQuotas request: one user, the same operation again and again."""
    op = compact_string("producer_byte_rate") + struct.pack(">d?", 1.0, False) + b"\0"
    return array([compact_string("user") + compact_string(name) + b"\0"]) + array([op] * ops) + b"\0"


def of_entries(entries: list[bytes]) -> bytes:
    return array(entries) + b"\0\0"  # validate_only, tagged fields


def of_topics(name: str, partitions: int, configs: int = 0) -> bytes:
    config = compact_string("k") + compact_string("v") + b"\0"
    return compact_string(name) + struct.pack(">ih", partitions, 1) + b"\1" + array([config] * configs) + b"\0"


def administered(limit: float | None, authority: Authority | None = None) -> tuple[Timed, Ledger]:
    of = Ledger(QuotaTable([Entry(client_id=DEFAULT, controller_mutation_rate=limit)] if limit else []))
    admin = QuotaAdmin(authority or Authority())
    handlers = dict.fromkeys(MUTATION_APIS, MutationQuota(of)) | {DESCRIBE: admin, ALTER: admin}
    cpu_ms = lambda: time.thread_time() * 1000.0  # noqa: E731
    return session(of, interceptors=handlers, cpu_ms=cpu_ms), of


def create_topics(*topics: bytes) -> bytes:
    return request(CREATE_TOPICS, 7, 1, array(list(topics)) + struct.pack(">i?", 1000, False) + b"\0")


def delete_topics(count: int) -> bytes:
    names = [compact_string(f"t{number}") + NO_ID + b"\0" for number in range(count)]
    return request(DELETE_TOPICS, 6, 1, array(names) + struct.pack(">i", 1000) + b"\0")


ALTERING = {
    "one entry of many operations": of_entries([entry("alice", MANY)]),
    "many entries": of_entries([entry(f"u{number}", 1) for number in range(MANY // 3)]),
    "an entry of many tagged fields": of_entries([entry("alice", 1)])[:-1] + uvarint(99) + b"\1\0" * 99,
}


@pytest.mark.parametrize("rule", ["deny", "apply"])
@pytest.mark.parametrize("what", ALTERING)
def test_a_huge_alteration_is_refused_in_slices_and_charged(what: str, rule: str) -> None:
    authority = Authority("apply" if rule == "apply" else "deny")
    one, of = administered(None, authority)
    if rule == "apply" and "tagged" in what:
        return  # malformed: something else may be meant
    watch = Watch()
    assert client_sends(one, request(ALTER, 1, 1, ALTERING[what]), watch) == b""
    answer = answers(one)
    code = struct.pack(">h", 44 if rule == "deny" else 42)
    assert answer.count(code) >= (MANY // 3 if what == "many entries" else 1)
    assert answer.count(b"altered" if rule == "deny" else b"split it") <= MAX_ALTERED
    assert not authority.applied
    charged_ms = of.account("ANONYMOUS", "c").meters[Kind.REQUEST].amount
    assert charged_ms > 0.3 * sum(watch.took), "reading and copying aside, what it took is charged"
    watch.check()


def test_filter_of_many_components_costs_as_four() -> None:
    one, _ = administered(None)
    component = compact_string("user") + b"\2\0\0"
    watch = Watch()
    data = request(DESCRIBE, 1, 1, array([component] * MANY) + b"\0\0")
    sent = client_sends(one, data, watch)
    assert len(sent) < 100, "the broker is asked for nothing"
    nothing = response(DESCRIBE, 1, 1, struct.pack(">ih", 0, 0) + b"\1\1\0")
    assert b"expected each entity type once" in broker_sends(one, nothing, watch)
    watch.check()


@pytest.mark.parametrize("limit", [None, 1e9, 1.0])
def test_many_configurations_are_read_in_slices(limit: float | None) -> None:
    one, of = administered(limit)
    watch = Watch()
    data = create_topics(of_topics("t", 3, MANY))
    assert client_sends(one, data, watch) == data
    assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 3
    if limit:
        one, _ = administered(limit)
        assert client_sends(one, delete_topics(MAX_TOPICS + 1), watch) == b""
        assert answers(one).count(b"excessively large") == MAX_TOPICS + 1
    watch.check()


def test_as_many_topics_as_a_controller_deletes_in_slices() -> None:
    one, of = administered(1e9)
    watch = Watch()
    data = delete_topics(MAX_TOPICS)
    question = client_sends(one, data, watch)
    assert struct.unpack_from(">h", question, 4)[0] == METADATA
    topics = [
        struct.pack(">h", 0) + compact_string(f"t{number}") + uuid.UUID(int=number + 1).bytes + b"\0" + array(
            [struct.pack(">hiii", 0, 0, 1, 0) + b"\1\1\1\0"] * 2
        ) + struct.pack(">i", 0) + b"\0"
        for number in range(MAX_TOPICS)
    ]  # fmt: skip
    head = struct.pack(">i", 0) + b"\1" + b"\0" + struct.pack(">i", 1)
    told = response(METADATA, 10, 1, head + array(topics) + struct.pack(">i", 0) + b"\0")
    assert broker_sends(one, told, watch) == b""
    assert one.taken() == data
    assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 2 * MAX_TOPICS
    watch.check(5.0)


def test_no_more_results_are_read_than_topics_were_named() -> None:
    one, of = administered(1e9)
    client_sends(one, create_topics(of_topics("t", 3)), Watch())
    result = compact_string("x") + NO_ID + struct.pack(">h", 0) + b"\0" + struct.pack(">ih", 3, 1) + b"\1\0"
    told = response(CREATE_TOPICS, 7, 1, struct.pack(">i", 0) + array([result] * 100_000) + b"\0")
    watch = Watch()
    assert broker_sends(one, told, watch) == told
    watch.check(5.0)  # the response of 3 MB is copied in one piece
    assert len(watch.took) < 100, "what comes after the first results is not looked at"
    assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 3


def test_many_limits_are_validated_and_described_in_slices() -> None:
    clients = {(("client-id", f"client {number}"),): {"producer_byte_rate": 1e6} for number in range(20_000)}
    one, _ = administered(None, Authority("apply", clients))
    watch = Watch()
    validated = array([entry(f"u{number}", 1) for number in range(MAX_ALTERED)]) + b"\1\0"  # validate_only
    client_sends(one, request(ALTER, 1, 1, validated), watch)
    assert answers(one).count(b"\5user") == MAX_ALTERED
    client_sends(one, request(DESCRIBE, 1, 1, array([]) + b"\0\0"), watch)
    told = broker_sends(one, response(DESCRIBE, 1, 1, struct.pack(">ih", 0, 0) + b"\1\1\0"), watch)
    assert told.count(b"producer_byte_rate") == 20_000
    watch.check(5.0)  # an answer of 1 MB is put together and copied in one piece
