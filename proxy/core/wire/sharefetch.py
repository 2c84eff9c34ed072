"""ShareFetch responses stripped of brokers' addresses (KIP-932), as a stream.

They may be large, and the node endpoints come last, after the records. So the response is walked while it passes: only
length fields are inspected. When the walk reaches the endpoints, the short rest of the frame is kept; the endpoints are
replaced by an empty array, and the bytes saved by an unknown tagged field of exactly that length, so that the size that
has already been sent stays right.
Clients skip tagged fields that they do not know (KIP-482), and ask for metadata when an endpoint is missing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from proxy.core.wire import primitives as p
from proxy.core.wire import schema
from proxy.core.wire.apis import SHARE_FETCH, check_known
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import Buffer, Program, read_uvarint, uvarint
from proxy.core.wire.walk import MAX_ELEMENTS, Short, Walker

MAX_PARTIAL_BYTES: Final = 1024 * 1024
"""The endpoints of a cluster of ten thousand brokers are smaller than this."""

# Two tags for the padding field, far from those that Kafka assigns. The length to fill decides which is used: a minimal
# size field grows from one byte to two between 127 and 128, so that one tag alone cannot fill every length.
_PADDING_TAGS: Final = (10_000, 100_000)  # two and three bytes as uvarint


def padding(length: int) -> bytes:
    """An unknown tagged field that is exactly `length` bytes long (5 or more), filled with zeros."""
    for tag in map(uvarint, _PADDING_TAGS):
        for size_bytes in (1, 2, 3, 4):
            content = length - len(tag) - size_bytes
            if content >= 0 and len(uvarint(content)) == size_bytes:
                return tag + uvarint(content) + bytes(content)
    raise ValueError(f"a tagged field cannot have {length} bytes")


def _split(version: int) -> tuple[Program, Program]:
    """The walk before the node endpoints, and the walk over the endpoints themselves."""
    walk = next(walk for first, last, walk in schema.ADDRESS_WALKS[SHARE_FETCH] if first <= version <= last)
    return walk[:-1], walk[-1:]


class ShareFetchScrubber:
    """One response: `feed` it the frame from its size prefix to its end, in any pieces, and send what it returns.

    In total it returns as many bytes as it was fed; the last few come only with the last piece. Raises WireError for
    unknown versions, and from `feed` for malformed responses.
    """

    def __init__(self, version: int) -> None:
        check_known(SHARE_FETCH, version)
        self._before, self._endpoints = _split(version)
        self._left = 4
        """Bytes of the frame not fed yet; until the frame's size is known, of its size prefix."""
        self._elements = 0
        """Array elements and tagged fields passed: each costs time, and 64 KB of empty ones would stall all
        connections."""
        self._partial: bytearray | None = None
        self._walk = self._walk_head()
        self._skip = next(self._walk)
        """Bytes to pass before the walk goes on; 0 when it needs the next byte."""

    def feed(self, data: Buffer) -> bytes:
        """The bytes to send for `data`: the same, except for the end of the frame, which is kept and then changed."""
        pos, end = 0, len(data)
        while pos < end and self._partial is None:
            if self._skip:
                count = min(self._skip, end - pos)
                self._skip -= count
                self._left -= count
                pos += count
                if not self._skip:
                    self._go_on(None)
            else:
                self._left -= 1
                byte = data[pos]
                pos += 1
                self._go_on(byte)
        passed = bytes(data[:pos])
        if self._partial is None:
            return passed
        if end - pos > self._left:
            raise ValueError("more bytes than the frame has")
        self._partial += data[pos:]
        self._left -= end - pos
        return passed if self._left else passed + self._scrub(self._partial)

    def _go_on(self, byte: int | None) -> None:
        """Give the walk its byte, or report that the bytes to skip have passed, until it needs more."""
        try:
            self._skip = next(self._walk) if byte is None else self._walk.send(byte)
        except StopIteration:
            self._skip = 0
            self._partial = bytearray()
            if self._left > MAX_PARTIAL_BYTES:
                raise WireError(
                    "response_too_large", f"the node endpoints of a ShareFetch response take {self._left} bytes"
                ) from None
            if self._left == 0:
                raise WireError("response_malformed", "a ShareFetch response ends before its node endpoints") from None
        if self._skip > self._left:
            raise WireError(
                "response_malformed", f"a field ends {self._skip - self._left} bytes past the end of its frame"
            )

    # The walk is a generator: it yields how many bytes to pass, or 0 to be sent the next byte.

    def _walk_head(self) -> Generator[int, int, None]:
        size = 0
        for _ in range(4):
            size = size << 8 | (yield 0)
        if not 4 < size < 1 << 31:
            raise WireError("frame_too_small", f"the size of a ShareFetch response is {size} bytes")
        self._left = size
        yield 4  # correlation id
        yield from self._run(((p.TAGS, ()),))
        yield from self._run(self._before)

    def _uvarint(self) -> Generator[int, int, int]:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = yield 0
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WireError("response_malformed", "a length exceeds 32 bits")

    def _run(self, program: Program) -> Generator[int, int, None]:
        for code, argument in program:
            if code == p.SKIP:
                yield argument
            elif code == p.VARLEN:
                length = yield from self._uvarint()
                if length > 1:
                    yield length - 1
            elif code == p.VARARRAY:
                count = yield from self._uvarint()
                if count - 1 > self._left:
                    raise WireError("response_malformed", f"an array declares {count - 1} elements")
                self._count(count - 1)
                for _ in range(count - 1):
                    yield from self._run(argument)
            elif code == p.TAGS:
                fields = yield from self._uvarint()
                self._count(fields)
                for _ in range(fields):
                    yield from self._uvarint()
                    size = yield from self._uvarint()
                    if size:
                        yield size
            else:
                raise AssertionError(f"unexpected step {code} in a ShareFetch response")

    def _count(self, elements: int) -> None:
        self._elements += max(0, elements)
        if self._elements > MAX_ELEMENTS:
            raise WireError("response_too_large", f"more than {MAX_ELEMENTS} elements in a ShareFetch response")

    def _scrub(self, tail: bytearray) -> bytes:
        """The frame's end, from the endpoints on, without endpoints but of the same length."""
        walker = Walker(tail, len(tail), len(tail))
        try:
            end = walker.run(self._endpoints, 0)
            if not walker.addresses:
                return bytes(tail)
            tags, after = read_uvarint(tail, end, len(tail))
            walker.run(((p.TAGS, ()),), end)
        except Short as short:  # cannot be: the frame is whole
            raise WireError("response_malformed", str(short)) from None
        clean = uvarint(1) + uvarint(tags + 1) + bytes(tail[after:])
        return clean + padding(len(tail) - len(clean))
