"""Messages of independent libraries, and the three ways of every wire test: whole, byte by byte, with more behind."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import pkgutil
import random
import struct
import typing
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from proxy.core.wire import apis, responses, schema
from proxy.core.wire.messages import framed
from proxy.core.wire.responses import NeedMore, NodeAddress, Rewritten, Translate

THROTTLE_MS = 0x01020304
TRAILING = bytes.fromhex("7fffffff0003000c00000007ffff8080808080")
"""Bytes behind a frame: the begin of another, of absurd size."""


def read_api_versions(version: int, frame: bytes) -> dict[int, tuple[int, int]]:
    """API key -> (lowest, highest) version from an ApiVersions response."""
    found = responses._offered(frame, 0, len(frame), version)
    return {key: (lowest, highest) for key, (lowest, highest, _) in found.items()}


def throttle_offset(api_key: int, version: int) -> int | None:
    """Offset of throttle_time_ms from the frame's start (size prefix included), if all such responses have it there."""
    _, _, highest, _, first, at = schema.APIS[api_key]
    return 8 + apis.response_header_version(api_key, version) + at if first <= version <= highest and at >= 0 else None


def kio_versions(kind: EntityType = EntityType.response) -> list[tuple[int, int]]:
    """(API key, version) of all messages that kio knows."""
    return [
        (key, version)
        for key, name in sorted(api_key_map.items())
        for version in sorted(schema_name_map[name])
        if kind in schema_name_map[name][version]
    ]


@cache
def kio_class(api_key: int, version: int, kind: EntityType = EntityType.response) -> Any:
    paths: Any = schema_name_map[api_key_map[api_key]][version]
    module, _, name = paths[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def sample(cls: Any, rng: random.Random, throttle_ms: int = THROTTLE_MS, repeat: int | None = None) -> Any:
    """An instance with random values; `throttle_time` as given, arrays of `repeat` or else 0 to 3 elements."""
    hints = _hints(cls)
    values = {
        field.name: datetime.timedelta(milliseconds=throttle_ms)
        if field.name == "throttle_time"
        else _value(hints[field.name], rng, throttle_ms, repeat)
        for field in dataclasses.fields(cls)
    }
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(hint: Any, rng: random.Random, throttle_ms: int, repeat: int | None) -> Any:
    arguments = typing.get_args(hint)
    if type(None) in arguments and (isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union):
        if repeat is None and rng.random() < 0.3:
            return None
        return _value(next(a for a in arguments if a is not type(None)), rng, throttle_ms, repeat)
    if typing.get_origin(hint) is tuple:
        count = rng.randrange(4) if repeat is None else repeat
        return tuple(_value(arguments[0], rng, throttle_ms, repeat) for _ in range(count))
    if dataclasses.is_dataclass(hint):
        return sample(hint, rng, throttle_ms, repeat)
    return _scalar(hint, rng)


def _scalar(hint: Any, rng: random.Random) -> Any:
    name = hint.__name__
    if issubclass(hint, Enum):
        return rng.choice(list(hint))
    if hint is bool:
        return rng.random() < 0.5
    if issubclass(hint, str):
        return "".join(rng.choice("abcß-.0") for _ in range(rng.choice((1, 3, 9, 130))))
    if issubclass(hint, bytes) or name == "Records":
        return rng.randbytes(rng.choice((0, 1, 7, 200)))
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(int=rng.randrange(1, 1 << 120))
    if name.endswith("Timedelta"):
        return datetime.timedelta(milliseconds=rng.randrange(1 << 30))
    if name == "TZAware":
        return datetime.datetime.fromtimestamp(rng.randrange(1 << 30), tz=datetime.UTC)
    if issubclass(hint, float):
        return rng.random()
    bits = {"i8": 7, "i16": 15, "u8": 8, "u16": 16}.get(name, 31)
    return rng.randrange(1 << bits)


def kio_frame(message: Any, correlation_id: int = 0x0A0B0C0D, client_id: str | None = "client-ß") -> bytes:
    out = io.BytesIO()
    header_class = message.__header_schema__
    if message.__type__ is EntityType.request:
        header: dict[str, Any] = {
            "request_api_key": message.__api_key__,
            "request_api_version": message.__version__,
            "correlation_id": correlation_id,
        }
        if any(field.name == "client_id" for field in dataclasses.fields(header_class)):
            header["client_id"] = client_id
        entity_writer(header_class)(out, header_class(**header))
    else:
        entity_writer(header_class)(out, header_class(correlation_id=correlation_id))
    entity_writer(type(message))(out, message)
    return framed(out.getvalue())


def kio_read(frame: bytes, api_key: int, version: int, kind: EntityType = EntityType.response) -> Any:
    """The message in a whole frame; every byte must have been used."""
    cls = kio_class(api_key, version, kind)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    _, used = entity_reader(cls.__header_schema__)(frame, 4)
    message, used_by_body = entity_reader(cls)(frame, 4 + used)
    assert 4 + used + used_by_body == len(frame)
    return message


@cache
def kafka_python_messages() -> list[Any]:
    """Request and response classes of kafka-python 3, which encodes every version since 0 from Apache's JSON."""
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage

    for package in ("admin", "consumer", "metadata", "producer"):
        module = importlib.import_module(f"kafka.protocol.{package}")
        for inner in pkgutil.iter_modules(module.__path__):
            importlib.import_module(f"kafka.protocol.{package}.{inner.name}")
    importlib.import_module("kafka.protocol.sasl")
    assert kafka.protocol
    found: dict[tuple[int, str], Any] = {}
    for cls in ApiMessage.__subclasses__():
        if cls._class_version is None:
            found[cls.API_KEY, cls.type] = cls
    return [found[key] for key in sorted(found)]


def kafka_python_class(api_key: int, kind: str) -> Any:
    return next(cls for cls in kafka_python_messages() if (api_key, kind) == (cls.API_KEY, cls.type))


def _container(field: Any, value: Any) -> Any:
    """Plain lists and dicts as the classes that kafka-python wants."""
    if isinstance(value, list):
        return [_container(field, element) for element in value]
    if isinstance(value, dict):
        return field.data_class(**{name: _container(field.fields[name], inner) for name, inner in value.items()})
    return value


def kafka_python_message(cls: Any, version: int, **fields: Any) -> Any:
    return cls[version](**{name: _container(cls._struct.fields[name], value) for name, value in fields.items()})


def kafka_python_request(api_key: int, version: int, **fields: Any) -> Any:
    return kafka_python_message(kafka_python_class(api_key, "request"), version, **fields)


def kafka_python_frame(
    cls: Any, version: int, correlation_id: int = 0x0A0B0C0D, client_id: object = "client-ß", **fields: Any
) -> bytes:
    message = kafka_python_message(cls, version, **fields)
    if cls.type == "request":
        message.with_header(correlation_id=correlation_id, client_id=client_id)
    else:
        message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(framed=True, header=True))


def growing(frame: bytes) -> Iterator[tuple[bytearray, int]]:
    """The frame as it arrives byte by byte: (buffer with just those bytes, end)."""
    for end in range(len(frame) + 1):
        yield bytearray(frame[:end]), end


def only_change(before: bytes, after: bytes | bytearray) -> int:
    """Where the one byte is that differs."""
    assert len(before) == len(after)
    change = int.from_bytes(before, "little") ^ int.from_bytes(after, "little")
    assert change, "no byte differs"
    at = (change.bit_length() - 1) // 8
    assert change == change >> 8 * at << 8 * at, "more than one byte differs"
    return at


def embedded(frame: bytes) -> tuple[bytearray, int, int]:
    """The frame behind and before other bytes: (buffer, start, end), where end lies behind the trailing bytes."""
    before = b"\xff\x00\x7f"
    return bytearray(before + frame + TRAILING), len(before), len(before) + len(frame) + len(TRAILING)


def every_way(parse: Callable[[bytearray, int, int], Any], frame: bytes) -> Any:
    """What `parse(buffer, start, end)` says of the whole frame, after it said the same in all three ways."""
    whole = parse(bytearray(frame), 0, len(frame))
    known = False
    for buf, end in growing(frame):
        part = parse(buf, 0, end)
        assert part is None or part == whole, f"at {end} of {len(frame)} bytes"
        assert not (known and part is None), f"forgotten at {end} of {len(frame)} bytes"
        known = part is not None
    assert parse(*embedded(frame)) == whole
    return whole


def rewritten(api_key: int, version: int, frame: bytes, translate: Translate) -> bytes:
    """The frame as the client gets it in rewrite mode, the same in all three ways."""

    def result(buf: bytearray, start: int, end: int) -> bytes | None:
        before = bytes(buf)
        done = responses.rewrite(api_key, version, buf, start, end, translate)
        assert buf == before  # the buffer itself is not touched
        if isinstance(done, NeedMore):
            assert end - start < done.wanted <= len(frame) or end - start < 9
            return None
        if done is None:
            return frame
        assert isinstance(done, Rewritten)
        assert done.consumed <= end - start
        return done.head + frame[done.consumed :]

    whole = result(bytearray(frame), 0, len(frame))
    assert whole is not None
    for buf, end in growing(frame):
        part = result(buf, 0, end)
        assert part in (None, whole), f"at {end} of {len(frame)} bytes"
    assert result(*embedded(frame)) == whole
    return whole


def with_unknown_tag(frame: bytes) -> bytes:
    """A flexible frame that ends with an empty tag section, with an unknown tagged field (number 77) put there."""
    assert frame[-1] == 0
    return framed(frame[4:-1] + b"\x01\x4d\x03new")


def translated(message: Any, translate: Translate) -> Any:
    """A kio message with every host and port translated: what a rewritten frame has to say."""
    controllers = getattr(message, "endpoint_type", 1) == 2

    def walk(value: Any, node_id: int) -> Any:
        if isinstance(value, tuple):
            return tuple(new for element in value if (new := walk(element, node_id)) is not None)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        names = {field.name for field in dataclasses.fields(value)}
        node_id = next((getattr(value, name) for name in ("node_id", "broker_id") if name in names), node_id)
        changes: dict[str, Any] = {
            name: walk(old, node_id) for name in names if (old := getattr(value, name)) is not None
        }
        if {"host", "port"} <= names and node_id >= 0 and changes["host"]:
            (replaced,) = (
                [None] if controllers else translate([NodeAddress(node_id, changes["host"], changes["port"])], False)
            )
            if replaced is not None:
                changes["host"], changes["port"] = replaced
            elif "error_code" in names:
                changes |= {"node_id": -1, "host": "", "port": -1, "error_code": ErrorCode.coordinator_not_available}
            else:
                return None
        return dataclasses.replace(value, **changes)

    return walk(message, -1)
