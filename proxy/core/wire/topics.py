"""Requests that create, delete and change topics, and their answers: walked over, cut and merged in place.

The layout is that of kio's classes. They cover CreateTopics from version 2 and DeleteTopics from version 1; Kafka 3.9
speaks older ones as well. Those requests are read as the first version that kio has. Their answers have no throttle
time at the beginning, and that to CreateTopics 0 has results as DeleteTopics has them.

What is kept of a message keeps its bytes: topics that are taken out of a request, or put into a response, are whole
elements of an array. That is done in strict versions only, which are all flexible. So tagged fields and errors that kio
does not know stay as they are; kio refuses them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence, Set
from functools import cache
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from proxy.core.wire.apis import METADATA, is_flexible
from proxy.core.wire.bodies import class_of, encoded, made, readable
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import SLICE, Found, Slices, array_of, array_start, walk
from proxy.core.wire.primitives import array_head, compact_string, string

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
ALTER_CONFIGS: Final = 33
CREATE_PARTITIONS: Final = 37
INCREMENTAL_ALTER_CONFIGS: Final = 44

STRICT_FROM: Final = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""API key -> first version whose clients understand THROTTLING_QUOTA_EXCEEDED. In older ones everything is accepted and
delayed (KIP-599)."""
REFUSAL_TEXT: Final = "The throttling quota has been exceeded."
"""Kafka's text for error 89. A KRaft controller sends null and leaves the text to the client library."""

MAX_TOPICS: Final = 10_000
"""A request with more is refused as by a KRaft controller, which makes no more records of one."""
TOO_MANY_TEXT: Final = "Unable to perform excessively large batch operation."
"""Kafka's text in that case, with POLICY_VIOLATION."""

_NO_THROTTLE: Final = bytes(4)
_NO_TAGS: Final = b"\0"
DEFAULT_COUNT: Final = -1
"""In place of a new topic's partitions: the broker's default."""
_FORBIDS_FROM: Final = 4
"""The first version of Metadata that can forbid to create topics."""
_IDS_FROM: Final = 6
"""The first version of DeleteTopics that may give topics by id."""
_NO_ID: Final = uuid.UUID(int=0)
_MESSAGES: Final = {
    METADATA: ("metadata", 0),
    CREATE_TOPICS: ("create_topics", 2),
    DELETE_TOPICS: ("delete_topics", 1),
    DELETE_RECORDS: ("delete_records", 0),
    ALTER_CONFIGS: ("alter_configs", 0),
    CREATE_PARTITIONS: ("create_partitions", 0),
    INCREMENTAL_ALTER_CONFIGS: ("incremental_alter_configs", 0),
}
"""kio's name, and the first version that it has, and whose response has a throttle time."""
KNOWN_ERRORS: Final = frozenset(int(code) for code in ErrorCode)
"""Error codes that kio knows."""


class Described(NamedTuple):
    """What a broker says about one topic."""

    name: str | None
    topic_id: uuid.UUID | None
    error: int
    partitions: int | None
    """How many it has (of new topics from CreateTopics 5 on); None: none, or the client may not know."""


def may_give_ids(api_key: int, version: int) -> bool:
    """Whether a request may give topics by id, and the answer has both."""
    return api_key == DELETE_TOPICS and version >= _IDS_FROM


def message_class(api_key: int, version: int, kind: str) -> Any:
    """kio's class of a message, or of one with the same layout."""
    name, oldest = _MESSAGES[DELETE_TOPICS if (api_key, version, kind) == (CREATE_TOPICS, 0, "response") else api_key]
    return class_of(name, max(version, oldest), kind)


def read_entries(
    api_key: int, version: int, body: bytes, take: Callable[[Found], None], now_ms: float
) -> Slices[tuple[Found, float]]:
    """`take` each topic (or other resource) that a request names. Returns the request, and the time.

    Raises WireError ("request_malformed").
    """
    cls = message_class(api_key, version, "request")
    # CreateTopics 0 lacks validate_only at its end.
    whole = body + b"\0" if (api_key, version) == (CREATE_TOPICS, 0) else body
    with readable("request_malformed", cls):
        return (yield from walk(cls, whole, array_of(cls)[0], take, now_ms))


def read_results(
    api_key: int, version: int, body: bytes, most: int, now_ms: float
) -> Slices[tuple[list[Described], int, float]]:
    """What the broker did, topic by topic, where that ends in the body, and the time. There were `most` in the
    request.

    Raises WireError ("broker_malformed").
    """
    cls = message_class(api_key, version, "response")
    whole = body if _has_throttle(api_key, version) else _NO_THROTTLE + body
    found, message, now_ms = yield from _read_described(cls, array_of(cls)[0], whole, most, now_ms)
    return found, message.starts[-2], now_ms


def _read_described(
    cls: Any, field: str, body: bytes, most: int, now_ms: float
) -> Slices[tuple[list[Described], Found, float]]:
    found: list[Described] = []

    def take(topic: Found) -> None:
        if len(found) >= most:
            text = f"more than {most} topics in the response; expected each topic of the request once"
            raise WireError("broker_malformed", text)
        partitions = max(topic.number("num_partitions") or topic.count("partitions"), 0)
        error = topic.number("error_code") or 0
        found.append(Described(topic.text("name"), topic.topic_id(), error, partitions or None))

    with readable("broker_malformed", cls):
        message, now_ms = yield from walk(cls, body, field, take, now_ms)
    return found, message, now_ms


def keep_topics(body: bytes, end: int, kept: Sequence[bytes]) -> bytes:
    """A request of a strict version, whose topics end at `end`, with only some of them; the rest unchanged."""
    return _array(kept, True) + body[end:]


def refused_topic(
    api_key: int, version: int, name: str | None, topic_id: uuid.UUID | None, error: ErrorCode, text: str | None
) -> bytes:
    """A topic that is refused, as an element of a response to CreateTopics, DeleteTopics or CreatePartitions.

    Fields that a broker leaves at their defaults in this case have them here too: no topic id in CreateTopics, -1
    partitions, replication factor -1, and an empty list of configurations.
    """
    tail = _refusal_tail(api_key, version, error, text)
    if may_give_ids(api_key, version):
        return (b"\0" if name is None else compact_string(name)) + (topic_id or _NO_ID).bytes + tail
    return (compact_string if is_flexible(api_key, version) else string)(name or "") + tail


@cache
def _refusal_tail(api_key: int, version: int, error: ErrorCode, text: str | None) -> bytes:
    """What an element of a response has behind the topic's name (and, in DeleteTopics from version 6, its id)."""
    _, cls = array_of(message_class(api_key, version, "response"))
    whole = encoded(made(cls, name=TopicName(""), topic_id=None, error_code=error, error_message=text, configs=()))
    head = 1 if cls.__flexible__ else 2
    return whole[head + (16 if may_give_ids(api_key, version) else 0) :]


def with_refusals(body: bytes, end: int, refused: Sequence[bytes]) -> bytes:
    """A broker's response of a strict version, whose results end at `end`, with further ones behind its own."""
    count, first = array_start(body, len(_NO_THROTTLE), True)
    head = body[: len(_NO_THROTTLE)] + array_head(max(count, 0) + len(refused), True)
    return b"".join((head, body[first:end], *refused, body[end:]))


def only_refusals(api_key: int, version: int, refused: Sequence[bytes]) -> bytes:
    """A response with nothing from a broker; throttle_time_ms 0."""
    head = _NO_THROTTLE if _has_throttle(api_key, version) else b""
    flexible = is_flexible(api_key, version)
    return head + _array(refused, flexible) + (_NO_TAGS if flexible else b"")


def _has_throttle(api_key: int, version: int) -> bool:
    return version >= _MESSAGES[api_key][1]


class Asked(NamedTuple):
    """The topics that a Metadata request names."""

    version: int
    body: bytes
    found: list[tuple[str | None, bytes]]
    """The name, and the element of the request."""
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
        left = [raw for name, raw in self.found if name not in missing]
        if not left and self.version == 0:
            left = [string("")]  # no list means all topics; a broker calls this one invalid
        return _array(left, False)

    def naming(self, names: Set[str]) -> bytes:
        """The body of a request that names these topics only; of a version that can forbid to create topics."""
        left = [raw for name, raw in self.found if name in names]
        return _array(left, is_flexible(METADATA, self.version)) + self.body[self.end :]


def read_asked(version: int, body: bytes, now_ms: float) -> Slices[tuple[Asked, float]]:
    """The topics that a Metadata request names, and the time. Raises WireError ("request_malformed")."""
    found: list[tuple[str | None, bytes]] = []

    def take(topic: Found) -> None:
        found.append((topic.text("name"), topic.raw))

    message, now_ms = yield from read_entries(METADATA, version, body, take, now_ms)
    return Asked(version, body, found, message.starts[1]), now_ms


def metadata_question(
    names: Sequence[str], topic_ids: Sequence[uuid.UUID], *, ids_wanted: bool
) -> Slices[tuple[int, bytes]]:
    """(version, body) of a Metadata request about these topics, which creates none.

    The oldest version that can express it, so that old brokers understand: 4 may forbid creation, 10 answers with ids,
    and 12 can ask by id.
    """
    version = 12 if topic_ids else 10 if ids_wanted else _FORBIDS_FROM
    parts: list[bytes] = []
    for name in names:
        parts.append(string(name) if version == _FORBIDS_FROM else _NO_ID.bytes + compact_string(name) + _NO_TAGS)
        if len(parts) % SLICE == 0:
            yield
    parts += [topic_id.bytes + b"\0" + _NO_TAGS for topic_id in topic_ids]
    no = b"\0"  # allow_auto_topic_creation, and whether authorised operations are wanted
    if version == _FORBIDS_FROM:
        return version, _array(parts, False) + no
    return version, _array(parts, True) + no * (3 if version == 10 else 2) + _NO_TAGS


def read_metadata(version: int, body: bytes, most: int, now_ms: float) -> Slices[tuple[list[Described], float]]:
    """The topics of a Metadata response to a question about `most`, and the time. Raises WireError
    ("broker_malformed")."""
    cls = message_class(METADATA, version, "response")
    found, _, now_ms = yield from _read_described(cls, "topics", body, most, now_ms)
    return found, now_ms


def default_count_question(names: Sequence[str]) -> tuple[int, bytes]:
    """(version, body) of a CreateTopics request that creates nothing and asks for default counts.

    Version 5 is the first one whose answer has the partitions.
    """
    cls = message_class(CREATE_TOPICS, 5, "request")
    _, topic = array_of(cls)
    counts = {"num_partitions": DEFAULT_COUNT, "replication_factor": -1}
    topics = tuple(topic(name=TopicName(name), assignments=(), configs=(), **counts) for name in names)
    return 5, encoded(cls(topics=topics, validate_only=True))


def _array(elements: Sequence[bytes], compact: bool) -> bytes:
    return array_head(len(elements), compact) + b"".join(elements)
