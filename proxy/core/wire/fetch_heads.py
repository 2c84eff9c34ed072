"""About how many bytes of a Fetch response name partitions, whether these have records or not.

Known from the request where the response names all partitions that are asked for, and otherwise from the response's
first bytes. Partitions are not looked at one by one.
"""

from __future__ import annotations

from typing import Final

from proxy.core.wire import integers
from proxy.core.wire.primitives import Buffer
from proxy.core.wire.requests import FetchFields

_FIRST_FLEXIBLE: Final = 12
_FIRST_TOPIC_ID: Final = 13
_TOPIC_ID_BYTES: Final = 16
_FLEXIBLE_ASKED: Final = 33
_FLEXIBLE_ANSWERED: Final = 37


def asked_bytes(version: int) -> int:
    """A partition in a request: its number, offset and max_bytes; from 5 on the log's start, from 9 on the leader's
    epoch, from 12 on the last fetched epoch and no tagged fields."""
    if version >= _FIRST_FLEXIBLE:
        return _FLEXIBLE_ASKED
    return 28 if version >= 9 else 24 if version >= 5 else 16


def answered_bytes(version: int) -> int:
    """A partition without records in a response: its number, error, high watermark and the size of its records; from 4
    on the last stable offset and aborted transactions, from 5 on the log's start, from 11 on a replica to read from."""
    if version >= _FIRST_FLEXIBLE:
        return _FLEXIBLE_ANSWERED
    return 42 if version >= 11 else 38 if version >= 5 else 30 if version == 4 else 18


def _topics(buf: Buffer, at: int, end: int, version: int) -> tuple[int, int, int]:
    """The number of topics in the array at `at`, the bytes of the first one's name or id, and where that ends; a
    position below 0: more bytes are needed."""
    if version >= _FIRST_FLEXIBLE:
        topics, at = integers.uvarint(buf, at, end)
        if at < 0:
            return 0, 0, -1
        if version >= _FIRST_TOPIC_ID:
            return topics - 1, _TOPIC_ID_BYTES, at + _TOPIC_ID_BYTES
        length, named_at = integers.uvarint(buf, at, end)
        return topics - 1, length, -1 if named_at < 0 else at + length
    if at + 6 > end:
        return 0, 0, -1
    length = integers.int16(buf, at + 4)
    return integers.int32(buf, at), 2 + length, at + 6 + length


def of_request(buf: Buffer, fields: FetchFields, end: int, rest_bytes: int, version: int) -> int:
    """For a request outside a session, whose response names all that it asks for; 0 in a session (KIP-227).

    `rest_bytes` follow `fields.rest`, of which those up to `end` are here: the topics, and little else. All topics are
    taken to have names as long as the first one's.
    """
    if fields.session_epoch > 0:
        return 0
    topics, name_bytes, at = _topics(buf, fields.rest, end, version)
    # With the number of its partitions; flexible: and no tagged fields.
    topic_bytes = name_bytes + (2 if version >= _FIRST_FLEXIBLE else 4)
    named = min(max(min(topics, rest_bytes) * min(topic_bytes, rest_bytes), 0), rest_bytes) if at >= 0 else 0
    return named + (rest_bytes - named) * answered_bytes(version) // asked_bytes(version)


def of_response(buf: Buffer, body: int, end: int, size_bytes: int, version: int) -> int:
    """For a response of `size_bytes` whose body begins at `body`, of which the bytes up to `end` are here; 0: more are
    needed. In a session it names those partitions that have news. All topics are taken to be like the first one."""
    at = body + (10 if version >= 7 else 4 if version >= 1 else 0)  # throttle time; error and session id
    topics, name_bytes, at = _topics(buf, at, end, version)
    if at < 0:
        return 0
    if version >= _FIRST_FLEXIBLE:
        partitions, at = integers.uvarint(buf, at, end)
        partitions -= 1
    else:
        partitions = integers.int32(buf, at) if at + 4 <= end else 0
    if topics <= 0 or partitions <= 0:
        return 0
    each = min(name_bytes + min(partitions, size_bytes) * answered_bytes(version), size_bytes)
    return min(min(topics, size_bytes) * each, size_bytes)
