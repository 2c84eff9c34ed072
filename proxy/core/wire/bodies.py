"""Bodies of messages as kio's classes: which class one has, and what is made of it. Imported with the first one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from kio.serial import entity_writer

from proxy.core.wire.frames import WireError


@cache
def class_of(name: str, version: int, kind: str) -> Any:
    """kio's class of a message, such as ``("create_topics", 5, "request")``."""
    words = (*name.split("_"), kind)
    module = import_module(f"kio.schema.{name}.v{version}.{kind}")
    return getattr(module, "".join(word.capitalize() for word in words))


def made(cls: Any, **values: Any) -> Any:
    """A message or a part of one. Values that its version lacks are left out."""
    return cls(**{name: value for name, value in values.items() if name in cls.__dataclass_fields__})


def encoded(message: Any) -> bytes:
    """A message, or a part of one, as bytes."""
    sink = io.BytesIO()
    entity_writer(type(message))(sink, message)
    return sink.getvalue()


@contextmanager
def readable(reason: str, cls: Any) -> Iterator[None]:
    """Whatever is raised inside means that a message of this class is malformed: WireError (`reason`)."""
    try:
        yield
    except Exception as error:  # kio raises many kinds
        raise WireError(reason, f"{cls.__name__} version {cls.__version__} cannot be read: {error}") from error
