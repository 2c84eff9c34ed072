"""Checks that the lengths inside a message fit in it, and that required arrays are there, before kio decodes it.

kio's native decoder allocates as many elements as an array claims to have. A claim of four billion in a request of ten
bytes would end the whole process ("memory allocation failed"), so it is given only messages that were checked here. The
steps are derived from kio's own classes.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Final

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
"""Elements of arrays and tagged fields in one request: decoding this many takes some tenths of a second, in which no
other connection is served. KRaft controllers make no more than 10 000 records of one request."""
MAX_RESPONSE_ELEMENTS: Final = 2_000_000
"""The same for a broker's answer to our request: 10 000 topics of 20 partitions with ten replicas each, and so on."""


class _Body(bytes):
    """The bytes of a message, and how many elements it may still contain."""

    left: int


_Step = Callable[[_Body, int], int]
"""step(data, at) -> where the next field begins. Raises ValueError when that is beyond the end."""


def check_lengths(cls: Any, body: bytes, *, more_may_follow: bool = False) -> None:
    """Walk through a body of kio's message class `cls`; raises ValueError unless it is whole and nothing follows it."""
    data = _Body(body)
    data.left = MAX_REQUEST_ELEMENTS if cls.__type__ is EntityType.request else MAX_RESPONSE_ELEMENTS
    end = _entity(cls)(data, 0)
    if end != len(body) and not more_may_follow:
        raise ValueError(f"{len(body) - end} bytes too many")


@cache
def _entity(cls: Any) -> _Step:
    hints = typing.get_type_hints(cls)
    flexible: bool = cls.__flexible__
    steps: list[_Step] = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kind, repeated = _kind(hint)
        if "tag" in field.metadata:
            if repeated or dataclasses.is_dataclass(kind):
                _no_arrays(kind, repeated)
            continue  # skipped by its size, below
        nested: Any = kind
        step = _entity(nested) if dataclasses.is_dataclass(kind) else _primitive(field.metadata["kafka_type"], flexible)
        steps.append(_array(step, flexible, _may_be_null(hint)) if repeated else step)
    if flexible:
        steps.append(_tags)

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
        if flexible:
            count, at = _varint(data, at)
            count -= 1
        else:
            start = _within(data, at + 4)
            count, at = int.from_bytes(data[at:start], "big", signed=True), start
        if count < 0 and not may_be_null:  # kio would return None although the type does not allow it
            raise ValueError(f"an array that must be there has {count} elements")
        if count > len(data) - at:  # each element takes at least one byte
            raise ValueError(f"an array claims to have {count} elements in {len(data) - at} bytes")
        _use(data, count)
        for _ in range(count):
            at = step(data, at)
        return at

    return walk


def _tags(data: _Body, at: int) -> int:
    count, at = _varint(data, at)
    if count > len(data) - at:
        raise ValueError(f"{count} tagged fields are claimed in {len(data) - at} bytes")
    _use(data, count)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at = _within(data, at + size)
    return at


def _use(data: _Body, elements: int) -> None:
    data.left -= max(elements, 0)
    if data.left < 0:
        raise ValueError("it has more elements than any client sends")


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
    raise ValueError("a length of more than 5 bytes")


def _within(data: _Body, at: int) -> int:
    if at > len(data):
        raise ValueError(f"a field would end {at - len(data)} bytes behind it")
    return at
