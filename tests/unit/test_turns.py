"""No call of the session takes longer if a peer sends more: what is left of it waits while others are served."""

import struct
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from proxy.core.errors import SessionError
from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.interceptors.quota_admin import MAX_ALTERED, QuotaAdmin
from proxy.core.session.effects import Effects
from proxy.core.session.fetch import MAX_MISSED_PARTITIONS, MAX_SESSIONS, FetchShaper
from proxy.core.session.session import Session
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.messages import framed
from proxy.core.wire.primitives import compact_string, uvarint
from proxy.core.wire.requests import FetchFields, parse_fetch
from proxy.core.wire.topics import CREATE_TOPICS, DELETE_TOPICS, MAX_TOPICS
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, produce, request, response
from tests.support.turns import Watch, growth, in_slices

READ_BYTES = 262_144
TAGS = b"\x64" + b"".join(bytes((number, 0)) for number in range(100))
TO_NO_TOPIC = request(tools.PRODUCE, 10, 1, b"\0" + struct.pack(">hi", 1, 1000) + b"\1\0")
DESCRIBE, ALTER = 48, 49
MANY = 50_000  # elements of one request
NO_ID = bytes(16)
NO_QUOTAS = response(DESCRIBE, 1, 1, struct.pack(">ih", 0, 0) + b"\1\1\0")


class Timed(tools.Driven):
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
    return Timed(of, Counters(), user="ANONYMOUS", translate=tools.translate, **settings)


def reads(data: bytes) -> Iterator[bytes]:
    return (data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES))


def client_sends(one: Timed, data: bytes, watch: Watch | None = None) -> bytes:
    one.watch = watch or Watch()
    return from_client(one, data, cut=reads)


def broker_sends(one: Timed, data: bytes, watch: Watch, now_ms: float = 1.0) -> bytes:
    one.watch = watch
    return from_broker(one, data, now_ms, reads)


def array(elements: list[bytes]) -> bytes:
    return uvarint(len(elements) + 1) + b"".join(elements)


TINY = {
    "ApiVersions": request(tools.API_VERSIONS, 0, 1, b"", client_id=""),
    "ApiVersions that is answered here": request(tools.API_VERSIONS, 99, 1, b"", client_id=""),
    "DescribeClientQuotas": request(48, 0, 1, struct.pack(">ib", 0, 0)),
    "Produce without acks": produce(1, 60, acks=0),
    "an unknown API": request(999, 0, 1, b""),
    "headers of a hundred tagged fields": framed(struct.pack(">hhih", 3, 9, 1, 1) + b"c" + TAGS + b"\1\0\0\0"),
    "Fetch": request(tools.FETCH, 12, 1, tools.fetch_body(12)),
}


@pytest.mark.parametrize("what", TINY)
@pytest.mark.parametrize("limit", [None, 1e12], ids=["no limit", "a limit"])
def test_a_pipeline_of_tiny_requests_goes_in_slices(what: str, limit: float | None) -> None:
    for watch in in_slices():
        of = ledger(produce_rate=limit, fetch_rate=limit, request_percentage=limit)
        data = TINY[what] * (READ_BYTES // len(TINY[what]))
        sent = client_sends(session(of, max_in_flight=1_000_000), data, watch)
        assert sent == (b"" if "answered here" in what else data)


@pytest.mark.parametrize("step", [READ_BYTES, 1001])
def test_a_pipeline_of_tiny_responses_goes_in_slices(step: int) -> None:
    for watch in in_slices():
        one, data = session(ledger(), max_in_flight=1_000_000), tools.produce_response(1) * 3000
        client_sends(one, produce(1, 60) * 3000)
        outcome = [broker_sends(one, data[at : at + step], watch) for at in range(0, len(data), step)]
        assert (b"".join(outcome), list(one.exchange)) == (data, [])


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


LARGE: dict[str, tuple[int, Callable[[int], bytes], int]] = {
    "brokers": (tools.METADATA, metadata_of, 10_000),
    "partitions": (tools.PRODUCE, produced_to, 50_000),
    "leaders": (tools.PRODUCE, lambda leaders: produced_to(1, leaders), 20_000),
}


@pytest.mark.parametrize("of_many", LARGE)
@pytest.mark.parametrize("limit", [None, 1.0], ids=["no limit", "a limit"])
def test_large_responses_are_rewritten_in_slices(of_many: str, limit: float | None) -> None:
    api_key, told_of, size = LARGE[of_many]

    for watch in in_slices():
        one, outcome = session(ledger(request_percentage=limit)), told_of(size)
        client_sends(one, request(tools.METADATA, 9, 1, bytes(5)) if api_key == tools.METADATA else TO_NO_TOPIC)
        got = broker_sends(one, response(api_key, 9 if api_key == tools.METADATA else 10, 1, outcome), watch, 20_000.0)
        assert (got.count(b"broker-"), got.count(b"sidecar")) == (0, outcome.count(b"broker-"))
        assert (struct.unpack_from(">i", got)[0], list(one.exchange)) == (len(got) - 4, [])


@pytest.mark.parametrize("partitions", [450, 900])
def test_what_a_broker_missed_is_told_or_forgotten(partitions: int) -> None:
    """As much as is remembered of all sessions of a connection."""
    shaper = FetchShaper()

    def fetch(number: int, epoch: int, offsets: dict[int, int]) -> tuple[FetchFields, memoryview]:
        body = tools.fetch_body(12, session_id=number, epoch=epoch, partitions=offsets)
        fields = parse_fetch(body, 0, len(body), 12)
        assert fields is not None
        return fields, memoryview(body)

    for epoch in (1, 2):
        offsets = dict.fromkeys(range(epoch * partitions, (epoch + 1) * partitions), 0)
        for number in range(MAX_SESSIONS):
            shaper.take_over(*fetch(number + 1, epoch, offsets), 12)
    for number, offsets in ((3, {}), (4, dict.fromkeys(range(partitions), 1))):
        outcome = shaper.forward(*fetch(number, 3, offsets), 12, None)
        if 2 * partitions + len(offsets) < MAX_MISSED_PARTITIONS:
            assert outcome is not None
            assert len(outcome) > 2 * partitions * 33
        else:
            assert outcome is None, "the client's own epoch is not the broker's: it starts over"
            assert number not in shaper.missed


@pytest.mark.parametrize("what", ["Fetch", "Produce without acks"])
def test_a_connection_with_all_in_flight_ends_at_once(what: str) -> None:
    def run(count: int, watch: Watch) -> None:
        of = ledger(fetch_rate=1e12, produce_rate=1e12)
        one = session(of, max_in_flight=count)
        client_sends(one, TINY[what] * count)
        assert one.must_wait == (what == "Fetch")
        watch(partial(one.close, 1.0))
        assert not of.reservations

    assert growth(run, 256) < 8, "four times as long for four times as many"


def entry(name: str, ops: int) -> bytes:
    """An entry of an AlterClientQuotas request: one user, the same operation again and again."""
    op = compact_string("producer_byte_rate") + struct.pack(">d?", 1.0, False) + b"\0"
    return array([compact_string("user") + compact_string(name) + b"\0"]) + array([op] * ops) + b"\0"


def of_entries(entries: list[bytes], validate_only: bool = False) -> bytes:
    return array(entries) + bytes((validate_only, 0))


def of_topics(name: str, partitions: int, configs: int = 0) -> bytes:
    config = compact_string("k") + compact_string("v") + b"\0"
    return compact_string(name) + struct.pack(">ih", partitions, 1) + b"\1" + array([config] * configs) + b"\0"


def administered(limit: float | None, authority: tools.Authority | None = None) -> tuple[Timed, Ledger]:
    of = Ledger(QuotaTable([Entry(client_id=DEFAULT, controller_mutation_rate=limit)] if limit else []))
    admin = QuotaAdmin(authority or tools.Authority())
    handlers = dict.fromkeys(MUTATION_APIS, MutationQuota(of)) | {DESCRIBE: admin, ALTER: admin}
    return session(of, interceptors=handlers, cpu_ms=lambda: time.thread_time() * 1000.0), of


def create_topics(*topics: bytes) -> bytes:
    return request(CREATE_TOPICS, 7, 1, array(list(topics)) + struct.pack(">i?", 1000, False) + b"\0")


def delete_topics(count: int) -> bytes:
    names = [compact_string(f"t{number}") + NO_ID + b"\0" for number in range(count)]
    return request(DELETE_TOPICS, 6, 1, array(names) + struct.pack(">i", 1000) + b"\0")


@pytest.mark.parametrize(("rule", "code", "text"), [("deny", 44, b"altered"), ("apply", 42, b"split it")])
@pytest.mark.parametrize("what", ["one entry of many operations", "many entries"])
def test_a_huge_alteration_is_refused_in_slices_and_charged(what: str, rule: Any, code: int, text: bytes) -> None:
    for watch in in_slices():
        authority = tools.Authority(rule)
        one, of = administered(None, authority)
        entries = [entry(f"u{number}", 1) for number in range(MANY // 3)] if "entries" in what else [entry("u", MANY)]
        assert client_sends(one, request(ALTER, 1, 1, of_entries(entries)), watch) == b""
        answer = one.seen()
        assert answer.count(struct.pack(">h", code)) >= len(entries)
        assert answer.count(text) <= MAX_ALTERED
        assert not authority.applied
        charged_ms = of.account("ANONYMOUS", "c").meters[Kind.REQUEST].amount
        assert charged_ms > 300 * sum(watch.took_s), "reading and copying aside, what it took is charged"


def test_of_a_filter_of_many_components_only_four_are_read() -> None:
    one, _ = administered(None)
    components = uvarint(MANY + 1) + (compact_string("user") + b"\2\0\0") * 4 + b"\xff" * MANY
    assert len(client_sends(one, request(DESCRIBE, 1, 1, components))) < 100, "the broker is asked for nothing"
    one.broker_sends(NO_QUOTAS, 1.0)
    assert b"expected each entity type once" in one.seen()


def test_a_filter_of_many_tagged_fields_is_refused_unread() -> None:
    one, _ = administered(None)
    with pytest.raises(SessionError, match="above the limit"):
        client_sends(one, request(DESCRIBE, 1, 1, b"\1\0" + uvarint(MANY) + b"\1\0" * MANY))


@pytest.mark.parametrize("limit", [None, 1e9, 1.0])
def test_many_configurations_are_read_in_slices(limit: float | None) -> None:
    for watch in in_slices():
        one, of = administered(limit)
        data = create_topics(of_topics("t", 3, MANY))
        assert client_sends(one, data, watch) == data
        assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 3


def test_topics_beyond_what_is_judged_are_refused_in_slices() -> None:
    for watch in in_slices():
        one, _ = administered(1.0)
        assert client_sends(one, delete_topics(MAX_TOPICS + 1), watch) == b""
        assert one.seen().count(b"excessively large") == MAX_TOPICS + 1


def test_as_many_topics_as_a_controller_deletes_in_slices() -> None:
    for watch in in_slices():
        one, of = administered(1e9)
        data = delete_topics(MAX_TOPICS)
        assert struct.unpack_from(">h", client_sends(one, data, watch), 4)[0] == tools.METADATA
        partition = struct.pack(">hiii", 0, 0, 1, 0) + b"\1\1\1\0"
        topics = [
            bytes(2) + compact_string(f"t{n}") + uuid.UUID(int=n + 1).bytes + b"\0" + array([partition] * 2) + bytes(5)
            for n in range(MAX_TOPICS)
        ]
        outcome = bytes(4) + b"\1\0" + struct.pack(">i", 1) + array(topics) + bytes(5)
        assert broker_sends(one, response(tools.METADATA, 10, 1, outcome), watch) == b""
        assert one.taken() == data
        assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 2 * MAX_TOPICS


def test_no_more_results_are_read_than_topics_were_named() -> None:
    one, of = administered(1e9)
    client_sends(one, create_topics(of_topics("t", 3)))
    result = compact_string("x") + NO_ID + struct.pack(">h", 0) + b"\0" + struct.pack(">ih", 3, 1) + b"\1\0"
    outcome = response(CREATE_TOPICS, 7, 1, struct.pack(">i", 0) + array([result] * 100_000) + b"\0")
    assert broker_sends(one, outcome, watch := Watch()) == outcome
    assert len(watch.took_s) < 100, "what comes after the first results is not looked at"
    assert of.account("ANONYMOUS", "c").meters[Kind.MUTATION].amount == 3


def test_many_limits_are_validated_and_described_in_slices() -> None:
    for watch in in_slices():
        clients = QuotaTable(Entry(client_id=f"client {number}", producer_byte_rate=1e6) for number in range(20_000))
        one, _ = administered(None, tools.Authority("apply", clients))
        altered = [entry(f"u{number}", 1) for number in range(MAX_ALTERED)]
        client_sends(one, request(ALTER, 1, 1, of_entries(altered, validate_only=True)), watch)
        assert one.seen().count(b"\5user") == MAX_ALTERED
        client_sends(one, request(DESCRIBE, 1, 1, array([]) + b"\0\0"), watch)
        assert broker_sends(one, NO_QUOTAS, watch).count(b"producer_byte_rate") == 20_000
