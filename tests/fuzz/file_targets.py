"""How deep a file nests: bytes say what is put there."""

from __future__ import annotations

import time
from contextlib import suppress

from config.load import load_bytes
from config.overlay import parse_overlay
from config.problems import MAX_DEPTH, ConfigError
from config.source import parse
from tests.fuzz.targets import target

MAX_CPU_S = 5.0
_OPENING = b'[~{~- ~? ~{a: ~[{a: ~&a [~!!seq [~[[],~\n- ~? - ~"a": [~[? ~-\n~'
_OTHER = b"]~}~a~: ~,~\n~ ~*a~<<: ~| \n~\"~'~#~%TAG !a! b\n~\n--- ~1:"
OPENERS = tuple((_OPENING + _OTHER).split(b"~"))
"""What is repeated: it opens, closes or fills something."""
_MAX_TEXT_BYTES = 150_000
"""50 000 brackets ended the process."""


def _nested_seeds() -> list[bytes]:
    return [bytes((opener, 255)) + bytes((14, 255)) for opener in range(len(OPENERS))] + [bytes((4, 31, 16, 0, 15, 31))]


@target("nesting", _nested_seeds, max_bytes=64, most_cpu_s=10.0)
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
