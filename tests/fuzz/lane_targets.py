"""The compiled lane beside the Python code, whatever the bytes are: the same comes out, and the same is remembered."""

from __future__ import annotations

import struct

import trio
from trio.testing import MockClock

from proxy import lane
from proxy.wire.apis import FETCH, PRODUCE
from quota.entity import DEFAULT
from quota.table import Entry, QuotaTable
from tests.fuzz import seeds as recorded
from tests.fuzz.targets import target
from tests.support.lane_tools import Driven, both

_STEP = struct.Struct(">BBH")
"""Who speaks or what happens, the pieces' size, the length of the bytes that follow (or the milliseconds that pass)."""
_LIMITS = (None, 1000.0, 50_000.0, 1e12)
MOST_STEPS = 40


def _step(kind: int, data: bytes, cut: int = 0) -> bytes:
    return _STEP.pack(kind, cut, len(data)) + data


def _scripts() -> list[bytes]:
    """Produce and Fetch in all versions that were recorded, alone, and as real clients sent them."""
    found = []
    for number, each in enumerate(recorded.exchanges()):
        if each.api_key in (PRODUCE, FETCH) and len(each.request) + len(each.response) < 3000:
            first = _step(0, each.request) + _step(1, each.response)
            # The first request is the Python code's, which finds the client; the second one may be the lane's.
            found.append(bytes((number % 256,)) + first + _STEP.pack(2, 0, 5) + first)
    for stream in recorded.streams():
        script, answers = b"\x01", recorded.frames_of(stream.from_broker)
        for request, answer in zip(recorded.frames_of(stream.from_client), answers, strict=False):
            if len(script) + len(request) + len(answer) > 3000:
                break
            script += _step(0, request, 90) + _step(1, answer)
        found.append(script)
    return found


@target(
    "lane",
    _scripts,
    ("proxy.io.turns", "proxy.session.request_side", "proxy.session.response_side"),
    max_bytes=3072,
)
def both_ways(data: bytes) -> None:
    """Both peers send what they like, in pieces; after each step all that can be seen of the two is compared."""
    if not data or not lane.COMPILED:
        return

    async def main() -> None:
        flags = data[0]
        rate = _LIMITS[flags & 3]
        limits = {"producer_byte_rate": rate, "consumer_byte_rate": rate, "request_percentage": 5.0}
        with both(
            QuotaTable([Entry(client_id=DEFAULT, **limits)] if rate is not None else []),
            waits_here=bool(flags & 4),
            smooth=bool(flags & 8),
            rewrite=bool(flags & 16),
            max_in_flight=2 if flags & 32 else 1024,
            send_buffer_bytes=4608 if flags & 64 else 1 << 20,
            came_now=bool(flags & 128),
        ) as (clock, ours, theirs):
            at = 1
            for _ in range(MOST_STEPS):
                if at + 4 > len(data) or ours.ended:
                    break
                kind, cut, length = _STEP.unpack_from(data, at)
                at += 4
                if kind % 4 == 2:
                    clock.now_s += length / 1000.0
                    for one in (ours, theirs):
                        one.run()
                    _compare(ours, theirs)
                    continue
                piece = data[at : at + length]
                at += length
                size = max(cut * 8, len(piece) // 16) or len(piece) or 1
                for start in range(0, len(piece), size):
                    for one in (ours, theirs):
                        one.feed(one.broker_far if kind % 4 == 1 else one.client_far, piece[start : start + size])
                    _compare(ours, theirs)
                    if ours.unsent or ours.ended:
                        return

    trio.run(main, clock=MockClock())


def _compare(ours: Driven, theirs: Driven) -> None:
    assert ours.unsent == theirs.unsent
    compiled, pure = ours.state(), theirs.state()
    different = [name for name in compiled if compiled[name] != pure[name]]
    assert not different, [(name, compiled[name], pure[name]) for name in different]
