"""Requests that create and delete topics and partitions, and their answers: parsed by kio, cut and merged in place.

kio's classes cover CreateTopics from version 2 and DeleteTopics from version 1; Kafka 3.9 speaks older ones as well. Of
those only the beginning or the end differs, so they are read as the first version that kio has; the one message that
is laid out differently (the CreateTopics response of version 0) is declared here, in kio's form.

What is kept of a message keeps its bytes: topics that are taken out of a request, or put into a response, are whole
elements of an array, found by kio's readers. That is done in strict versions only, which are all flexible.
"""

# No annotations from __future__: kio reads the types of the class that is declared here.

import io
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.serial.readers import read_compact_array_length, read_compact_string, read_legacy_array_length
from kio.serial.writers import write_compact_array_length
from kio.static.constants import EntityType
from kio.static.primitive import i16

from proxy.wire.frames import WireError
from proxy.wire.lengths import check_lengths

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
CREATE_PARTITIONS: Final = 37

STRICT_FROM: Final = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""API key -> first version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
REFUSAL_TEXT: Final = "The throttling quota has been exceeded."
"""Kafka's text for error 89. A KRaft controller sends null and leaves the text to the client library."""

MAX_TOPICS: Final = 10_000
"""Larger requests are not parsed: this many topics take an eighth of a second, in which no other connection is served.
KRaft controllers do not accept more than 10 000 records from one request either."""

_NAMES: Final = {CREATE_TOPICS: "create_topics", DELETE_TOPICS: "delete_topics", CREATE_PARTITIONS: "create_partitions"}
_ELEMENTS: Final = {
    CREATE_TOPICS: ("CreatableTopic", "CreatableTopicResult"),
    DELETE_TOPICS: ("DeleteTopicState", "DeletableTopicResult"),
    CREATE_PARTITIONS: ("CreatePartitionsTopic", "CreatePartitionsTopicResult"),
}
_THROTTLE_BYTES: Final = 4
_NO_THROTTLE: Final = bytes(_THROTTLE_BYTES)
_NO_TAGS: Final = b"\0"
_DEFAULT_COUNT: Final = -1


class NewTopic(NamedTuple):
    """A topic of a CreateTopics request."""

    name: str
    partitions: int | None
    """None: the broker's default. 0 or less: a broker would reject it."""


class NamedTopic(NamedTuple):
    """A topic by name, by id, or (in answers) by both."""

    name: str | None
    topic_id: uuid.UUID | None


class NewCount(NamedTuple):
    """A topic of a CreatePartitions request."""

    name: str
    partitions: int
    """The number of partitions to grow to."""


class TopicResult(NamedTuple):
    """What a broker did about one topic."""

    name: str | None
    topic_id: uuid.UUID | None
    error: int
    partitions: int | None
    """How many partitions the new topic has (CreateTopics from version 5, if the client may know)."""


class Described(NamedTuple):
    """What a broker knows about one topic."""

    name: str | None
    topic_id: uuid.UUID | None
    error: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _CreatedV0:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = False
    __api_key__: ClassVar[i16] = i16(CREATE_TOPICS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    name: TopicName = field(metadata={"kafka_type": "string"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _CreateTopicsResponseV0:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = False
    __api_key__: ClassVar[i16] = i16(CREATE_TOPICS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    topics: tuple[_CreatedV0, ...]


def is_strict(api_key: int, version: int) -> bool:
    """Whether topics may be refused; in older versions everything is accepted and delayed (KIP-599)."""
    return version >= STRICT_FROM[api_key]


def read_create_topics(version: int, body: bytes) -> tuple[list[NewTopic], bool]:
    """The topics of a CreateTopics request and its validate_only. Raises WireError ("request_malformed")."""
    # Version 0 lacks validate_only at its end; version 1 is laid out as version 2.
    message = _request(CREATE_TOPICS, max(version, 2), body + b"\0" if version == 0 else body)
    topics = [NewTopic(topic.name, _count(topic)) for topic in message.topics]
    return topics, message.validate_only


def _count(topic: Any) -> int | None:
    if topic.assignments:
        return len(topic.assignments)
    return None if topic.num_partitions == _DEFAULT_COUNT else int(topic.num_partitions)


def read_delete_topics(version: int, body: bytes) -> list[NamedTopic]:
    """The topics of a DeleteTopics request. Raises WireError ("request_malformed")."""
    message = _request(DELETE_TOPICS, max(version, 1), body)  # version 0 is laid out as version 1
    if version < 6:
        return [NamedTopic(name, None) for name in message.topic_names]
    return [NamedTopic(topic.name, topic.topic_id) for topic in message.topics]


def read_create_partitions(version: int, body: bytes) -> tuple[list[NewCount], bool]:
    """The topics of a CreatePartitions request and its validate_only. Raises WireError ("request_malformed")."""
    message = _request(CREATE_PARTITIONS, version, body)
    return [NewCount(topic.name, topic.count) for topic in message.topics], message.validate_only


def read_results(api_key: int, version: int, body: bytes) -> list[TopicResult]:
    """What the broker did, topic by topic. Raises WireError ("broker_malformed")."""
    if api_key == CREATE_TOPICS and version == 0:
        message = _decoded(_CreateTopicsResponseV0, body, "broker_malformed", "CreateTopics response")
    else:
        # The versions that kio lacks are its first one without the throttle time.
        oldest = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}[api_key]
        module = _module(_NAMES[api_key], max(version, oldest), "response")
        whole = body if version >= oldest else _NO_THROTTLE + body
        message = _decoded(_message_class(module), whole, "broker_malformed", f"{_NAMES[api_key]} response")
    topics = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}[api_key]
    return [
        TopicResult(one.name, getattr(one, "topic_id", None), one.error_code.value, _created_count(one))
        for one in getattr(message, topics)
    ]


def _created_count(result: Any) -> int | None:
    count = getattr(result, "num_partitions", _DEFAULT_COUNT)
    return int(count) if count > 0 else None


def keep_topics(api_key: int, version: int, body: bytes, kept: Sequence[bool]) -> bytes:
    """A request of a strict version with only those topics for which `kept`, in order, is true; the rest unchanged."""
    if api_key == DELETE_TOPICS and version < 6:
        read: Callable[..., tuple[Any, int]] = read_compact_string
    else:
        read = entity_reader(getattr(_module(_NAMES[api_key], version, "request"), _ELEMENTS[api_key][0]))
    elements, end = _elements(body, 0, read)
    return _array([element for element, keep in zip(elements, kept, strict=True) if keep]) + body[end:]


def refusals(api_key: int, version: int, topics: Iterable[NamedTopic]) -> list[bytes]:
    """Topics refused with THROTTLING_QUOTA_EXCEEDED, as elements of a response of a strict version.

    Fields that a broker leaves at their defaults in this case have them here too: no topic id in CreateTopics, -1
    partitions, replication factor -1, and an empty list of configurations.
    """
    module = _module(_NAMES[api_key], version, "response")
    cls = getattr(module, _ELEMENTS[api_key][1])
    write = entity_writer(cls)
    found = []
    for topic in topics:
        values: dict[str, Any] = {
            "name": topic.name,
            "error_code": ErrorCode.throttling_quota_exceeded,
            "error_message": REFUSAL_TEXT,
        }
        if api_key == CREATE_TOPICS:
            values["configs"] = ()
            if version >= 7:
                values["topic_id"] = None
        elif api_key == DELETE_TOPICS and version >= 6:
            values["topic_id"] = topic.topic_id
        sink = io.BytesIO()
        write(sink, cls(**values))
        found.append(sink.getvalue())
    return found


def with_refusals(api_key: int, version: int, body: bytes, refused: Sequence[bytes]) -> bytes:
    """A broker's response of a strict version with further elements behind its own. Raises WireError."""
    module = _module(_NAMES[api_key], version, "response")
    read = entity_reader(getattr(module, _ELEMENTS[api_key][1]))
    try:
        elements, end = _elements(body, _THROTTLE_BYTES, read)
    except Exception as error:  # see _decoded
        raise WireError("broker_malformed", f"the {_NAMES[api_key]} response cannot be read: {error}") from error
    return body[:_THROTTLE_BYTES] + _array([*elements, *refused]) + body[end:]


def only_refusals(refused: Sequence[bytes]) -> bytes:
    """A response of a strict version with nothing from a broker; throttle_time_ms 0."""
    return _NO_THROTTLE + _array(refused) + _NO_TAGS


def metadata_question(names: Sequence[str], topic_ids: Sequence[uuid.UUID], *, ids_wanted: bool) -> tuple[int, bytes]:
    """(version, body) of a Metadata request about these topics, which creates none.

    The oldest version that can express it, so that old brokers understand: 4 may forbid creation, 10 answers with ids,
    and 12 can ask by id.
    """
    version = 12 if topic_ids else 10 if ids_wanted else 4
    module = _module("metadata", version, "request")
    nil = {} if version < 10 else {"topic_id": None}
    topics = [module.MetadataRequestTopic(name=TopicName(name), **nil) for name in names]
    topics += [module.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in topic_ids]
    values: dict[str, Any] = {"topics": tuple(topics), "allow_auto_topic_creation": False}
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    return version, _encoded(module.MetadataRequest(**values))


def read_metadata(version: int, body: bytes) -> list[Described]:
    """The topics of a Metadata response. Raises WireError ("broker_malformed")."""
    module = _module("metadata", version, "response")
    message = _decoded(module.MetadataResponse, body, "broker_malformed", "metadata response")
    return [
        Described(topic.name, getattr(topic, "topic_id", None), topic.error_code.value, len(topic.partitions))
        for topic in message.topics
    ]


def default_count_question(names: Sequence[str]) -> tuple[int, bytes]:
    """(version, body) of a CreateTopics request that creates nothing and asks for default counts.

    Version 5 is the first one whose answer tells the partitions.
    """
    module = _module("create_topics", 5, "request")
    topics = tuple(
        module.CreatableTopic(
            name=TopicName(name), num_partitions=_DEFAULT_COUNT, replication_factor=-1, assignments=(), configs=()
        )
        for name in names
    )
    return 5, _encoded(module.CreateTopicsRequest(topics=topics, validate_only=True))


def _elements(body: bytes, start: int, read: Callable[..., tuple[Any, int]]) -> tuple[list[bytes], int]:
    """The elements of the compact array at `start`, and where it ends."""
    count, size = read_compact_array_length(body, start)
    at = start + size
    found = []
    for _ in range(count or 0):
        _, size = read(body, at)
        found.append(body[at : at + size])
        at += size
    return found, at


def _array(elements: Sequence[bytes]) -> bytes:
    sink = io.BytesIO()
    write_compact_array_length(sink, len(elements))
    return sink.getvalue() + b"".join(elements)


@cache
def _module(name: str, version: int, kind: str) -> Any:
    return import_module(f"kio.schema.{name}.v{version}.{kind}")


def _message_class(module: Any) -> Any:
    """The message class itself: of all classes in kio's module of a message, the one named like it."""
    *_, name, _, kind = module.__name__.split(".")
    return getattr(module, "".join(word.capitalize() for word in (*name.split("_"), kind)))


def _request(api_key: int, version: int, body: bytes) -> Any:
    cls = _message_class(_module(_NAMES[api_key], version, "request"))
    read_count = read_compact_array_length if cls.__flexible__ else read_legacy_array_length
    try:
        count = read_count(body, 0)[0] or 0
    except Exception:  # too short, or not a number: reported below, with everything else that cannot be parsed
        count = 0
    if count > MAX_TOPICS:
        text = f"the {_NAMES[api_key]} request names {count} topics, expected at most {MAX_TOPICS}"
        raise WireError("request_malformed", text)
    return _decoded(cls, body, "request_malformed", f"{_NAMES[api_key]} request")


def _decoded(cls: Any, body: bytes, reason: str, what: str) -> Any:
    try:
        check_lengths(cls, body, more_may_follow=True)
        message, _ = entity_reader(cls)(body, 0)
    except Exception as error:  # kio raises many kinds: too short, null, not Unicode, unknown tags, unknown errors
        raise WireError(reason, f"the {what} (version {cls.__version__}) cannot be read: {error!r}") from error
    return message


def _encoded(message: Any) -> bytes:
    sink = io.BytesIO()
    entity_writer(type(message))(sink, message)
    return sink.getvalue()
