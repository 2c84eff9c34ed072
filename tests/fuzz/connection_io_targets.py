"""Both directions of a connection pair, whatever the bytes are: compiled and as Python, the same comes out of
them, and the same is remembered."""

from __future__ import annotations

from functools import cache

from proxy.core.wire.apis import FETCH, PRODUCE
from quota import compiled
from tests.fuzz import seeds as recorded
from tests.fuzz.targets import target
from tests.support.pair_script import BROKER, CLIENT, PASS, STEP, Pure, play, step


def _scripts() -> list[bytes]:
    """Produce and Fetch in all versions that were recorded, alone, and as real clients sent them."""
    found = []
    for number, each in enumerate(recorded.exchanges()):
        if each.api_key in (PRODUCE, FETCH) and len(each.request) + len(each.response) < 3000:
            first = step(CLIENT, each.request) + step(BROKER, each.response)
            found.append(bytes((number % 256,)) + first + STEP.pack(PASS, 0, 5) + first)
    for stream in recorded.streams():
        script, answers = b"\x01", recorded.frames_of(stream.from_broker)
        for request, answer in zip(recorded.frames_of(stream.from_client), answers, strict=False):
            if len(script) + len(request) + len(answer) > 3000:
                break
            script += step(CLIENT, request, 90) + step(BROKER, answer)
        found.append(script)
    return found


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
