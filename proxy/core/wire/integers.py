"""Reading and writing integers in a buffer: big-endian, as Kafka has them, at absolute positions.

Compiled modules use the C functions of `integers.pxd` instead, which access the memory of a memoryview, bytearray or
bytes without creating Python objects. Those check bounds as these do: a position outside the buffer is an error
(IndexError or struct.error), never a read beyond it.
"""

from __future__ import annotations

from proxy.core.wire.primitives import INT16, INT32, Buffer, read_uvarint


def uint8(buf: Buffer, at: int) -> int:
    """The byte at `at`."""
    return buf[at]


def int16(buf: Buffer, at: int) -> int:
    """The signed 16-bit integer at `at`."""
    value: int = INT16.unpack_from(buf, at)[0]
    return value


def int32(buf: Buffer, at: int) -> int:
    """The signed 32-bit integer at `at`."""
    value: int = INT32.unpack_from(buf, at)[0]
    return value


def uvarint(buf: Buffer, at: int, limit: int) -> tuple[int, int]:
    """The unsigned varint at `at`, as `proxy.core.wire.primitives.read_uvarint` reads it."""
    return read_uvarint(buf, at, limit)


def short_uvarint(buf: Buffer, at: int) -> int:
    """The unsigned varint of at most two bytes at `at`; -1: it is longer. With it a plain Produce costs 50 instructions
    less than with `uvarint`."""
    low = buf[at]
    if low < 0x80:
        return low
    high = buf[at + 1]
    return high << 7 | low & 0x7F if high < 0x80 else -1


def put_int16(buf: bytearray | memoryview, at: int, value: int) -> None:
    """Write a 16-bit integer at `at`."""
    INT16.pack_into(buf, at, value)


def put_int32(buf: bytearray | memoryview, at: int, value: int) -> None:
    """Write a 32-bit integer at `at`."""
    INT32.pack_into(buf, at, value)


def same(buf: Buffer, at: int, data: bytes) -> bool:
    """Whether the bytes at `at` are these; all of them must be in the buffer."""
    end = at + len(data)
    if not 0 <= at <= end <= len(buf):
        raise IndexError("beyond the buffer")
    return buf[at:end] == data


def piece(buf: Buffer, start: int, end: int) -> bytes:
    """A copy of the bytes from `start` up to `end`, all of which must be in the buffer."""
    return bytes(buf[start:end])
