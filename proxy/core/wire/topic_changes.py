"""Requests that change topics: which topics one names, and the answer that refuses all of it.

Laid out as kio's classes, which lack the oldest versions of two APIs. Those requests are laid out as kio's first
version; their answers have no throttle time at the beginning, and CreateTopics version 0 no message.
"""

from __future__ import annotations

import typing
import uuid
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from proxy.core.wire.bodies import class_in, encoded, module_of, readable
from proxy.core.wire.lengths import Slices, Starts, array_count, place, read_string, read_uuid, walk
from proxy.core.wire.primitives import INT16, INT32, compact_string, string, uvarint
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS

DELETE_RECORDS: Final = 21
ALTER_CONFIGS: Final = 33
INCREMENTAL_ALTER_CONFIGS: Final = 44

_TOPIC: Final = 2
"""The type of a resource that is a topic."""
RESULTS_IN_A_SLICE: Final = 20
"""kio writes one in some 25 µs."""
MAX_PARTITIONS: Final = 1000
"""Partitions of one topic that an answer to DeleteRecords names."""


class _Shape(NamedTuple):
    message: str
    oldest: int
    """The oldest version that kio has; older answers have no throttle time."""
    entries: str
    results: str
    result: str
    """The class of one result."""


_SHAPES: Final = {
    CREATE_TOPICS: _Shape("create_topics", 2, "topics", "topics", "CreatableTopicResult"),
    DELETE_TOPICS: _Shape("delete_topics", 1, "topics", "responses", "DeletableTopicResult"),
    CREATE_PARTITIONS: _Shape("create_partitions", 0, "topics", "results", "CreatePartitionsTopicResult"),
    DELETE_RECORDS: _Shape("delete_records", 0, "topics", "topics", "DeleteRecordsTopicResult"),
    ALTER_CONFIGS: _Shape("alter_configs", 0, "resources", "responses", "AlterConfigsResourceResponse"),
    INCREMENTAL_ALTER_CONFIGS: _Shape(
        "incremental_alter_configs", 0, "resources", "responses", "AlterConfigsResourceResponse"
    ),
}
TOPIC_CHANGES: Final = tuple(_SHAPES)
"""APIs that create, delete or change topics or what is in them, named one by one."""


class Change(NamedTuple):
    """One entry of a request."""

    topic: str | None
    """None: it is given by its id, or is no topic."""
    topic_id: uuid.UUID | None
    raw: bytes


def read_changes(api_key: int, version: int, body: bytes, now_ms: float) -> Slices[tuple[list[Change], float]]:
    """The entries of a request, and the time. Raises WireError ("request_malformed")."""
    shape = _SHAPES[api_key]
    cls = class_in(module_of(shape.message, max(version, shape.oldest), "request"))
    # CreateTopics version 0 lacks validate_only, its last byte.
    whole = body + b"\0" if api_key == CREATE_TOPICS and version == 0 else body
    found: list[Change] = []
    if api_key == DELETE_TOPICS and version < 6:
        field, name, kind, topic_id = "topic_names", 0, None, None
    else:
        element = _entry_class(api_key, version)
        field, kind, topic_id = shape.entries, place(element, "resource_type"), place(element, "topic_id")
        name = place(element, "name" if kind is None else "resource_name") or 0

    def take(starts: Starts) -> None:
        topic = read_string(whole, starts[name], cls.__flexible__)
        if kind is not None and whole[starts[kind]] != _TOPIC:
            topic = None
        of_id = None if topic_id is None else read_uuid(whole, starts[topic_id])
        found.append(Change(topic, of_id, whole[starts[0] : starts[-1]]))

    with readable("request_malformed", cls):
        _, now_ms = yield from walk(cls, whole, {field: take}, now_ms, more_may_follow=True)
    return found, now_ms


def refusal(api_key: int, version: int, changes: Sequence[Change], refused: Sequence[bool], text: str) -> Slices[bytes]:
    """The body of an answer: TOPIC_AUTHORIZATION_FAILED with this text for the entries `refused`, and
    OPERATION_NOT_ATTEMPTED for the others, as Kafka has it where one part of a request stops all of it."""
    shape = _SHAPES[api_key]
    module = module_of(shape.message, max(version, shape.oldest), "response")
    results = []
    for number, (change, no) in enumerate(zip(changes, refused, strict=True), 1):
        error = ErrorCode.topic_authorization_failed if no else ErrorCode.operation_not_attempted
        if api_key == CREATE_TOPICS and version == 0:
            results.append(string(change.topic or "") + INT16.pack(error.value))
        else:
            results.append(encoded(_result(api_key, version, module, change, error, text if no else None)))
        if number % RESULTS_IN_A_SLICE == 0:
            yield
    head = INT32.pack(0) if version >= shape.oldest else b""
    if class_in(module).__flexible__:
        return head + uvarint(len(results) + 1) + b"".join(results) + b"\0"
    return head + INT32.pack(len(results)) + b"".join(results)


@cache
def _entry_class(api_key: int, version: int) -> Any:
    """The class of the entries of a request."""
    shape = _SHAPES[api_key]
    cls = class_in(module_of(shape.message, max(version, shape.oldest), "request"))
    return typing.get_args(typing.get_type_hints(cls)[shape.entries])[0]


def _partitions(api_key: int, version: int, change: Change) -> Sequence[Any]:
    """What an entry of DeleteRecords names; nothing if it is more than a topic has."""
    cls = _entry_class(api_key, version)
    size = len(compact_string(change.topic or "") if cls.__flexible__ else string(change.topic or ""))
    if array_count(change.raw, size, cls.__flexible__) > MAX_PARTITIONS:
        return ()
    entry, _ = entity_reader(cls)(change.raw, 0)
    named: Sequence[Any] = entry.partitions
    return named


def _result(api_key: int, version: int, module: Any, change: Change, error: ErrorCode, text: str | None) -> Any:
    cls = getattr(module, _SHAPES[api_key].result)
    fields = cls.__dataclass_fields__
    values: dict[str, Any] = {
        "name": change.topic,
        "topic_id": change.topic_id,
        "error_code": error,
        "error_message": text,
        "configs": (),
    }
    if "resource_type" in fields:
        entry, _ = entity_reader(_entry_class(api_key, version))(change.raw, 0)
        values |= {"resource_type": entry.resource_type, "resource_name": entry.resource_name}
    if "partitions" in fields:
        partition = module.DeleteRecordsPartitionResult
        values["partitions"] = tuple(
            partition(partition_index=one.partition_index, low_watermark=-1, error_code=error)
            for one in _partitions(api_key, version, change)
        )
    return cls(**{name: value for name, value in values.items() if name in fields})
