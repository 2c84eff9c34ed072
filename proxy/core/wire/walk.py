"""A small interpreter for the walk programs in schema.py: finds positions in a response, and copies nothing.

There are two ends. `limit` is how far bytes have arrived; beyond it the walk raises Short, and the caller comes back
with more. `frame_end` is where the frame says it ends; beyond it the sender is at fault, and the walk raises WireError.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from proxy.core.wire import primitives as p
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import INT16, INT32, Buffer, Program, read_uvarint
from quota.steps import whole


class Short(Exception):  # noqa: N818 - not an error: the caller waits for more bytes and asks again
    """Too few bytes have arrived for the walk. `wanted` is a position that must be reached at least."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"bytes up to {wanted} are needed")
        self.wanted = wanted


class Address(NamedTuple):
    """Where one broker address lies: the host with its length field, then the port."""

    node_id: int
    controller: bool
    compact: bool
    host_at: int
    host_end: int
    port_at: int
    port_bytes: int


class TagScope(NamedTuple):
    """A tagged field that was entered: its uvarint size field, and its contents."""

    size_at: int
    size_end: int
    content_end: int


class NodeList(NamedTuple):
    """An array of addresses: its count field, which of the walk's addresses are its elements, and its end."""

    compact: bool
    count_at: int
    count_end: int
    elements: int
    first: int
    end: int


MAX_ELEMENTS: Final = 100_000
"""Elements of arrays and tagged fields in one walk."""
SLICE: Final = 500
"""Of these in one slice, which takes about a millisecond."""
MAX_SCOPES: Final = 8
"""Tagged fields that are entered; a response has one of them. Each is compared with all addresses."""


class Walker:
    """Walks one message. `addresses`, `lists`, `scopes` and `throttle_at` are its findings."""

    least_length = -1
    """The least length of a field that may be null, and of an array."""

    __slots__ = (
        "_compact", "_controllers", "_due", "_elements", "_host_at", "_host_end", "_node_id", "addresses", "buf",
        "frame_end", "limit", "lists", "now_ms", "scopes", "throttle_at",
    )  # fmt: skip

    def __init__(self, buf: Buffer, limit: int, frame_end: int, most: int = MAX_ELEMENTS) -> None:
        """At most `most` elements."""
        self.buf = buf
        self.limit = limit if limit < frame_end else frame_end
        self.frame_end = frame_end
        self.addresses: list[Address] = []
        self.lists: list[NodeList] = []
        self.scopes: list[TagScope] = []
        self.throttle_at = -1
        self.now_ms = 0.0
        """The time that was sent after the last slice, if any was."""
        self._node_id = -1
        self._controllers = False
        self._compact = False
        self._elements = most
        self._due = SLICE
        self._host_at = self._host_end = -1

    def run(self, program: Program, pos: int) -> int:
        """Walk over `program` from `pos`; the position after it. Raises Short or WireError."""
        return whole(self.walk(program, pos))

    def walk(self, program: Program, pos: int) -> Generator[None, Any, int]:
        """As `run`, in slices: others may be served after each."""
        buf, limit = self.buf, self.limit
        for code, argument in program:
            if code == p.SKIP:
                pos += argument
            elif code == p.VARLEN:
                pos = self._varlen(pos)
            elif code == p.TAGS:
                if pos < limit and buf[pos] == 0:
                    pos += 1
                else:
                    pos = yield from self._tags(argument, pos)
            elif code in (p.VARARRAY, p.ARRAY):
                counted_at, first = pos, len(self.addresses)
                count, pos = self.count(code, pos)
                size = self.checked(argument, count, pos)
                if size:
                    pos += count * size
                    continue
                began = pos
                for _ in range(count):
                    pos = yield from self.walk(argument, pos)
                    if self._over():
                        self.now_ms = yield
                if argument[0][0] == p.NODE_ID:
                    self.lists.append(NodeList(code == p.VARARRAY, counted_at, began, count, first, pos))
            elif code == p.STRING:
                pos = self._sized(pos, 2)
            elif code == p.THROTTLE:
                self.throttle_at = pos
                pos += 4
            elif code == p.BYTES:
                pos = self._sized(pos, 4)
            elif code == p.NULLABLE:
                self.need(pos + 1)
                pos = pos + 1 if buf[pos] >= 0x80 else (yield from self.walk(argument, pos + 1))
            elif code == p.REQUIRED:
                if self.count(argument, pos)[0] < 0:
                    raise self._malformed("a required array is null")
            else:
                pos = self._address(code, argument, pos)
            if pos > limit:
                self.need(pos)
        return pos

    def _address(self, code: int, argument: Any, pos: int) -> int:
        """A step of an address; the last one is its port."""
        buf = self.buf
        if code in (p.HOST, p.VARHOST):
            self._host_at, self._compact = pos, code == p.VARHOST
            self._host_end = self._varlen(pos) if self._compact else self._sized(pos, 2)
            return self._host_end
        if code == p.NODE_ID:
            self.need(pos + 4)
            self._node_id = INT32.unpack_from(buf, pos)[0]
            return pos + 4
        if code == p.ENDPOINT_TYPE:
            self.need(pos + 1)
            self._controllers = buf[pos] == 2
            return pos + 1
        if code == p.PORT:
            self.need(pos + argument)
            host = self._host_at, self._host_end
            self.addresses.append(Address(self._node_id, self._controllers, self._compact, *host, pos, argument))
            return pos + int(argument)
        raise AssertionError(f"unknown step {code} in a message's schema")

    def count(self, code: int, pos: int) -> tuple[int, int]:
        """The number of elements (-1: null) of an array of this step, and the position of the first."""
        if code == p.VARARRAY:
            count, pos = self._uvarint(pos)
            return count - 1, pos
        self.need(pos + 4)
        return INT32.unpack_from(self.buf, pos)[0], pos + 4

    def need(self, pos: int) -> None:
        """Raises Short when the bytes up to `pos` have not arrived yet, WireError when they are beyond the frame."""
        if pos > self.frame_end:
            raise self._malformed(f"a field ends {pos - self.frame_end} bytes past the end of its frame")
        if pos > self.limit:
            raise Short(pos)

    @staticmethod
    def _malformed(text: str) -> WireError:
        return WireError("response_malformed", text)

    def _uvarint(self, pos: int) -> tuple[int, int]:
        value, after = read_uvarint(self.buf, pos, self.limit)
        if after == -1:
            self.need(self.limit + 1)
        if after == -2:
            raise self._malformed("a length exceeds 32 bits")
        return value, after

    def _varlen(self, pos: int) -> int:
        length, pos = self._uvarint(pos)
        return pos + length - 1 if length else pos

    def _sized(self, pos: int, prefix_bytes: int) -> int:
        self.need(pos + prefix_bytes)
        length: int = (INT16 if prefix_bytes == 2 else INT32).unpack_from(self.buf, pos)[0]
        if length < self.least_length:
            raise self._malformed(f"a field's length is {length}")
        return pos + prefix_bytes + max(length, 0)

    def checked(self, element: Program, count: int, pos: int) -> int:
        """The size of each element of an array, if they all have the same; else 0."""
        if count <= 0:
            if count < self.least_length:
                raise self._malformed(f"an array has {count} elements")
            return 0
        if count > self.frame_end - pos:  # an element takes at least one byte
            raise self._malformed(
                f"an array declares {count} elements, and {self.frame_end - pos} bytes are left in its frame"
            )
        if len(element) == 1 and element[0][0] == p.SKIP:
            size: int = element[0][1]
            return size
        self._count(count)
        return 0

    def _over(self) -> bool:
        """Another element has been passed: is the slice over?"""
        self._due -= 1
        if self._due > 0:
            return False
        self._due = SLICE
        return True

    def _count(self, elements: int) -> None:
        self._elements -= elements
        if self._elements < 0:
            raise self._malformed(f"{-self._elements} elements above the limit")

    def _tags(self, wanted: tuple[tuple[int, Program], ...], pos: int) -> Generator[None, Any, int]:
        count, pos = self._uvarint(pos)
        if count > self.frame_end - pos:
            raise self._malformed(f"{count} tagged fields cannot fit into {self.frame_end - pos} bytes")
        self._count(count)
        for _ in range(count):
            tag, pos = self._uvarint(pos)
            size_at = pos
            size, pos = self._uvarint(pos)
            content_end = pos + size
            for wanted_tag, program in wanted:
                if tag == wanted_tag:
                    if len(self.scopes) == MAX_SCOPES:
                        raise self._malformed(f"more than {MAX_SCOPES} tagged fields with addresses")
                    self.scopes.append(TagScope(size_at, pos, content_end))
                    if (yield from self.walk(program, pos)) > content_end:
                        raise self._malformed(f"tagged field {tag} is longer than its declared size")
            self.need(content_end)
            pos = content_end
            if self._over():
                self.now_ms = yield
        return pos
