"""The smallest parts of Kafka's wire format: integers, lengths, and the step codes of the walk programs.

Every function takes a buffer and absolute positions, so that reading copies nothing.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Anything that can be indexed and unpacked in place."""

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
UINT16: Final = struct.Struct(">H")

FRAME_PREFIX_BYTES: Final = 4
"""Every Kafka frame starts with its own size, an int32 that does not count itself."""

Step: TypeAlias = tuple[int, Any]
"""(code, argument). The argument depends on the code: a byte count, a nested Program, pairs of (tag, Program), or 0."""
Program: TypeAlias = tuple[Step, ...]
"""How to walk over one message body, field by field."""

# Step codes. The comment says what the argument is and what lies on the wire.
SKIP: Final = 0  # n: n bytes of fixed-size fields
STRING: Final = 1  # -: int16 length, -1 is null
VARLEN: Final = 2  # -: uvarint length + 1, 0 is null: compact strings, bytes and records
BYTES: Final = 3  # -: int32 length, -1 is null: bytes and records of the old versions
ARRAY: Final = 4  # Program of one element: int32 count, -1 is null
VARARRAY: Final = 5  # Program of one element: uvarint count + 1, 0 is null
TAGS: Final = (
    6  # ((tag, Program), ...): uvarint count, then (uvarint tag, uvarint size, bytes) each; tags not named are skipped
)
NULLABLE: Final = 7  # Program: one byte, negative is null
NODE_ID: Final = 8  # -: int32, the node that the next host and port belong to
ENDPOINT_TYPE: Final = 9  # -: int8, 1 brokers, 2 controllers (KIP-919)
HOST: Final = 10  # -: a STRING that is a broker's host
VARHOST: Final = 11  # -: a compact string that is a broker's host
PORT: Final = 12  # n: n bytes (4, or 2 for uint16) that are the port of the host before it
THROTTLE: Final = 13  # -: int32 throttle_time_ms
TOPIC: Final = 14  # -: a STRING that is a topic's name
VARTOPIC: Final = 15  # -: a compact string that is a topic's name
TOPIC_ID: Final = 16  # 16: a topic's id
REQUIRED: Final = 17  # ARRAY or VARARRAY, which comes next: nothing; the array must not be null


def read_uvarint(buf: Buffer, pos: int, limit: int) -> tuple[int, int]:
    """Unsigned varint at `pos`: (value, position after it). Position -1: `limit` comes first; -2: it is too long."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        if pos >= limit:
            return 0, -1
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    return 0, -2


def uvarint(value: int) -> bytes:
    """`value` as Kafka's unsigned varint, in the fewest bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def array_head(elements: int, compact: bool) -> bytes:
    """The length field of an array of so many elements (-1: null)."""
    return uvarint(elements + 1) if compact else INT32.pack(elements)


def compact_string(text: str) -> bytes:
    """`text` as a compact string: uvarint length + 1, then UTF-8."""
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def string(text: str) -> bytes:
    """`text` as an old-style string: int16 length, then UTF-8. Raises struct.error beyond 32767 bytes."""
    raw = text.encode()
    return INT16.pack(len(raw)) + raw
