"""Requests that change topics: which topics one names, and the answer that refuses all of it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from proxy.core.wire.bodies import encoded, readable
from proxy.core.wire.lengths import Found, Slices, array_of
from proxy.core.wire.topics import (
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    message_class,
    only_refusals,
    read_entries,
    refused_topic,
)

TOPIC_CHANGES: Final = (
    CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DELETE_RECORDS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
)  # fmt: skip
"""APIs that create, delete or change topics or what is in them, named one by one."""

_TOPIC: Final = 2
"""The type of a resource that is a topic."""
RESULTS_IN_A_SLICE: Final = 20
"""kio writes one in some 25 µs."""
MAX_PARTITIONS: Final = 1000
"""Partitions of one topic that an answer to DeleteRecords names."""


class Change(NamedTuple):
    """One entry of a request."""

    topic: str | None
    """None: it is given by its id, or is no topic."""
    topic_id: uuid.UUID | None
    partitions: int
    """How many of its partitions a DeleteRecords request names."""
    raw: bytes


def read_changes(api_key: int, version: int, body: bytes, now_ms: float) -> Slices[tuple[list[Change], float]]:
    """The entries of a request, and the time. Raises WireError ("request_malformed")."""
    found: list[Change] = []

    def take(entry: Found) -> None:
        name = entry.text("resource_name" if entry.number("resource_type") == _TOPIC else "name")
        found.append(Change(name, entry.topic_id(), entry.count("partitions"), entry.raw))

    _, now_ms = yield from read_entries(api_key, version, body, take, now_ms)
    return found, now_ms


def refusal(api_key: int, version: int, changes: Sequence[Change], refused: Sequence[bool], text: str) -> Slices[bytes]:
    """The body of an answer: TOPIC_AUTHORIZATION_FAILED with this text for the entries `refused`, and
    OPERATION_NOT_ATTEMPTED for the others, as Kafka has it where one part of a request stops all of it."""
    results = []
    for number, (change, no) in enumerate(zip(changes, refused, strict=True), 1):
        error = ErrorCode.topic_authorization_failed if no else ErrorCode.operation_not_attempted
        results.append(_result(api_key, version, change, error, text if no else None))
        if number % RESULTS_IN_A_SLICE == 0:
            yield
    return only_refusals(api_key, version, results)


def _result(api_key: int, version: int, change: Change, error: ErrorCode, text: str | None) -> bytes:
    if api_key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS):
        return refused_topic(api_key, version, change.topic, change.topic_id, error, text)
    _, asked = array_of(message_class(api_key, version, "request"))
    _, cls = array_of(message_class(api_key, version, "response"))
    if change.partitions > MAX_PARTITIONS:
        return encoded(cls(name=change.topic or "", partitions=()))
    with readable("request_malformed", asked):
        entry, _ = entity_reader(asked)(change.raw, 0)
    if api_key == DELETE_RECORDS:
        _, partition = array_of(cls)
        numbers = (one.partition_index for one in entry.partitions)
        partitions = [partition(partition_index=one, low_watermark=-1, error_code=error) for one in numbers]
        return encoded(cls(name=entry.name, partitions=tuple(partitions)))
    named = {"resource_type": entry.resource_type, "resource_name": entry.resource_name}
    return encoded(cls(error_code=error, error_message=text, **named))
