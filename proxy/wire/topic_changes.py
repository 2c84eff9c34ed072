"""Requests that change topics: which topics one names, and the answer that refuses all of it.

Parsed and written by kio, whose classes lack the oldest versions of two APIs. Those requests are laid out as kio's
first version; their answers have no throttle time at the beginning, and CreateTopics version 0 no message.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from proxy.wire.frames import WireError
from proxy.wire.lengths import check_lengths
from proxy.wire.primitives import INT16, INT32, string
from proxy.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS

DELETE_RECORDS: Final = 21
ALTER_CONFIGS: Final = 33
INCREMENTAL_ALTER_CONFIGS: Final = 44

_NO_TIME: Final = timedelta(0)
_TOPIC: Final = 2
"""The type of a resource that is a topic."""


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
    entry: Any


def read_changes(api_key: int, version: int, body: bytes) -> list[Change]:
    """The entries of a request. Raises WireError ("request_malformed")."""
    shape = _SHAPES[api_key]
    cls = _message_class(_module(shape.message, max(version, shape.oldest), "request"))
    # CreateTopics version 0 lacks validate_only, its last byte.
    whole = body + b"\0" if api_key == CREATE_TOPICS and version == 0 else body
    try:
        check_lengths(cls, whole, more_may_follow=True)
        message, _ = entity_reader(cls)(whole, 0)
    except Exception as error:  # kio raises many kinds
        text = f"the {shape.message} request (version {version}) cannot be read: {error!r}"
        raise WireError("request_malformed", text) from error
    if api_key == DELETE_TOPICS and version < 6:
        return [Change(name, None, None) for name in message.topic_names]
    entries: Sequence[Any] = getattr(message, shape.entries)
    if shape.entries == "resources":
        return [Change(one.resource_name if one.resource_type == _TOPIC else None, None, one) for one in entries]
    return [Change(one.name, getattr(one, "topic_id", None), one) for one in entries]


def refusal(api_key: int, version: int, changes: Sequence[Change], refused: Sequence[bool], text: str) -> bytes:
    """The body of an answer: TOPIC_AUTHORIZATION_FAILED with this text for the entries `refused`, and
    OPERATION_NOT_ATTEMPTED for the others, as Kafka has it where one part of a request stops all of it."""
    shape = _SHAPES[api_key]
    errors = [ErrorCode.topic_authorization_failed if no else ErrorCode.operation_not_attempted for no in refused]
    if api_key == CREATE_TOPICS and version == 0:
        pairs = zip(changes, errors, strict=True)
        results = [string(change.topic or "") + INT16.pack(error.value) for change, error in pairs]
        return INT32.pack(len(results)) + b"".join(results)
    module = _module(shape.message, max(version, shape.oldest), "response")
    cls = getattr(module, shape.result)
    found = [
        _result(cls, module, change, error, text if no else None)
        for change, error, no in zip(changes, errors, refused, strict=True)
    ]
    values: dict[str, Any] = {shape.results: tuple(found)}
    response = _message_class(module)
    sink = io.BytesIO()
    entity_writer(response)(sink, response(throttle_time=_NO_TIME, **values))
    return sink.getvalue() if version >= shape.oldest else sink.getvalue()[4:]


def _result(cls: Any, module: Any, change: Change, error: ErrorCode, text: str | None) -> Any:
    entry = change.entry
    values: dict[str, Any] = {
        "name": change.topic,
        "topic_id": change.topic_id,
        "error_code": error,
        "error_message": text,
        "configs": (),
        "resource_type": getattr(entry, "resource_type", None),
        "resource_name": getattr(entry, "resource_name", None),
    }
    if "partitions" in cls.__dataclass_fields__:
        partition = module.DeleteRecordsPartitionResult
        values["partitions"] = tuple(
            partition(partition_index=one.partition_index, low_watermark=-1, error_code=error)
            for one in entry.partitions
        )
    return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


@cache
def _module(message: str, version: int, kind: str) -> Any:
    return import_module(f"kio.schema.{message}.v{version}.{kind}")


def _message_class(module: Any) -> Any:
    *_, name, _, kind = module.__name__.split(".")
    return getattr(module, "".join(word.capitalize() for word in (*name.split("_"), kind)))
