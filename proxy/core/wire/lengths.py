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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kio.static.constants import EntityType

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
_SIZED: Final = {"string": 2, "bytes": 4, "records": 4}
"""Variable-length types, and the size of their length field where it is not compact."""

MAX_REQUEST_ELEMENTS: Final = 200_000
"""Elements of arrays and tagged fields in one request. KRaft controllers make no more than 10 000 records of one."""
MAX_RESPONSE_ELEMENTS: Final = 2_000_000
"""The same for a broker's answer to our request: 10 000 topics of 20 partitions with ten replicas each, and so on."""
MAX_TAGS: Final = 100
"""Tagged fields of one structure, which are visited in one slice. As in a request's header."""
SLICE: Final = 100
"""Elements of one slice. With its fields one takes 2 to 8 µs in pure Python, and a slice less than a millisecond."""

T = TypeVar("T")
Item = TypeVar("Item")
Slices: TypeAlias = Generator[None, float, T]
"""Work in slices of about a millisecond at most: it yields after each, and is sent the time (ms) when it goes on."""
Starts: TypeAlias = list[int]
"""Where the fields of a structure begin, in the order of kio's class, then where its tagged fields begin (in flexible
versions), and where it ends."""


class _Body(bytes):
    """The bytes of a message, how many elements it may still contain, and how many this slice may still visit."""

    left: int
    due: int


def _body(cls: Any, body: bytes) -> _Body:
    data = _Body(body)
    data.left = MAX_REQUEST_ELEMENTS if cls.__type__ is EntityType.request else MAX_RESPONSE_ELEMENTS
    data.due = SLICE
    return data


_Step = Callable[[_Body, int], int]
"""step(data, at) -> where the next field begins. Raises ValueError when that is beyond the end."""


def check_lengths(cls: Any, body: bytes) -> None:
    """Walk through a body of kio's message class `cls`; raises ValueError unless it is whole and nothing follows it."""
    data = _body(cls, body)
    end = _entity(cls)(data, 0)
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes too many")


def portions(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items, `SLICE` at a time: whoever gets as many yields after them."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]


def check_part(cls: Any, body: bytes, at: int) -> int:
    """As `check_lengths`, for a structure at `at`, which may be followed by others: where it ends."""
    data = _Body(body)
    data.left = data.due = MAX_TAGS
    return _entity(cls)(data, at)


def walk(
    cls: Any,
    body: bytes,
    each: Mapping[str, Callable[[Starts], None]],
    now_ms: float,
    *,
    more_may_follow: bool = False,
) -> Slices[tuple[Starts, float]]:
    """As `check_lengths`, in slices. For each element of an array, `each[name of the field]` is called with its starts.
    Returns those of the message, and the time."""
    data = _body(cls, body)
    starts, at, flexible = [], 0, cls.__flexible__
    for field in _fields(cls):
        starts.append(at)
        if field.element is None:
            at = field.step(data, at)
            continue
        note = each.get(field.name)
        count, at = _count(data, at, flexible, field.may_be_null)
        for _ in range(count):
            inside = []
            for part in field.parts:
                inside.append(at)
                if part.element is None:
                    at = part.step(data, at)
                    continue
                parts, at = _count(data, at, flexible, part.may_be_null)
                for _ in range(parts):
                    at = part.element(data, at)
                    data.due -= 1
                    if data.due <= 0:
                        now_ms, data.due = (yield), SLICE
            if note is not None:
                inside.append(at)
                note(inside)
            data.due -= 1
            if data.due <= 0:
                now_ms, data.due = (yield), SLICE
    starts.append(at)
    if at != len(body) and not more_may_follow:
        raise ValueError(f"{len(body) - at} bytes too many")
    return starts, now_ms


def place(cls: Any, name: str) -> int | None:
    """Where a field is among the `Starts` of such a structure; None if this version has no such field."""
    names = [field.name for field in _fields(cls)]
    return names.index(name) if name in names else None


def array_count(body: bytes, at: int, flexible: bool) -> int:
    """How many elements the array at `at` has; -1: null. Raises ValueError if it is cut off."""
    return _varint(body, at)[0] - 1 if flexible else read_int32(body, at)


def array_start(body: bytes, at: int, flexible: bool) -> int:
    """Where the first element of the array at `at` begins. Raises ValueError if it is cut off."""
    return _varint(body, at)[1] if flexible else at + 4


def read_string(body: bytes, at: int, flexible: bool) -> str | None:
    """The string, which may be null, at `at`. Raises ValueError if it is no UTF-8."""
    if flexible:
        size, at = _varint(body, at)
        size -= 1
    else:
        size, at = read_int16(body, at), at + 2
    return None if size < 0 else body[at : at + size].decode()


def read_int16(body: bytes, at: int) -> int:
    """The number at `at`."""
    return int.from_bytes(body[at : at + 2], "big", signed=True)


def read_int32(body: bytes, at: int) -> int:
    """The number at `at`."""
    return int.from_bytes(body[at : at + 4], "big", signed=True)


def read_uuid(body: bytes, at: int) -> uuid.UUID | None:
    """The id at `at`; None for the one that is zero."""
    raw = body[at : at + 16]
    return uuid.UUID(bytes=raw) if any(raw) else None


class _Field(NamedTuple):
    name: str
    step: _Step
    may_be_null: bool
    element: _Step | None = None
    """The step over one of its elements, if it is an array of anything but numbers;"""
    parts: tuple[_Field, ...] = ()
    """the fields of such an element, itself if it has none."""


@cache
def _fields(cls: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls)
    flexible: bool = cls.__flexible__
    found = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kind, repeated = _kind(hint)
        if "tag" in field.metadata:
            if repeated or dataclasses.is_dataclass(kind):
                _no_arrays(kind, repeated)
            continue  # skipped by its size, below
        nested: Any = kind if dataclasses.is_dataclass(kind) else None
        step = _entity(nested) if nested else _primitive(field.metadata["kafka_type"], flexible)
        may_be_null = _may_be_null(hint)
        one = _Field(field.name, step, may_be_null)
        if repeated:
            size = 0 if nested else _FIXED.get(field.metadata["kafka_type"], 0)
            if size:
                one = _Field(field.name, _numbers(size, flexible, may_be_null), may_be_null)
            else:
                parts = _fields(nested) if nested else (one,)
                one = _Field(field.name, _array(step, flexible, may_be_null), may_be_null, step, parts)
        found.append(one)
    return (*found, _Field("", _tags, False)) if flexible else tuple(found)


@cache
def _entity(cls: Any) -> _Step:
    steps = [field.step for field in _fields(cls)]

    def walk(data: _Body, at: int) -> int:
        for step in steps:
            at = step(data, at)
        return at

    return walk


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
    inside = (
        [] if not dataclasses.is_dataclass(kind) else [_kind(hint) for hint in typing.get_type_hints(kind).values()]
    )
    if repeated or any(again for _, again in inside):
        raise TypeError(f"{kind} has an array in a tagged field, which is not checked")


def _primitive(kafka_type: str, flexible: bool) -> _Step:
    fixed = _FIXED.get(kafka_type)
    if fixed is not None:
        size = fixed
        return lambda data, at: _within(data, at + size)
    width = _SIZED[kafka_type]
    if flexible:

        def compact(data: _Body, at: int) -> int:
            length, at = _varint(data, at)
            return _within(data, at + max(length - 1, 0))

        return compact

    def plain(data: _Body, at: int) -> int:
        start = _within(data, at + width)
        return _within(data, start + max(int.from_bytes(data[at:start], "big", signed=True), 0))

    return plain


def _array(step: _Step, flexible: bool, may_be_null: bool) -> _Step:
    def walk(data: _Body, at: int) -> int:
        count, at = _count(data, at, flexible, may_be_null)
        for _ in range(count):
            at = step(data, at)
        return at

    return walk


def _numbers(size: int, flexible: bool, may_be_null: bool) -> _Step:
    """An array whose elements have this size each: no need to visit them."""

    def walk(data: _Body, at: int) -> int:
        count, at = _count(data, at, flexible, may_be_null)
        return _within(data, at + max(count, 0) * size)

    return walk


def _count(data: _Body, at: int, flexible: bool, may_be_null: bool) -> tuple[int, int]:
    """How many elements an array has, and where the first one begins."""
    if flexible:
        count, at = _varint(data, at)
        count -= 1
    else:
        start = _within(data, at + 4)
        count, at = int.from_bytes(data[at:start], "big", signed=True), start
    if count < 0 and not may_be_null:  # kio would return None although the type does not allow it
        raise ValueError(f"a non-nullable array has {count} elements")
    if count > len(data) - at:  # each element takes at least one byte
        raise ValueError(f"an array claims to have {count} elements in {len(data) - at} bytes")
    _use(data, count)
    return count, at


def _tags(data: _Body, at: int) -> int:
    count, at = _varint(data, at)
    if count > len(data) - at:
        raise ValueError(f"{count} tagged fields are claimed in {len(data) - at} bytes")
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields in one structure, expected at most {MAX_TAGS}")
    _use(data, count)
    data.due -= count
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at = _within(data, at + size)
    return at


def _use(data: _Body, elements: int) -> None:
    data.left -= max(elements, 0)
    if data.left < 0:
        raise ValueError("it has more elements than expected")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ValueError("it ends inside a length")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than 5 bytes")


def _within(data: _Body, at: int) -> int:
    if at > len(data):
        raise ValueError(f"a field ends {at - len(data)} bytes past the end")
    return at
