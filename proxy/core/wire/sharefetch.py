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
from proxy.core.wire.primitives import FRAME_PREFIX_BYTES, INT32, Buffer, Program, read_uvarint, uvarint
from proxy.core.wire.stream import StreamWalk
from proxy.core.wire.throttle import by_version
from proxy.core.wire.walk import MAX_ELEMENTS, Walker

MAX_PARTIAL_BYTES: Final = 1024 * 1024
"""The endpoints of a cluster of ten thousand brokers are smaller than this."""

_WALKS: Final = by_version(schema.ADDRESS_WALKS)
_CORRELATION_ID_BYTES: Final = 4
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


class ShareFetchScrubber(StreamWalk):
    """One response: `feed` it the frame from its size prefix to its end, in any pieces, and send what it returns.

    In total it returns as many bytes as it was fed; the last few come only with the last piece. Raises WireError for
    unknown versions, and from `feed` for malformed responses.
    """

    __slots__ = ("_endpoints", "_left", "_passed", "_tail")
    _fault = "response_malformed"

    def __init__(self, version: int) -> None:
        check_known(SHARE_FETCH, version)
        *before, endpoints = _WALKS[SHARE_FETCH << 16 | version]
        self._endpoints = (endpoints,)
        self._left = 1 << 31
        """Bytes of the frame not fed yet; more than there can be until the frame's size is known."""
        self._passed = 0
        """Array elements and tagged fields passed: each costs time, and 64 KB of empty ones would stall all
        connections."""
        self._tail: bytearray | None = None
        super().__init__(((p.SKIP, _CORRELATION_ID_BYTES), (p.TAGS, ()), *before))

    def feed(self, data: Buffer) -> bytes:
        """The bytes to send for `data`: the same, except for the end of the frame, which is kept and then changed."""
        self._left -= len(data)
        passed = b""
        if self._tail is None:
            self.see(data)
            passed = bytes(data[: len(data) - len(self._tail or b"")])
        else:
            self._tail += data
        if self._left < 0:
            raise ValueError("more bytes than the frame has")
        if self._tail is None and self.unseen() >= self._left:
            raise WireError("response_malformed", "a ShareFetch response ends before its node endpoints")
        return passed if self._left or self._tail is None else passed + self._scrub(self._tail)

    def _run(self, program: Program) -> Generator[None, None, None]:
        while len(self._data) < FRAME_PREFIX_BYTES:
            yield
        (size,) = INT32.unpack_from(self._data)
        if size <= _CORRELATION_ID_BYTES:
            raise WireError("frame_too_small", f"ShareFetch response of {size} bytes, expected 5 or more")
        self._at = FRAME_PREFIX_BYTES
        self._left = self._at + size - len(self._data)
        yield from self._walk(program)
        while self._at > len(self._data):
            yield
        if self._left + len(self._data) - self._at > MAX_PARTIAL_BYTES:
            text = f"the node endpoints of a ShareFetch response take more than {MAX_PARTIAL_BYTES} bytes"
            raise WireError("response_too_large", text)
        self._tail = bytearray(self._data[self._at :])

    def _count(self) -> None:
        self._passed += 1
        if self._passed > MAX_ELEMENTS:
            raise WireError("response_too_large", f"more than {MAX_ELEMENTS} elements in a ShareFetch response")

    def _scrub(self, tail: bytearray) -> bytes:
        """The frame's end, from the endpoints on, without endpoints but of the same length."""
        walker = Walker(tail, len(tail), len(tail))
        end = walker.run(self._endpoints, 0)
        if not walker.addresses:
            return bytes(tail)
        tags, after = read_uvarint(tail, end, len(tail))
        walker.run(((p.TAGS, ()),), end)
        clean = uvarint(1) + uvarint(tags + 1) + bytes(tail[after:])
        return clean + padding(len(tail) - len(clean))
