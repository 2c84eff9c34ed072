"""The answer to a Produce request that is thrown away: REQUEST_TIMED_OUT for each of its partitions.

It is put together while the request passes: names and partition numbers are kept, and records are not looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final

from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import INT16, INT32, Program, array_head, uvarint
from proxy.core.wire.stream import MAX_TOPIC_BYTES, StreamWalk

REQUEST_TIMED_OUT: Final = INT16.pack(7)
MAX_ELEMENTS: Final = 1024
"""Topics, partitions and tagged fields of a request that can be refused: walking over them takes some 2 ms, and their
answer has 32 KB, besides topics' names."""
TOO_LARGE: Final = "request_too_large"
_NO_OFFSET: Final = b"\xff" * 8
_BATCH_BYTES: Final = 61
"""The head of a record batch, with its magic number, its first record's timestamp, and its producer's id, epoch and
first sequence at:"""
_MAGIC_AT: Final = 16
_FIRST_TIMESTAMP_AT: Final = 27
_PRODUCER_AT: Final = 43
_PRODUCER: Final = struct.Struct(">qhi")
_TIMESTAMP: Final = struct.Struct(">q")


class ProduceRefusal(StreamWalk):
    """Refuses one request, whose body it sees. Raises WireError (`TOO_LARGE`: it has too many partitions)."""

    __slots__ = ("_flexible", "_left", "_parts", "_tail", "_timed", "_version", "_whole", "batches")

    def __init__(self, version: int, *, timed: bool = False) -> None:
        """`version` is one that kquota knows. `timed`: batches that are not idempotent count as well."""
        self.batches: dict[tuple[bytes, bytes, int], tuple[int, int]] = {}
        """Epoch and first sequence of idempotent batches, by topic, partition and producer id: of those whose head came
        in one piece. Others have the producer id and epoch -1, and their first record's timestamp as the sequence."""
        self._timed = timed
        self._parts: list[bytes] = []
        super().__init__((), self._parts.append)
        self._version = version
        self._flexible = flexible = version >= 9
        self._left = MAX_ELEMENTS
        self._whole = False
        # error code, base offset, log append time, log start offset, record errors and message
        self._tail = REQUEST_TIMED_OUT + _NO_OFFSET * (1 + (version >= 2) + (version >= 5))
        if version >= 8:
            self._tail += b"\1\0\0" if flexible else INT32.pack(0) + INT16.pack(-1)

    def body(self, throttle_ms: int) -> bytes:
        """Of the response, once all of the request has been seen."""
        if not self._whole:
            raise WireError("request_malformed", "a Produce request ends before its last partition")
        end = INT32.pack(throttle_ms) if self._version >= 1 else b""
        return b"".join(self._parts) + end + (b"\0" if self._flexible else b"")

    def _run(self, _program: Program) -> Generator[None, None, None]:
        no_tags = b"\0" if self._flexible else b""
        if self._version >= 3:
            length = yield from self._length(2)
            self._at += max(length, 0)
        self._at += 6  # acks, timeout_ms
        for _ in range((yield from self._array())):
            length = 16 if self._version >= 13 else (yield from self._length(2))
            if not 0 <= length <= MAX_TOPIC_BYTES:
                raise WireError(TOO_LARGE, f"a topic's name has {length} bytes, expected 0 to {MAX_TOPIC_BYTES}")
            if self._version < 13:
                self._parts.append(uvarint(length + 1) if self._flexible else INT16.pack(length))
            yield from self._take(length)
            topic = self._parts[-1]
            for _ in range((yield from self._array())):
                yield from self._take(4)
                partition = self._parts[-1]
                self._parts.append(self._tail)
                length = yield from self._length(4)
                if length >= _BATCH_BYTES:
                    self._batch(topic, partition)
                self._at += max(length, 0)
                yield from self._tags()
            self._parts.append(no_tags)
            yield from self._tags()
        self._whole = True

    def _batch(self, topic: bytes, partition: bytes) -> None:
        data, at = self._data, self._at
        if at + _BATCH_BYTES <= len(data) and data[at + _MAGIC_AT] == 2:
            producer_id, epoch, sequence = _PRODUCER.unpack_from(data, at + _PRODUCER_AT)
            if producer_id < 0:
                (sequence,) = _TIMESTAMP.unpack_from(data, at + _FIRST_TIMESTAMP_AT)
            if producer_id >= 0 or self._timed:
                self.batches[topic, partition, producer_id] = epoch, sequence

    def _array(self) -> Generator[None, None, int]:
        count = max((yield from self._length(4)), 0)
        self._count(count)
        self._parts.append(array_head(count, self._flexible))
        return count

    def _length(self, width: int) -> Generator[None, None, int]:
        """A length or count; -1: null."""
        if self._flexible:
            return (yield from self._uvarint()) - 1
        while self._at + width > len(self._data):
            yield
        self._at += width
        value: int = (INT16 if width == 2 else INT32).unpack_from(self._data, self._at - width)[0]
        return value

    def _tags(self) -> Generator[None, None, None]:
        if self._flexible:
            yield from super()._tags()

    def _count(self, elements: int = 1) -> None:
        self._left -= elements
        if self._left < 0:
            raise WireError(TOO_LARGE, f"a queued Produce request has more than {MAX_ELEMENTS} topics and partitions")
