"""A walk over the body of a message while it passes, in pieces of any size: which topics does it name?

Lengths are read, and the names and ids of topics. What lies between, records above all, is not looked at and need not
be there (`unseen`, `skip`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from proxy.core.wire import primitives as p
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import INT16, INT32, Buffer, Program

MAX_TOPIC_BYTES: Final = 249
"""Longer names are no topic's."""
MAX_ELEMENTS: Final = 4096
"""Elements of arrays and tagged fields in one piece. A read of 64 KB has 3 000 in a Fetch of topics of one partition
each, and fewer in a Produce; they take some 4 ms."""
_ALL: Final = 1 << 62


class StreamWalk:
    """One message. Raises WireError (by default "request_malformed") for lengths that no broker accepts."""

    __slots__ = ("_at", "_data", "_elements", "_named", "_steps")
    _fault = "request_malformed"

    def __init__(self, program: Program, named: Callable[[bytes], None] = lambda _: None) -> None:
        """`program` is one of the walks in `schema`; `named` is given each name and id of a topic, and may raise."""
        self._named = named
        self._data: Buffer = b""
        self._at = 0
        """Where the walk is, counted from the beginning of `_data`, which may end before. Between two pieces, `_data`
        begins there, or is empty."""
        self._elements = 0
        self._steps = self._run(program)

    def unseen(self) -> int:
        """How many of the next bytes the walk does not need to see."""
        return self._at

    def skip(self, count: int) -> None:
        """`count` of the bytes `unseen` passed."""
        self._at -= count

    def see(self, piece: Buffer) -> None:
        """The next bytes; they are not needed afterwards."""
        data = bytes(self._data) + piece if self._data else piece
        self._data, self._elements = data, 0
        if self._at < len(data) and next(self._steps, True):
            self._data, self._at = b"", _ALL
        else:
            self._data, self._at = bytes(data[self._at :]), max(self._at - len(data), 0)

    # A generator: it yields when it needs more bytes.

    def _run(self, program: Program) -> Generator[None, None, None]:
        return self._walk(program)

    def _walk(self, program: Program) -> Generator[None, None, None]:
        for code, argument in program:
            if code == p.SKIP:
                self._at += argument
            elif code in (p.STRING, p.TOPIC, p.BYTES, p.ARRAY):
                width = 2 if code in (p.STRING, p.TOPIC) else 4
                while self._at + width > len(self._data):
                    yield
                count = (INT16 if width == 2 else INT32).unpack_from(self._data, self._at)[0]
                self._at += width
                yield from self._sized(code, argument, count)
            elif code in (p.VARLEN, p.VARTOPIC, p.VARARRAY):
                count = yield from self._uvarint()
                yield from self._sized(code, argument, count - 1)
            elif code == p.TOPIC_ID:
                yield from self._take(argument)
            elif code == p.TAGS:
                yield from self._tags()
            else:
                raise AssertionError(f"unknown step {code} in a message's schema")

    def _sized(self, code: int, argument: Program, count: int) -> Generator[None, None, None]:
        """What follows a length. Below 0: nothing does, or the broker refuses it."""
        if count <= 0:
            return
        if code in (p.TOPIC, p.VARTOPIC) and count <= MAX_TOPIC_BYTES:
            yield from self._take(count)
        elif code not in (p.ARRAY, p.VARARRAY):
            self._at += count
        elif len(argument) == 1 and argument[0][0] == p.SKIP:
            self._at += count * argument[0][1]
        else:
            for _ in range(count):
                self._count()
                yield from self._walk(argument)

    def _tags(self) -> Generator[None, None, None]:
        count = yield from self._uvarint()
        for _ in range(count):
            self._count()
            yield from self._uvarint()
            size = yield from self._uvarint()
            self._at += size

    def _take(self, size: int) -> Generator[None, None, None]:
        while self._at + size > len(self._data):
            yield
        self._named(bytes(self._data[self._at : self._at + size]))
        self._at += size

    def _uvarint(self) -> Generator[None, None, int]:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            while self._at >= len(self._data):
                yield
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 31:  # a broker cuts it to 32 bits, and takes it for a negative number
                    break
                return value
        raise WireError(self._fault, "a length exceeds 31 bits")

    def _count(self) -> None:
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            raise WireError(self._fault, f"more than {MAX_ELEMENTS} topics and partitions in one read")
