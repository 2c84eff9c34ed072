"""A script for one connection pair, as bytes; and a process that plays it with the Python code, to compare."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import trio
from trio.testing import MockClock

from proxy.core.session.session import Session
from quota import compiled
from quota.entity import DEFAULT
from quota.table import Entry, QuotaTable
from tests.one_source import seen
from tests.support.pair_tools import Driven, driven

STEP = struct.Struct(">BBH")
CLIENT, BROKER, PASS, ANSWER = range(4)
"""Bytes from the client; from the broker; time passes; a frame from the broker, if it is the answer that is due."""
LIMITS = (None, 1000.0, 50_000.0, 1e12)
MAX_STEPS = 40


def step(kind: int, data: bytes, cut: int = 0) -> bytes:
    return STEP.pack(kind, cut, len(data)) + data


def play(data: bytes, doors: type[Session] = Session) -> list[dict[str, str]]:
    states: list[dict[str, str]] = []

    async def main() -> None:
        for state in _states(data, doors):
            states.append({name: json.dumps(seen(value)) for name, value in state.items()})

    if data:
        trio.run(main, clock=MockClock())
    return states


def _states(data: bytes, doors: type[Session]) -> Iterator[Any]:
    flags = data[0]
    rate = LIMITS[flags & 3]
    limits: dict[str, Any] = {"producer_byte_rate": rate, "consumer_byte_rate": rate, "request_percentage": 5.0}
    with driven(
        QuotaTable([Entry(client_id=DEFAULT, mode="shadow" if flags & 4 else "enforce", **limits)] if rate else []),
        smooth=bool(flags & 8),
        rewrite=bool(flags & 16),
        max_in_flight=2 if flags & 32 else 1024,
        send_buffer_bytes=4608 if flags & 64 else 1 << 20,
        came_now=bool(flags & 128),
        doors=doors,
    ) as (time, one):
        at = 1
        for _ in range(MAX_STEPS):
            if at + STEP.size > len(data) or one.ended:
                break
            kind, cut, length = STEP.unpack_from(data, at)
            at += STEP.size
            kind %= 4
            if kind == PASS:
                time.now_s += length / 1000.0
                one.run()
                yield one.state()
                continue
            piece = data[at : at + length]
            at += length
            if kind == ANSWER and not _due(one, piece):
                continue
            size = max(cut * 8, len(piece) // 16) or len(piece) or 1
            for start in range(0, len(piece), size):
                one.feed(one.client_far if kind == CLIENT else one.broker_far, piece[start : start + size])
                if one.unsent or one.ended:
                    break
            yield one.state()
            if one.unsent:
                return


def _due(one: Driven, frame: bytes) -> bool:
    """Whether the frame answers the oldest request in flight that was not answered here."""
    left = [each for each in one.session.exchange if each.local_answer is None]
    return bool(left) and left[0].correlation_id == int.from_bytes(frame[4:8], "big", signed=True)


def same(ours: list[dict[str, str]], theirs: list[dict[str, str]]) -> list[dict[str, str]]:
    """The states that two plays have in common; fails where something is different."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        different = {name: (mine[name], other[name]) for name in mine if mine[name] != other[name]}
        assert not different, f"after step {number}: {different}"
    assert len(ours) == len(theirs)
    return ours


class Pure:
    """A process that plays scripts with the Python code."""

    def __init__(self) -> None:
        self._here, there = Pipe()
        with patch.dict(os.environ, KQUOTA_PURE="1"), there:
            self._process = get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
            self._process.start()

    def play(self, data: bytes) -> list[dict[str, str]]:
        self._here.send_bytes(data)
        states: list[dict[str, str]] = self._here.recv()
        return states

    def compare(self, data: bytes) -> list[dict[str, str]]:
        return same(play(data), self.play(data))

    def close(self) -> None:
        self._here.close()
        self._process.join()
        self._process.close()


def _serve(scripts: Connection) -> None:
    assert compiled.WHY_NOT == "KQUOTA_PURE is set"
    with suppress(EOFError):
        while True:
            scripts.send(play(scripts.recv_bytes()))
