"""The throttle_time_ms field of responses: where it is, reading it, raising it.

Positions are absolute indexes into the buffer. `start` is the index of the frame's 4-byte size; `end` is one past the
bytes that have arrived, which may be before or after the frame's own end.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from proxy.core.wire import apis, integers, schema
from proxy.core.wire.apis import API_VERSIONS, PRODUCE, UNKNOWN, response_header_version
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import SKIP, TAGS, Buffer, Program
from proxy.core.wire.walk import Short, Walker

UNSUPPORTED_VERSION: Final = 35
"""Kafka's error code for an API version that the broker does not have."""
REBOOTSTRAP_REQUIRED: Final = 129
"""That of a broker, asked by ApiVersions 5, which is another one than the client wants (KIP-1242)."""

WritableBuffer: TypeAlias = bytearray | memoryview

# Compared for each request or response: C numbers in compiled code (see the .pxd).
_WALK: Final = 0
"""In place of an offset: fields of varying length come before the throttle field."""
_NO_FIELD: Final = UNKNOWN
_PRODUCE: Final = PRODUCE
_PRODUCE_FIRST_FLEXIBLE: Final = schema.APIS[PRODUCE][3]
_PRODUCE_FIRST_TOPIC_ID: Final = 13
_TOPIC_ID_BYTES: Final = 16
_PARTITION_BYTES: Final = 33
_NO_ERRORS: Final = 0x01000000
"""What follows a partition's numbers: no errors of records, no message, no tagged fields; and a 0."""
_BODY: Final[tuple[Program, Program]] = (((SKIP, 8),), ((SKIP, 8), (TAGS, ())))


def by_version(table: dict[int, tuple[tuple[int, int, Program], ...]]) -> dict[int, Program]:
    """A generated table of version ranges, by `api_key << 16 | version`."""
    return {
        key << 16 | version: walk
        for key, runs in table.items()
        for first, last, walk in runs
        for version in range(first, last + 1)
    }


def _throttle_at(api_key: int, version: int) -> int:
    *_, first, at = schema.APIS[api_key]
    if version < first:
        return _NO_FIELD
    return _WALK if at < 0 else 8 + response_header_version(api_key, version) + at


_THROTTLE_AT: Final = apis.by_place(_throttle_at)
"""Offset from the frame's start by `place`: 4 bytes size, 4 or 5 header, then the body."""
_FLEXIBLE: Final = apis.by_place(response_header_version)
"""1 if there are tagged fields in the header of a response, by `place`."""
MAX_ELEMENTS: Final = 2000
"""Elements that are walked over to find a throttle field behind them, in 3 ms: partitions of a Produce. The throttle of
one with more is not read."""
_MOST_BYTES: Final = MAX_ELEMENTS * _PARTITION_BYTES
"""The longest response in which plain partitions are counted."""
_THROTTLE_WALKS: Final = by_version(schema.THROTTLE_WALKS)


def body_at(buf: Buffer, start: int, end: int, api_key: int, version: int) -> int:
    """Index of the body of a whole response. Raises WireError if its header is malformed."""
    return body_start(Walker(buf, end, end), start, api_key, version)


def body_start(walker: Walker, start: int, api_key: int, version: int) -> int:
    """Index of the response body's first byte. Raises Short or WireError."""
    return walker.run(_BODY[response_header_version(api_key, version)], start)


def needs_whole_frame(api_key: int, version: int) -> bool:
    """Whether the throttle field comes after fields of varying length (Produce, ApiVersions, delegation tokens)."""
    offsets = _THROTTLE_AT
    return offsets[apis.place(api_key, version)] == _WALK


def patch_throttle(frame: WritableBuffer, start: int, end: int, api_key: int, version: int, throttle_ms: int) -> bool:
    """Set throttle_time_ms to `throttle_ms`, unless the broker's own is higher. False: no field within reach.

    The frame may be cut after the field. Nothing is raised for malformed frames: they are for the client to reject.
    """
    pos = _throttle_position(frame, start, end, api_key, version)
    if pos < 0:
        return False
    if throttle_ms > integers.int32(frame, pos):
        integers.put_int32(frame, pos, throttle_ms)
    return True


def read_throttle(frame: Buffer, start: int, end: int, api_key: int, version: int) -> int:
    """The throttle_time_ms in a response; 0 where there is no such field, or none within reach."""
    if api_key == _PRODUCE and start + 4 + integers.int32(frame, start) == end and end - start >= 13:
        # Nearly always 0, and then the last bytes show it. (They could also be those of a node's rack, after the field:
        # then a broker's throttle goes unnoticed, next to an error, which matters little.)
        last = end - 1 if version >= _PRODUCE_FIRST_FLEXIBLE else end
        if integers.int32(frame, last - 4) == 0:
            return 0
    pos = _throttle_position(frame, start, end, api_key, version)
    return max(integers.int32(frame, pos), 0) if pos >= 0 else 0


def _throttle_position(frame: Buffer, start: int, end: int, api_key: int, version: int) -> int:
    """Index of the field, all four bytes of it within reach, or -1."""
    offsets, flexible = _THROTTLE_AT, _FLEXIBLE
    known = apis.place(api_key, version)
    at = offsets[known]
    if at == _NO_FIELD or end - start < 8:
        return -1
    frame_end = start + 4 + integers.int32(frame, start)
    limit = min(end, frame_end)
    if at != _WALK and (flexible[known] == 0 or (limit - start > 8 and integers.uint8(frame, start + 8) == 0)):
        pos = start + at
    else:
        pos = _find_throttle(frame, start, limit, frame_end, api_key, version, at)
    return pos if pos + 4 <= limit else -1


def _find_throttle(frame: Buffer, start: int, limit: int, frame_end: int, api_key: int, version: int, at: int) -> int:
    """Position of the field, or -1."""
    if api_key == _PRODUCE and limit == frame_end:
        pos = plain_produce(frame, start, frame_end, version)
        if pos >= 0:
            return pos
    if api_key == API_VERSIONS and limit - start >= 10 and integers.int16(frame, start + 8) == UNSUPPORTED_VERSION:
        return -1  # such a response always has the layout of version 0, which lacks the field
    walker = Walker(frame, limit, frame_end, MAX_ELEMENTS)
    try:
        pos = body_start(walker, start, api_key, version)
        if at != _WALK:
            return pos + at - 9  # the header has tagged fields: without them the body begins at 9
        walker.run(_THROTTLE_WALKS[api_key << 16 | version], pos)
    except (Short, WireError):
        return -1
    return walker.throttle_at


def plain_produce(frame: Buffer, start: int, frame_end: int, version: int) -> int:
    """Position of the throttle field in a whole produce response without errors, node endpoints and tags; else -1.

    Up to version 8 it is the last field, and the rest is not read. Version 9 to 12 (from 13 on 16 bytes
    of topic id instead of the name):

        size4 corr4 tags=0 | topics+1 | name, partitions+1 | index4 error2 offset8 time8 start8 | record_errors=0+1
        message=null tags=0 | tags=0 | throttle4 tags=0
    """
    if version < _PRODUCE_FIRST_FLEXIBLE:
        return frame_end - 4 if version > 0 else -1
    throttle_at = frame_end - 5
    at = start + 10
    if not at <= throttle_at <= start + _MOST_BYTES:
        return -1
    topics = integers.int16(frame, start + 8)  # after tags=0
    if topics >= 0x80:
        topics = integers.short_uvarint(frame, start + 9) if topics <= 0xFF else -1
        at += 1
    while topics > 1:
        if version >= _PRODUCE_FIRST_TOPIC_ID:
            at += _TOPIC_ID_BYTES
        elif at < throttle_at:
            name_bytes = integers.short_uvarint(frame, at)
            at += name_bytes if 0 < name_bytes < 0x80 else name_bytes + 1
        if at >= throttle_at:
            return -1
        partitions = integers.short_uvarint(frame, at)
        if partitions < 2:
            return -1
        at += 1 if partitions < 0x80 else 2
        while partitions > 1:
            at += _PARTITION_BYTES
            # The fourth byte is the first one of the next partition's number, or the topic's tagged fields.
            if at >= throttle_at or integers.int32(frame, at - 3) != _NO_ERRORS:
                return -1
            partitions -= 1
        at += 1
        topics -= 1
    return at if at == throttle_at and topics == 1 else -1
