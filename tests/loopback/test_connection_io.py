"""Both turns of a connection pair, compiled and as Python: the same bytes at the same times, the same state after each
step. What runs here is compiled; a process next to it plays the same script with the Python code."""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.core.wire.apis import PRODUCE, is_flexible
from proxy.core.wire.messages import framed
from quota import compiled
from tests.support.examples import examples
from tests.support.pair_script import ANSWER, CLIENT, PASS, STEP, Pure, play, same, step
from tests.support.pair_tools import CountedDoors, GeneralDoors
from tests.support.session_tools import FETCH, METADATA, fetch_body, metadata_response, produce, request, response

pytestmark = pytest.mark.skipif(bool(compiled.WHY_NOT), reason=f"the data path is not compiled: {compiled.WHY_NOT}")

EXAMPLES = int(os.environ.get("KQUOTA_EXAMPLES", "0")) or examples(120)
"""Fewer where each takes longer (tests/sanitize.py)."""
FEW = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture(scope="module")
def pure() -> Iterator[Pure]:
    one = Pure()
    yield one
    one.close()


def answer_plain(version: int, correlation_id: int, throttle_ms: int = 0, kind: str = "") -> bytes:
    """A Produce response for one partition; `kind` makes it one that is not plain."""
    if version < 9:
        tail = struct.pack(">i", throttle_ms) if version > 0 else b""
        return response(PRODUCE, version, correlation_id, struct.pack(">i", 0) + tail)
    topic = b"t".rjust(16, b"\0") if version >= 13 else b"\x02t"
    message = b"\x04bad" if kind == "error" else b"\0"
    partition = struct.pack(">ihqqq", 0, 0, 5, -1, 0) + b"\x01" + message + b"\0"
    body = b"\x02" + topic + b"\x02" + partition + b"\0" + struct.pack(">i", throttle_ms)
    if kind == "endpoints" and version >= 10:
        node = struct.pack(">i", 3) + b"\x05host" + struct.pack(">i", 9092) + b"\0\0"
        body += b"\x01\0" + bytes((len(node) + 1,)) + b"\x02" + node
    else:
        body += b"\0"
    return response(PRODUCE, version, correlation_id, body)


@dataclass
class Script:
    requests: list[bytes] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)
    number: int = 0
    version: int | None = None
    """All Produce requests have this one; None: each has its own."""

    def add(self, draw: Any) -> None:
        self.number += 1
        number, client_id = self.number, draw(st.sampled_from(["c"] * 6 + ["", "d", "прокси", "x" * 300]))
        kind = draw(st.sampled_from(["produce"] * 6 + ["fetch"] * 2 + ["metadata", "heartbeat"]))
        told_ms = draw(st.sampled_from([0] * 9 + [250]))
        if kind == "produce":
            version = draw(st.integers(0, 12)) if self.version is None else self.version
            acks = draw(st.sampled_from([1, 1, 1, -1, -1, 0]))
            sizes = [0, 1, 40, 3_000, 20_000, 50_000] if self.version is None else [0, 1, 40, 500, 1_500, 20_000]
            size = draw(st.sampled_from(sizes))
            null = (b"\0" if version >= 9 else struct.pack(">h", -1)) if version >= 3 else b""
            if draw(st.integers(0, 9)) == 0 and version >= 3:
                null = b"\x04txn" if version >= 9 else struct.pack(">h", 3) + b"txn"
            body = null + struct.pack(">hi", acks, 30_000) + bytes(size)
            self.requests.append(request(PRODUCE, version, number, body, client_id))
            if acks:
                which = draw(st.sampled_from([""] * 6 + ["error", "endpoints"]))
                self.responses.append(answer_plain(version, number, told_ms, kind=which))
        elif kind == "fetch":
            version = draw(st.integers(4, 17))
            self.requests.append(request(FETCH, version, number, fetch_body(version, partitions={0: 0}), client_id))
            size = draw(st.sampled_from([0, 10, 500, 20_000, 60_000]))
            body = struct.pack(">i", told_ms) + (struct.pack(">hi", 0, 0) if version >= 7 else b"") + bytes(size)
            upstream = min(version, 15) if draw(st.booleans()) else version
            self.responses.append(response(FETCH, upstream, number, body))
        elif kind == "metadata":
            self.requests.append(request(METADATA, 1, number, struct.pack(">i", 0), client_id))
            self.responses.append(metadata_response(number, (1, "h", 9)))
        else:
            assert is_flexible(12, 4)
            self.requests.append(request(12, 4, number, b"\x02g" + struct.pack(">i", 1) + b"\x02m\0\0", client_id))
            self.responses.append(response(12, 4, number, struct.pack(">ih", told_ms, 0) + b"\0"))


def cut(draw: Any, data: bytes) -> list[bytes]:
    at = {0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=4)), *range(0, len(data), 60_000)}
    marks = sorted(at)
    return [data[first:last] for first, last in pairwise(marks)]


def stream(draw: Any, version: int | None = None) -> bytes:
    flags = draw(st.integers(0, 255))
    out = bytes((flags,))
    for _ in range(draw(st.integers(1, 4))):
        script = Script(number=draw(st.integers(0, 2**31 - 100)), version=version)
        for _ in range(draw(st.integers(1, 5 if version is None else 12))):
            script.add(draw)
        whole = version is not None and draw(st.booleans())
        for each in script.requests if whole else cut(draw, b"".join(script.requests)):
            out += step(CLIENT, each, 255)
        out += STEP.pack(PASS, 0, draw(st.sampled_from([0, 1, 3, 1100])))
        for frame in script.responses:
            out += step(ANSWER, frame, draw(st.sampled_from([0, 1, 255])))
        out += STEP.pack(PASS, 0, draw(st.sampled_from([0, 500, 31_000])))
    return out


@FEW
@given(st.data())
def test_any_stream_goes_the_same_way(pure: Pure, data: Any) -> None:
    assert pure.compare(stream(data.draw))


def test_shorter_doors_do_as_the_general_ones() -> None:
    CountedDoors.taken.clear()

    @FEW
    @given(st.data())
    def compare(data: Any) -> None:
        script = stream(data.draw, data.draw(st.integers(1, 12)))
        same(play(script, CountedDoors), play(script, GeneralDoors))

    compare()
    for flags in (16, 17, 16 + 32, 17 + 8 + 32):  # no limit, one that is exceeded, at most two requests in flight
        script = bytes((flags,))
        for number in range(1, 13, 2):
            script += step(CLIENT, produce(number, 700), 255) + step(CLIENT, produce(number + 1, 700), 255)
            script += step(ANSWER, answer_plain(7, number), 255) + step(ANSWER, answer_plain(7, number + 1), 255)
            script += STEP.pack(PASS, 0, 900)
        same(play(script, CountedDoors), play(script, GeneralDoors))
    print(CountedDoors.taken)
    for done in ("request 1", "request 2", "response 1", "response 2"):
        assert CountedDoors.taken[done], f"no example took {done}"


@pytest.mark.parametrize("length", [-1, 0, -2, -32_768])
def test_null_and_invalid_client_ids(pure: Pure, length: int) -> None:
    script = b"\x10"
    for number in (1, 2, 3):
        body = struct.pack(">hhi", PRODUCE, 3, number)
        body += struct.pack(">h", 0 if number == 1 else length) + struct.pack(">hhi", -1, 1, 30_000) + b"r" * 50
        script += step(CLIENT, framed(body))
    ended = pure.compare(script)[-1]["ended"]
    assert (ended != '""') is (length < -1), ended
