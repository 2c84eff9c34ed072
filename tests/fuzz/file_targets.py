"""What is in the place of a file, and how deep a file nests: bytes say what is put there. What must hold is the same as
for any other input, and that nothing waits."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from config.identity import StaticIdentity
from config.known_ports import BadStateError, parse_ports, ports_bytes
from config.load import load, load_bytes
from config.overlay import load_overlay, parse_overlay
from config.parts import fingerprint
from config.problems import MAX_DEPTH, ConfigError
from config.source import parse
from proxy.app.sources.security import StaticUser, StaticUserError
from proxy.net.files import read_file
from proxy.net.upstream.credentials import Credentials, LoginError
from tests.fuzz.targets import target
from tests.support.hostile_files import KINDS, put, take_away

MAX_CPU_S = 5.0
MAX_S = 30.0
"""Far more than any of this takes, and less than waiting would."""
_OPENING = b'[~{~- ~? ~{a: ~[{a: ~&a [~!!seq [~[[],~\n- ~? - ~"a": [~[? ~-\n~'
_OTHER = b"]~}~a~: ~,~\n~ ~*a~<<: ~| \n~\"~'~#~%TAG !a! b\n~\n--- ~1:"
OPENERS = tuple((_OPENING + _OTHER).split(b"~"))
"""What is repeated: it opens, closes or fills something."""
_MAX_TEXT_BYTES = 150_000
"""50 000 brackets ended the process."""


def _nested_seeds() -> list[bytes]:
    return [bytes((opener, 255)) + bytes((14, 255)) for opener in range(len(OPENERS))] + [bytes((4, 31, 16, 0, 15, 31))]


@target("nesting", _nested_seeds, ("config.problems", "config.source"), max_bytes=64, most_cpu_s=10.0)
def nesting(data: bytes) -> None:
    """Pairs of bytes: what opens, closes or fills something, and how often, up to 65 536 times."""
    text = bytearray()
    for which, count in zip(data[::2], data[1::2], strict=False):
        text += OPENERS[which % len(OPENERS)] * (count * count + 1)
        if len(text) > _MAX_TEXT_BYTES:
            break
    del text[_MAX_TEXT_BYTES:]
    began_s = time.thread_time()
    with suppress(ConfigError):
        load_bytes("q.yaml", bytes(text))
    with suppress(ConfigError):
        assert _depth(parse("q.yaml", bytes(text)).values) <= MAX_DEPTH
    with suppress(ConfigError):
        parse_overlay("o.yaml", bytes(text))
    assert time.thread_time() - began_s < MAX_CPU_S


def _depth(value: object) -> int:
    """Of lists and mappings in each other; aliases may have put them together, so the whole may be large."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


@cache
def _directory() -> Path:
    kept = tempfile.TemporaryDirectory(prefix="kquota-fuzz-")
    _KEPT.append(kept)  # it goes with the process
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
_PUT: tuple[str | None, ...] = (None, *KINDS)


def _file_seeds() -> list[bytes]:
    texts = (b"", b'upstream: {bootstrap: ["kafka:9092"]}\nquotas: []\n', b"web\n", b"[" * 300)
    return [bytes((kind, bound)) + text for kind in range(len(_PUT)) for bound in (0, 255) for text in texts]


@target("files", _file_seeds, ("proxy.net.files", "config.parts", "config.load", "config.overlay"), max_bytes=512)
def hostile_files(data: bytes) -> None:
    """The first byte says what is there (a regular file with the rest of the bytes, or one of the kinds that are none),
    the second one how many bytes may be read. Everything that reads files is given it."""
    if len(data) < 2:
        return
    kind, most_bytes, content = _PUT[data[0] % len(_PUT)], 2 * data[1], data[2:]
    path = _directory() / "namespace"
    take_away(path)
    if kind is None:
        path.write_bytes(content)
    else:
        put(kind, path)
    began_s = time.monotonic()
    found = None
    with suppress(OSError):
        found = read_file(path, most_bytes)
    assert found == (content if kind is None and len(content) <= most_bytes else None)
    looked = fingerprint(path)
    assert (looked.data == content and looked.error is None) if kind is None else (looked.data is None and looked.error)
    readers: tuple[Callable[[], object], ...] = (
        lambda: load(path),
        lambda: load_overlay(path),
        StaticUser(StaticIdentity(file=str(path))).read,
        StaticUser(StaticIdentity(template="{namespace}", directory=str(path.parent))).read,
        Credentials("PLAIN", "me", path).secret,
    )
    for read in readers:
        with suppress(ConfigError, StaticUserError, LoginError):
            read()
            assert kind is None
    assert time.monotonic() - began_s < MAX_S


def _known_ports() -> list[bytes]:
    one = b'{"port":19093,"broker":1,"host":"kafka-1.kafka","broker_port":9092,"until":'
    return [b'{"version":1,"ports":[%bnull},%b9e9}]}' % (one, one), b"[" * 200, b'{"version":1,"ports":[]}']


@target("known_ports", _known_ports, ("config.known_ports",), max_bytes=1024)
def known_ports(data: bytes) -> None:
    """The file that keeps the ports of brokers: refused, or read as it is written again."""
    with suppress(BadStateError):
        found = parse_ports(data, 0.0)
        again = parse_ports(ports_bytes(found, 0.0), 0.0)
        assert [one.port for one in again] == [
            one.port for one in found if one.held_s is None or round(one.held_s, 3) > 0
        ]
        assert {one.broker for one in again} <= {one.broker for one in found}
