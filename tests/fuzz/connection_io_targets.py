"""Both directions of a connection pair, whatever the bytes are: compiled and as Python, the same comes out of
them, and the same is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from proxy.core.wire.apis import FETCH, PRODUCE
from quota import compiled
from tests.fuzz import seeds as recorded
from tests.fuzz.targets import MAX_SCRIPT_BYTES, streams_as_scripts, target
from tests.support.pair_script import BROKER, CLIENT, PASS, STEP, Pure, play, step


def _scripts() -> Iterator[bytes]:
    """Produce and Fetch in all versions that were recorded, alone, and as real clients sent them."""
    for number, each in enumerate(recorded.exchanges()):
        if each.api_key in (PRODUCE, FETCH) and len(each.request) + len(each.response) < MAX_SCRIPT_BYTES:
            first = step(CLIENT, each.request) + step(BROKER, each.response)
            yield bytes((number % 256,)) + first + STEP.pack(PASS, 0, 5) + first
    yield from streams_as_scripts(b"\x01", 90)


@cache
def _pure() -> Pure:
    return Pure()


@target("connection_io", _scripts, max_bytes=3072)
def both_ways(data: bytes) -> None:
    """Both peers send what they like, in pieces; what is seen after each step is compared with the Python code's."""
    if compiled.WHY_NOT:
        play(data)
    else:
        _pure().compare(data)
