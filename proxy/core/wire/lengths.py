"""Checks that the lengths inside a message fit in it, that required arrays are there, and finds where its fields begin.

kio's native decoder allocates as many elements as an array claims to have. A claim of four billion in a request of ten
bytes would end the whole process ("memory allocation failed"), so it is given only messages that were checked here. The
steps are derived from kio's own classes.

Decoding and checking take a microsecond for each element, of which 16 MiB may have millions. So `walk` goes in slices
(`Slices`), between which others are served; `check_lengths` is for messages whose size is bounded otherwise.
"""

from __future__ import annotations

import dataclasses
import types
import typing
import uuid
from collections.abc import Callable, Generator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kio.static.constants import EntityType

from proxy.core.wire import primitives as p
from proxy.core.wire.frames import WireError
from proxy.core.wire.primitives import INT16, Program, Step, read_uvarint
from proxy.core.wire.walk import Walker

_FIXED: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}

MAX_REQUEST_ELEMENTS: Final = 200_000
"""Elements of arrays and tagged fields in one request. KRaft controllers make no more than 10 000 records of one."""
MAX_RESPONSE_ELEMENTS: Final = 2_000_000
"""The same for a broker's answer to our request: 10 000 topics of 20 partitions with ten replicas each, and so on."""
SLICE: Final = 100
"""Elements of one slice. What is done with one takes up to 10 µs in pure Python, and a slice about a millisecond."""

T = TypeVar("T")
Slices: TypeAlias = Generator[None, float, T]
"""Work in slices of about a millisecond at most: it yields after each, and is sent the time (ms) when it goes on."""


@dataclasses.dataclass(slots=True)
class Found:
    """A message, or an element of one of its arrays, that was walked over. Fields that this version lacks are null."""

    body: bytes
    flexible: bool
    places: Mapping[str, int]
    starts: list[int]
    """Where its fields begin, in the order of kio's class, then its tagged fields (in flexible versions), and where it
    ends."""

    @property
    def raw(self) -> bytes:
        """All its bytes."""
        return self.body[self.starts[0] : self.starts[-1]]

    def part(self, name: str) -> bytes:
        """The bytes of a field; none if this version lacks it."""
        place = self.places.get(name)
        return b"" if place is None else self.body[self.starts[place] : self.starts[place + 1]]

    def number(self, name: str) -> int | None:
        """A number, or a bool."""
        raw = self.part(name)
        return int.from_bytes(raw, "big", signed=True) if raw else None

    def text(self, name: str) -> str | None:
        """A string, which may be null. Raises ValueError if it is no UTF-8."""
        raw = self.part(name)
        if not raw:
            return None
        length, at = read_uvarint(raw, 0, len(raw)) if self.flexible else (INT16.unpack_from(raw)[0] + 1, 2)
        return raw[at:].decode() if length > 0 else None

    def topic_id(self) -> uuid.UUID | None:
        """The id of a topic; None also for the one that is zero."""
        raw = self.part("topic_id")
        return uuid.UUID(bytes=raw) if any(raw) else None

    def count(self, name: str) -> int:
        """How many elements an array has; -1: it is null, or this version lacks it."""
        place = self.places.get(name)
        return -1 if place is None else array_start(self.body, self.starts[place], self.flexible)[0]


class _Checker(Walker):
    """Counts numbers in arrays as well, of which kio makes objects. Any negative length is null, as in a broker."""

    __slots__ = ()
    least_length = -(1 << 31)

    def checked(self, element: Program, count: int, pos: int) -> int:
        """See `Walker.checked`."""
        size = super().checked(element, count, pos)
        if size:
            self._count(count)
        return size


def _most(cls: Any) -> int:
    return MAX_REQUEST_ELEMENTS if cls.__type__ is EntityType.request else MAX_RESPONSE_ELEMENTS


def check_lengths(cls: Any, body: bytes, most: int | None = None) -> None:
    """Walk through a body of kio's message class `cls`; raises WireError unless it is whole, nothing follows it, and it
    has at most `most` elements."""
    end = check_part(cls, body, 0, _most(cls) if most is None else most)
    if end != len(body):
        raise WireError("response_malformed", f"{len(body) - end} bytes too many")


def check_part(cls: Any, body: bytes, at: int, most: int) -> int:
    """As `check_lengths`, for a structure at `at`, which others may follow. Where it ends."""
    return _Checker(body, len(body), len(body), most).run(_program(cls), at)


def walk(cls: Any, body: bytes, name: str, note: Callable[[Found], None], now_ms: float) -> Slices[tuple[Found, float]]:
    """As `check_lengths`, in slices; more may follow the message. `note` is called with each element of the array of
    this name. Returns the message, and the time."""
    walker = _Checker(body, len(body), len(body), _most(cls))
    walker.now_ms = now_ms
    starts, at = [], 0
    for field in _fields(cls):
        starts.append(at)
        if field.name != name:
            at = yield from walker.walk(field.steps, at)
            continue
        places = _places(field.parts)
        *required, (array, element) = field.steps
        walker.run(tuple(required), at)
        count, at = walker.count(array, at)
        walker.checked(element, count, at)
        for number in range(1, count + 1):
            inside = []
            for part in field.parts:
                inside.append(at)
                at = yield from walker.walk(part.steps, at)
            inside.append(at)
            note(Found(body, cls.__flexible__, places, inside))
            if number % SLICE == 0:
                walker.now_ms = yield
    starts.append(at)
    return Found(body, cls.__flexible__, _places(_fields(cls)), starts), walker.now_ms


def array_start(body: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """How many elements the array at `at` has (-1: null), and where they begin. Either is wrong if it is cut off."""
    if flexible:
        count, at = read_uvarint(body, at, len(body))
        return count - 1, at
    return int.from_bytes(body[at : at + 4], "big", signed=True), at + 4


@cache
def array_of(cls: Any) -> tuple[str, Any]:
    """The first array of a message or structure: its name, and the type of its elements."""
    kinds = {name: _kind(hint) for name, hint in typing.get_type_hints(cls).items()}
    return next((name, kind) for name, (kind, repeated) in kinds.items() if repeated)


class _Field(NamedTuple):
    name: str
    steps: Program
    parts: tuple[_Field, ...]
    """The fields of the structure that it is, or that the elements of an array are."""


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    array = p.VARARRAY if cls.__flexible__ else p.ARRAY
    found = []
    for field in dataclasses.fields(cls):
        kind, repeated = _kind(hints[field.name])
        if "tag" in field.metadata:
            _no_arrays(kind, repeated)
            continue  # skipped by its size, below
        nested: Any = kind if dataclasses.is_dataclass(kind) else None
        if nested:
            parts, steps = _fields(nested), _program(nested)
        else:
            steps = (_primitive(field.metadata["kafka_type"], cls.__flexible__),)
            parts = (_Field("name", steps, ()),)  # lists of texts are lists of names
        if repeated:
            steps = ((array, steps),) if _may_be_null(hints[field.name]) else ((p.REQUIRED, array), (array, steps))
        found.append(_Field(field.name, steps, parts))
    return (*found, _Field("", ((p.TAGS, ()),), ())) if cls.__flexible__ else tuple(found)


def _places(fields: tuple[_Field, ...]) -> dict[str, int]:
    return {field.name: place for place, field in enumerate(fields)}


def _program(cls: Any) -> Program:
    return tuple(step for field in _fields(cls) for step in field.steps)


def _may_be_null(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of a field or of its elements, without None, and whether it is an array."""
    if _may_be_null(hint):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return hint, False


def _no_arrays(kind: Any, repeated: bool) -> None:
    """Tagged fields are skipped whole, so arrays in them would go unchecked; the messages that we decode have none."""
    inside = typing.get_type_hints(kind).values() if dataclasses.is_dataclass(kind) else ()
    if repeated or any(_kind(hint)[1] for hint in inside):
        raise TypeError(f"{kind} has an array in a tagged field, which is not checked")


def _primitive(kafka_type: str, flexible: bool) -> Step:
    if kafka_type in _FIXED:
        return p.SKIP, _FIXED[kafka_type]
    return p.VARLEN if flexible else p.STRING if kafka_type == "string" else p.BYTES, 0
