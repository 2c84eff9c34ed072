"""The fleet's topic can be neither changed nor used through the sidecar: all versions of the requests that name it."""

import dataclasses
import io
import random
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from kio.schema.types import TopicName
from kio.static.constants import EntityType

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.intercept import AdminRequest, Answer, Ask, Forward, Work
from proxy.core.interceptors.mutations import MutationQuota
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.wire.apis import METADATA, PRODUCE, version_range
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import compact_string, uvarint
from proxy.core.wire.schema import TOPIC_WALKS
from proxy.core.wire.stream import MAX_ELEMENTS
from proxy.core.wire.topic_changes import ALTER_CONFIGS, DELETE_RECORDS, INCREMENTAL_ALTER_CONFIGS, TOPIC_CHANGES
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.support.mutation_tools import create, delete, encoded, partitions
from tests.support.session_tools import Driven, encode, finished, from_broker, from_client, request, response, session
from tests.support.turns import Watch, in_slices
from tests.support.wire_tools import kafka_python_class, kafka_python_message, kio_class, kio_read, kio_versions, sample

TOPIC, NOT_ATTEMPTED, REFUSED = "kquota-fleet", 55, 29
LEDGER = Ledger(QuotaTable([]))
OWN_ID = uuid.UUID(int=41)
RESULTS = {CREATE_TOPICS: "topics", CREATE_PARTITIONS: "results", DELETE_RECORDS: "topics"}
"""The field of the response that has a result for each topic, where that is not "responses"."""
VERSIONS = [
    (api_key, version)
    for api_key in TOPIC_CHANGES
    for low, high in [version_range(api_key) or (0, -1)]
    for version in range(low, high + 1)
]
USING = [each for each in kio_versions(EntityType.request) if each[0] in TOPIC_WALKS]
ORDERS = compact_string("orders")


def _requests(api_key: int, version: int, names: list[str], kind: int = 2) -> Any:
    if api_key == CREATE_TOPICS:
        return create(version, dict.fromkeys(names, 1))
    if api_key == DELETE_TOPICS:
        return delete(version, names)
    if api_key == CREATE_PARTITIONS:
        return partitions(version, dict.fromkeys(names, 9))
    cls = kafka_python_class(api_key, "request")
    if api_key == DELETE_RECORDS:
        parts = [{"partition_index": index, "offset": -1} for index in range(2)]
        return kafka_python_message(cls, version, topics=[{"name": name, "partitions": parts} for name in names])
    config = {"name": "retention.ms", "value": "1"} | ({} if api_key == ALTER_CONFIGS else {"config_operation": 0})
    resources = [{"resource_type": kind, "resource_name": name, "configs": [config]} for name in names]
    return kafka_python_message(cls, version, resources=resources, validate_only=False)


def _guard() -> ReservedTopic:
    quota = MutationQuota(LEDGER)
    return ReservedTopic(TOPIC, {CREATE_TOPICS: quota, DELETE_TOPICS: quota}, lambda: OWN_ID.bytes)


def _guarded(*, rewrite: bool = False) -> Driven:
    return session(LEDGER, rewrite=rewrite, reserved=_guard())


def _ask(guard: ReservedTopic, api_key: int, version: int, body: bytes) -> Any:
    return finished(guard.request(AdminRequest(api_key, version, "u", LEDGER.account("u", "c"), body), 0.0))


def _errors(api_key: int, version: int, outcome: Any) -> list[tuple[str | None, int]]:
    assert isinstance(outcome, Answer)
    reader = io.BytesIO(outcome.body)
    message = kafka_python_class(api_key, "response").decode(reader, version=version)
    assert not reader.read()  # nothing behind it
    found: list[tuple[str | None, int]] = []
    for one in getattr(message, RESULTS.get(api_key, "responses")):
        name = one.resource_name if api_key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS) else one.name
        inner = one.partitions if api_key == DELETE_RECORDS else [one]
        found += [(name, part.error_code) for part in inner]
    return found


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_the_topic_is_refused_and_no_other(api_key: int, version: int) -> None:
    guard = _guard()
    names = ["orders", TOPIC, f"{TOPIC}-2"]
    body = encoded(_requests(api_key, version, names))
    several = 2 if api_key == DELETE_RECORDS else 1
    wanted = [(name, REFUSED if name == TOPIC else NOT_ATTEMPTED) for name in names for _ in range(several)]
    assert _errors(api_key, version, _ask(guard, api_key, version, body)) == wanted
    assert guard.refused.total() == 1
    for others in (["orders"], [f"{TOPIC}-2", "x"]):
        body = encoded(_requests(api_key, version, others))
        assert isinstance(_ask(guard, api_key, version, body), Forward | Ask)
    assert guard.refused.total() == 1


def test_a_broker_of_the_same_name_may_be_altered() -> None:
    body = encoded(_requests(ALTER_CONFIGS, 2, [TOPIC], kind=4))
    assert isinstance(_ask(_guard(), ALTER_CONFIGS, 2, body), Forward)


@pytest.mark.parametrize("name", [TOPIC, "orders"])
def test_the_topic_is_not_deleted_by_its_id_either(name: str) -> None:
    own, other = uuid.uuid4(), uuid.uuid4()
    asked = _ask(_guard(), DELETE_TOPICS, 6, encoded(delete(6, [], [other, own])))
    assert isinstance(asked, Ask)
    topics = [{"error_code": 0, "name": name, "topic_id": own, "partitions": []}]
    cls = kafka_python_class(METADATA, "response")
    answer = kafka_python_message(cls, asked.api_version, throttle_time_ms=0, brokers=[], topics=topics)
    outcome = finished(asked.then(bytes(answer.encode(version=asked.api_version)), 0.0))
    if name == TOPIC:
        assert [code for _, code in _errors(DELETE_TOPICS, 6, outcome)] == [NOT_ATTEMPTED, REFUSED]
    else:
        assert isinstance(outcome, Forward | Ask)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_what_cannot_be_read_ends_the_connection(api_key: int, version: int) -> None:
    body = encoded(_requests(api_key, version, [TOPIC]))
    with pytest.raises(WireError):
        _ask(_guard(), api_key, version, body[: body.index(TOPIC.encode()) + len(TOPIC)])


@pytest.mark.parametrize("api_key", TOPIC_CHANGES)
def test_requests_of_very_many_entries_are_judged_in_slices(api_key: int) -> None:
    names = [*(f"t{number}" for number in range(5000)), TOPIC]
    version = (version_range(api_key) or (0, 0))[1]
    body = encoded(_requests(api_key, version, names))

    for watch in in_slices(0.1):
        work = _guard().request(AdminRequest(api_key, version, "u", LEDGER.account("u", "c"), body), 0.0)
        outcome = None
        while outcome is None:
            assert isinstance(work, Work)
            outcome = watch(partial(work.advance, 0.0))
        assert len(_errors(api_key, version, outcome)) >= 5001


def _named(message: Any) -> Iterator[bytes]:
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name in ("topic", "name", "topic_id") and isinstance(value, str | uuid.UUID):
            yield value.encode() if isinstance(value, str) else value.bytes
        elif isinstance(value, tuple):
            for one in value:
                if dataclasses.is_dataclass(one):
                    yield from _named(one)
                elif field.name == "topics":
                    yield str(one).encode()


def _renamed(message: Any, old: bytes) -> Any:
    """The message with the reserved topic in place of this one."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, uuid.UUID) and value.bytes == old:
            changed[field.name] = OWN_ID
        elif field.name in ("topic", "name") and str(value).encode() == old:
            changed[field.name] = TopicName(TOPIC)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            changed[field.name] = tuple(_renamed(one, old) for one in value)
    return dataclasses.replace(message, **changed)


def _sent_on(frame: bytes, pieces_of: int) -> bytes:
    """What goes to the broker of a request that comes in pieces. Of what need not be seen nothing is shown."""
    one, sent, at = _guarded(), bytearray(), 0
    while at < len(frame):
        if unseen := min(one.requests.reader.movable(), len(frame) - at):
            one.client_moved(unseen, 0.0)
            sent += frame[at : at + unseen]
            at += unseen
        sent += from_client(one, frame[at : at + pieces_of])
        at += pieces_of
    return bytes(sent)


@pytest.mark.parametrize(("api_key", "version"), USING)
def test_no_request_that_names_the_topic_comes_to_its_end(api_key: int, version: int) -> None:
    message = sample(kio_class(api_key, version, EntityType.request), random.Random(version), repeat=2)
    frame, names = request(api_key, version, 1, encode(message)), list(_named(message))
    assert len(names) >= 2
    for size in (1, 7, len(frame)):
        assert _sent_on(frame, size) == frame
    for name, size in product(names, (1, 7, 1 << 30)):
        with pytest.raises(SessionError) as caught:
            _sent_on(request(api_key, version, 1, encode(_renamed(message, name))), size)
        assert caught.value.reason is CloseReason.RESERVED_TOPIC


def _produce(*topics: bytes) -> bytes:
    return request(PRODUCE, 9, 1, b"\0" + bytes(6) + uvarint(len(topics) + 1) + b"".join(topics) + b"\0")


def _records(topic: bytes, records: bytes) -> bytes:
    return topic + b"\2" + bytes(4) + uvarint(len(records) + 1) + records + b"\0\0"


def test_records_may_contain_the_name_and_need_not_be_seen() -> None:
    records = compact_string(TOPIC) * 10_000
    frame = _produce(_records(ORDERS, records), _records(compact_string(f"{TOPIC}-2"), records))
    assert _sent_on(frame, len(frame)) == frame
    from_client(one := _guarded(), frame[:100])
    assert one.requests.reader.movable() >= len(records) - 100
    assert _sent_on(frame, 100) == frame


@pytest.mark.parametrize(
    "length", [b"\x8d\0", b"\x8d\x80\0", b"\x8d\x80\x80\x80\0", b"\x8d\x80\x80\x80\x10", b"\x8d\x80\x80\x80\x70"]
)
def test_a_length_that_java_reads_is_read_likewise(length: bytes) -> None:
    """As in Java's ByteUtils: leading zeros count for nothing, and bits beyond the 32nd neither."""
    name = length + TOPIC.encode()
    for frame in (_produce(_records(name, b"r")), _produce(_records(ORDERS, b"r"), name)):
        for size in (5, len(frame)):
            with pytest.raises(SessionError):
                _sent_on(frame, size)


def test_topics_without_end_are_not_walked_over() -> None:
    body = b"\0" + bytes(6) + uvarint(1 << 20) + b"\2t\1\0" * 200_000
    frame = request(PRODUCE, 9, 1, body)
    few, all_of_it = Watch(), Watch()
    for _ in range(3):
        few(partial(from_client, _guarded(), frame[: 4 * MAX_ELEMENTS]))
        with pytest.raises(SessionError, match=f"more than {MAX_ELEMENTS}"):
            all_of_it(partial(from_client, _guarded(), frame[:65_536]))
    assert min(all_of_it.took_s) < 2 * min(few.took_s), "without a bound it takes four times as long"


@pytest.mark.parametrize("rewrite", [True, False], ids=["rewrite", "transparent"])
@pytest.mark.parametrize("version", [version for key, version in kio_versions() if key == METADATA])
def test_metadata_does_not_show_the_topic(version: int, rewrite: bool) -> None:
    message = sample(kio_class(METADATA, version), random.Random(version), throttle_ms=0, repeat=3)
    brokers = tuple(dataclasses.replace(broker, host="kafka", port=9092) for broker in message.brokers)
    message = dataclasses.replace(message, brokers=brokers)
    longer = dataclasses.replace(message.topics[0], name=TopicName(f"{TOPIC}-2"))
    own = dataclasses.replace(message.topics[1], name=TopicName(TOPIC))
    for topics in ((own,), (longer, own), (own, longer, *message.topics), (longer, *message.topics)):
        from_client(one := _guarded(rewrite=rewrite), request(METADATA, version, 5, b"\1\0\0\0"))
        answer = response(METADATA, version, 5, encode(dataclasses.replace(message, topics=topics)))
        got = b"".join(from_broker(one, answer[at : at + 100]) for at in range(0, len(answer), 100))
        found = kio_read(got, METADATA, version)
        others = tuple(topic for topic in topics if topic is not own)
        assert found == dataclasses.replace(message, topics=others, brokers=found.brokers)
        assert {broker.host for broker in found.brokers} == {"sidecar" if rewrite else "kafka"}
        assert not one.exchange
