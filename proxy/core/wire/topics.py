"""Requests that create and delete topics and partitions, and their answers: walked over, cut and merged in place.

The layout is that of kio's classes. They cover CreateTopics from version 2 and DeleteTopics from version 1; Kafka 3.9
speaks older ones as well. Of those only the beginning or the end differs, so they are read as the first version that
kio has; the one message that is laid out differently (the CreateTopics response of version 0) is declared here, in
kio's form.

What is kept of a message keeps its bytes: topics that are taken out of a request, or put into a response, are whole
elements of an array. That is done in strict versions only, which are all flexible.
"""

# No annotations from __future__: kio reads the types of the class that is declared here.

import dataclasses
import typing
import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i16

from proxy.core.wire.apis import METADATA, is_flexible
from proxy.core.wire.bodies import class_in, encoded, module_of, readable
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import (
    SLICE,
    Slices,
    Starts,
    array_count,
    place,
    read_int16,
    read_int32,
    read_string,
    read_uuid,
    walk,
)
from proxy.core.wire.primitives import INT32, compact_string, read_uvarint, string, uvarint

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
CREATE_PARTITIONS: Final = 37

STRICT_FROM: Final = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""API key -> first version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
REFUSAL_TEXT: Final = "The throttling quota has been exceeded."
"""Kafka's text for error 89. A KRaft controller sends null and leaves the text to the client library."""

MAX_TOPICS: Final = 10_000
"""A request with more is refused as by a KRaft controller, which makes no more records of one."""
TOO_MANY_TEXT: Final = "Unable to perform excessively large batch operation."
"""Kafka's text in that case, with POLICY_VIOLATION."""

_NAMES: Final = {CREATE_TOPICS: "create_topics", DELETE_TOPICS: "delete_topics", CREATE_PARTITIONS: "create_partitions"}
_THROTTLE_BYTES: Final = 4
_NO_THROTTLE: Final = bytes(_THROTTLE_BYTES)
_NO_TAGS: Final = b"\0"
_DEFAULT_COUNT: Final = -1
_FORBIDS_FROM: Final = 4
"""The first version of Metadata that can forbid to create topics."""
_NO_ID: Final = uuid.UUID(int=0)
_OLDEST: Final = {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0}
"""The first versions that kio has, and whose responses have a throttle time."""
_RESULTS: Final = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}
_KNOWN_ERRORS: Final = frozenset(int(code) for code in ErrorCode)


class RequestedTopic(NamedTuple):
    """A topic of a request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: int | None
    """Of the new topic (None: the broker's default; 0 or less: a broker rejects it), or to grow to; None to delete."""
    raw: bytes
    """The element of the request."""


class NamedTopic(NamedTuple):
    """A topic by name, by id, or (in answers) by both."""

    name: str | None
    topic_id: uuid.UUID | None


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


class Topics(NamedTuple):
    """The topics of a request."""

    found: list[RequestedTopic]
    """No more than `MAX_TOPICS`."""
    end: int
    """Where they end in the body."""
    validate_only: bool
    refusals: list[bytes]
    """If it has more: all of them, refused, as elements of a response."""


def read_request(api_key: int, version: int, body: bytes, now_ms: float) -> Slices[tuple[Topics, float]]:
    """The topics of a CreateTopics, DeleteTopics or CreatePartitions request, and the time.

    Raises WireError ("request_malformed").
    """
    # Versions that kio lacks: CreateTopics 0 lacks validate_only at its end, version 1 is laid out as 2, DeleteTopics
    # 0 as 1.
    layout = max(version, _OLDEST[api_key])
    whole = body + b"\0" if (api_key, version) == (CREATE_TOPICS, 0) else body
    cls = class_in(module_of(_NAMES[api_key], layout, "request"))
    field = "topic_names" if api_key == DELETE_TOPICS and version < 6 else "topics"
    by_id = api_key == DELETE_TOPICS and version >= 6
    flexible = cls.__flexible__
    try:
        count = array_count(whole, 0, flexible)
    except ValueError:  # reported below, with everything else that cannot be read
        count = 0
    found: list[RequestedTopic] = []
    refusals: list[bytes] = []
    tail = _refusal_tail(api_key, version, ErrorCode.policy_violation, TOO_MANY_TEXT) if count > MAX_TOPICS else b""

    def take(starts: Starts) -> None:
        name = read_string(whole, starts[0], flexible)
        if by_id:
            topic = RequestedTopic(name, read_uuid(whole, starts[1]), None, whole[starts[0] : starts[-1]])
        elif api_key == DELETE_TOPICS:
            topic = RequestedTopic(name, None, None, whole[starts[0] : starts[-1]])
        else:
            partitions: int | None = read_int32(whole, starts[1])
            if api_key == CREATE_TOPICS:
                assigned = array_count(whole, starts[3], flexible)
                partitions = assigned if assigned > 0 else None if partitions == _DEFAULT_COUNT else partitions
            topic = RequestedTopic(name, None, partitions, whole[starts[0] : starts[-1]])
        found.append(topic)

    def refuse(starts: Starts) -> None:
        refusals.append(whole[starts[0] : starts[2 if by_id else 1]] + tail)

    with readable("request_malformed", cls):
        each = {field: refuse if tail else take}
        starts, now_ms = yield from walk(cls, whole, each, now_ms, more_may_follow=True)
        validate_only = api_key != DELETE_TOPICS and whole[starts[2]] != 0
    return Topics(found, starts[1], validate_only, refusals), now_ms


def read_results(
    api_key: int, version: int, body: bytes, most: int, now_ms: float
) -> Slices[tuple[list[TopicResult], int, float]]:
    """What the broker did, topic by topic, where that ends in the body, and the time. There were `most` in the
    request.

    Raises WireError ("broker_malformed").
    """
    cls, whole = _response_class(api_key, version), body
    if not _has_throttle(api_key, version) and cls is not _CreateTopicsResponseV0:
        whole = _NO_THROTTLE + body  # versions that kio lacks are its first one without it
    element = _element_class(cls)
    name, error = place(element, "name"), place(element, "error_code")
    topic_id, partitions = place(element, "topic_id"), place(element, "num_partitions")
    found: list[TopicResult] = []

    def take(starts: Starts) -> None:
        _at_most(most, found)
        count = -1 if partitions is None else read_int32(whole, starts[partitions])
        found.append(
            TopicResult(
                read_string(whole, starts[name or 0], cls.__flexible__),
                None if topic_id is None else read_uuid(whole, starts[topic_id]),
                read_int16(whole, starts[error or 0]),
                count if count > 0 else None,
            )
        )

    with readable("broker_malformed", cls):
        starts, now_ms = yield from walk(cls, whole, {_RESULTS[api_key]: take}, now_ms, more_may_follow=True)
    return found, starts[-2], now_ms


def _at_most(most: int, found: Sequence[object]) -> None:
    """Raise WireError for one more element: a broker answers once for each topic."""
    if len(found) >= most:
        raise WireError(
            "broker_malformed", f"more than {most} topics in the response; expected each topic of the request once"
        )


def is_known_error(code: int) -> bool:
    """Whether it is known what this error of a result means."""
    return code in _KNOWN_ERRORS


def keep_topics(body: bytes, topics: Topics, kept: Sequence[bool]) -> bytes:
    """A request of a strict version with only those topics for which `kept`, in order, is true; the rest unchanged."""
    return _array([topic.raw for topic, keep in zip(topics.found, kept, strict=True) if keep]) + body[topics.end :]


def refusals(api_key: int, version: int, topics: Sequence[NamedTopic]) -> list[bytes]:
    """Topics refused with THROTTLING_QUOTA_EXCEEDED, as elements of a response of a strict version.

    Fields that a broker leaves at their defaults in this case have them here too: no topic id in CreateTopics, -1
    partitions, replication factor -1, and an empty list of configurations.
    """
    tail = _refusal_tail(api_key, version, ErrorCode.throttling_quota_exceeded, REFUSAL_TEXT)
    if api_key == DELETE_TOPICS and version >= 6:
        return [
            (b"\0" if topic.name is None else compact_string(topic.name)) + (topic.topic_id or _NO_ID).bytes + tail
            for topic in topics
        ]
    return [compact_string(topic.name or "") + tail for topic in topics]


@cache
def _refusal_tail(api_key: int, version: int, error: ErrorCode, text: str) -> bytes:
    """What an element of a response has behind the topic's name (and, in DeleteTopics from version 6, its id)."""
    cls = _element_class(_response_class(api_key, version))
    fields = {field.name for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {"name": TopicName(""), "error_code": error}
    values |= {"error_message": text} if "error_message" in fields else {}
    values |= {"configs": ()} if "configs" in fields else {}
    values |= {"topic_id": None} if "topic_id" in fields else {}
    whole = encoded(cls(**values))
    head = 1 if cls.__flexible__ else 2
    return whole[head + (16 if api_key == DELETE_TOPICS and version >= 6 else 0) :]


def with_refusals(body: bytes, end: int, refused: Sequence[bytes]) -> bytes:
    """A broker's response of a strict version, whose results end at `end`, with further ones behind its own."""
    count, first = read_uvarint(body, _THROTTLE_BYTES, len(body))
    more = uvarint(max(count, 1) + len(refused))
    return b"".join((body[:_THROTTLE_BYTES], more, body[first:end], *refused, body[end:]))


def only_refusals(api_key: int, version: int, refused: Sequence[bytes]) -> bytes:
    """A response with nothing from a broker; throttle_time_ms 0."""
    flexible = _response_class(api_key, version).__flexible__
    head = _NO_THROTTLE if _has_throttle(api_key, version) else b""
    return head + (_array(refused) + _NO_TAGS if flexible else INT32.pack(len(refused)) + b"".join(refused))


def _has_throttle(api_key: int, version: int) -> bool:
    return version >= _OLDEST[api_key]


@cache
def _response_class(api_key: int, version: int) -> Any:
    """kio's class; of CreateTopics 1 that of version 2, and of DeleteTopics 0 that of version 1."""
    if (api_key, version) == (CREATE_TOPICS, 0):
        return _CreateTopicsResponseV0
    layout = max(version, _OLDEST[api_key])
    return class_in(module_of(_NAMES[api_key], layout, "response"))


def _element_class(cls: Any) -> Any:
    """The class of the elements of a response."""
    hints = typing.get_type_hints(cls)
    return next(typing.get_args(hint)[0] for hint in hints.values() if typing.get_origin(hint) is tuple)


class Asked(NamedTuple):
    """The topics that a Metadata request names."""

    version: int
    body: bytes
    found: list[RequestedTopic]
    end: int
    """Where they end in the body."""

    @property
    def can_forbid(self) -> bool:
        """Whether this version can forbid the broker to create those that do not exist."""
        return self.version >= _FORBIDS_FROM

    @property
    def may_create(self) -> bool:
        """Whether it does not."""
        return not self.can_forbid or self.body[self.end] != 0

    def creating_none(self, missing: Set[str] | None) -> bytes:
        """The body of a request that creates no topic: it forbids it. One of a version that cannot names only topics
        that are not `missing`; None: it is not known which are.

        Raises WireError ("request_too_large") in that case.
        """
        if self.can_forbid:
            return self.body[: self.end] + b"\0" + self.body[self.end + 1 :]
        if missing is None:
            text = f"Metadata version {self.version} names more than {MAX_TOPICS} topics, too many to check"
            raise WireError("request_too_large", text)
        left = [topic.raw for topic in self.found if topic.name not in missing]
        if not left and self.version == 0:
            left = [string("")]  # no list means all topics; a broker calls this one invalid
        return INT32.pack(len(left)) + b"".join(left)

    def naming(self, names: Set[str]) -> bytes:
        """The body of a request that names these topics only; of a version that can forbid to create topics."""
        left = [topic.raw for topic in self.found if topic.name in names]
        head = uvarint(len(left) + 1) if is_flexible(METADATA, self.version) else INT32.pack(len(left))
        return b"".join((head, *left, self.body[self.end :]))


def read_asked(version: int, body: bytes, now_ms: float) -> Slices[tuple[Asked, float]]:
    """The topics that a Metadata request names, and the time. Raises WireError ("request_malformed")."""
    module = module_of("metadata", version, "request")
    cls, name = module.MetadataRequest, place(module.MetadataRequestTopic, "name") or 0
    found: list[RequestedTopic] = []

    def take(starts: Starts) -> None:
        topic = read_string(body, starts[name], cls.__flexible__)
        found.append(RequestedTopic(topic, None, None, body[starts[0] : starts[-1]]))

    with readable("request_malformed", cls):
        starts, now_ms = yield from walk(cls, body, {"topics": take}, now_ms, more_may_follow=True)
    return Asked(version, body, found, starts[1]), now_ms


def metadata_question(
    names: Sequence[str], topic_ids: Sequence[uuid.UUID], *, ids_wanted: bool, now_ms: float
) -> Slices[tuple[int, bytes, float]]:
    """(version, body) of a Metadata request about these topics, which creates none, and the time.

    The oldest version that can express it, so that old brokers understand: 4 may forbid creation, 10 answers with ids,
    and 12 can ask by id.
    """
    version = 12 if topic_ids else 10 if ids_wanted else _FORBIDS_FROM
    parts: list[bytes] = []
    for name in names:
        parts.append(string(name) if version == _FORBIDS_FROM else _NO_ID.bytes + compact_string(name) + _NO_TAGS)
        if len(parts) % SLICE == 0:
            now_ms = yield
    parts += [topic_id.bytes + b"\0" + _NO_TAGS for topic_id in topic_ids]
    no = b"\0"  # allow_auto_topic_creation, and whether authorised operations are wanted
    if version == _FORBIDS_FROM:
        return version, INT32.pack(len(parts)) + b"".join(parts) + no, now_ms
    return version, _array(parts) + no * (3 if version == 10 else 2) + _NO_TAGS, now_ms


def read_metadata(version: int, body: bytes, most: int, now_ms: float) -> Slices[tuple[list[Described], float]]:
    """The topics of a Metadata response to a question about `most`, and the time. Raises WireError
    ("broker_malformed")."""
    module = module_of("metadata", version, "response")
    cls, topic = module.MetadataResponse, module.MetadataResponseTopic
    flexible = cls.__flexible__
    error, name = place(topic, "error_code") or 0, place(topic, "name") or 0
    topic_id, partitions = place(topic, "topic_id"), place(topic, "partitions") or 0
    found: list[Described] = []

    def take(starts: Starts) -> None:
        _at_most(most, found)
        found.append(
            Described(
                read_string(body, starts[name], flexible),
                None if topic_id is None else read_uuid(body, starts[topic_id]),
                read_int16(body, starts[error]),
                array_count(body, starts[partitions], flexible),
            )
        )

    with readable("broker_malformed", cls):
        _, now_ms = yield from walk(cls, body, {"topics": take}, now_ms, more_may_follow=True)
    return found, now_ms


def default_count_question(names: Sequence[str]) -> tuple[int, bytes]:
    """(version, body) of a CreateTopics request that creates nothing and asks for default counts.

    Version 5 is the first one whose answer has the partitions.
    """
    module = module_of("create_topics", 5, "request")
    topics = tuple(
        module.CreatableTopic(
            name=TopicName(name), num_partitions=_DEFAULT_COUNT, replication_factor=-1, assignments=(), configs=()
        )
        for name in names
    )
    return 5, encoded(module.CreateTopicsRequest(topics=topics, validate_only=True))


def _array(elements: Sequence[bytes]) -> bytes:
    return uvarint(len(elements) + 1) + b"".join(elements)
