"""What an item of the corpus gets and how its result is made comparable."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

PREFIX_PLACEHOLDER = "~"


@dataclass
class Job:
    bootstrap: str
    prefix: str
    version: str
    """Kafka's version, also that of the Java tools to use."""
    brokers: int
    learned: set[tuple[str, str, int]] = field(default_factory=set)
    """(who says so, host, port): every broker address a client received."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self, suffix: str) -> str:
        """A name for a topic, group or user that the other process does not use."""
        return f"{self.prefix}-{suffix}"

    def learn(self, source: str, addresses: Iterable[tuple[str, int]]) -> None:
        with self._lock:
            self.learned |= {(source, host, port) for host, port in addresses}


Item = Callable[[Job], Any]


@dataclass(frozen=True)
class Entry:
    run: Item
    needs: Mapping[str, int]
    """API -> the version that the broker must offer at least."""


ITEMS: dict[str, Entry] = {}


def item(name: str = "", /, **needs: int) -> Callable[[Item], Item]:
    """Add a function to the corpus. `needs`: APIs, each with the least newest version that the broker must offer."""

    def add(function: Item) -> Item:
        ITEMS[name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] = Entry(function, needs)
        return function

    return add


def plain(value: Any, prefix: str) -> Any:
    """A result as JSON can carry it, with the prefix taken out of every text."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, bytes):
        value = f"b:{value.decode('utf-8', 'backslashreplace')}"
    if isinstance(value, BaseException):
        value = problem(value)
    if isinstance(value, str):
        return value.replace(prefix, PREFIX_PLACEHOLDER)
    if isinstance(value, Mapping):
        return {str(plain(key, prefix)): plain(each, prefix) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(each, prefix) for each in value), key=repr)
    if hasattr(value, "_asdict"):
        return plain(value._asdict(), prefix)
    if isinstance(value, Iterable):
        return [plain(each, prefix) for each in value]
    raise TypeError(f"{type(value).__name__} {value!r} is not fit for comparing")


def problem(error: BaseException) -> str:
    """An error by its kind: texts of clients may name addresses and ids."""
    kafka_error = error.args[0] if error.args else None
    if hasattr(kafka_error, "name") and hasattr(kafka_error, "code"):  # confluent-kafka
        return f"{type(error).__name__} {kafka_error.name()}"
    return type(error).__name__


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error it raises: both are results."""
    try:
        return call()
    except Exception as error:
        return error


def digest(parts: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "big"))
        sha.update(part)
    return sha.hexdigest()[:16]
