"""No call of the session takes long, whatever a peer sends: what is left of it waits while others are served.

Bounds are CPU time of this thread, so that what else the machine does changes nothing.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from proxy.session.framing import FRAMES_PER_WALK
from proxy.session.session import Session
from proxy.wire.messages import framed
from tests.support.session_tools import (
    API_VERSIONS,
    FETCH,
    fetch_body,
    ledger,
    produce,
    produce_response,
    request,
    session,
)

TURN_MS = 2.0
READ_BYTES = 65_536
Result = TypeVar("Result")


class Watch:
    """The CPU time of each call that it makes, in ms."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def __call__(self, call: Callable[[], Result]) -> Result:
        began = time.thread_time()
        result = call()
        self.took.append((time.thread_time() - began) * 1000.0)
        return result

    def check(self, most_ms: float = TURN_MS) -> None:
        """All but one in a hundred, which the interpreter may have used for itself (a collection, a first import)."""
        self.took.sort()
        assert self.took[-1 - len(self.took) // 100] < most_ms, self.took[-5:]


def in_reads(data: bytes) -> list[bytearray]:
    return [bytearray(data[at : at + READ_BYTES]) for at in range(0, len(data), READ_BYTES)]


def client_sends(one: Session, data: bytes, watch: Watch, now_ms: float = 0.0) -> bytes:
    """As the shell does; what goes to the broker."""
    sent = bytearray()
    for part in in_reads(data):
        requests = one.requests
        out = watch(lambda part=part: requests.take(memoryview(part), len(part), now_ms))  # type: ignore[misc]
        sent += part[: requests.walker.taken] if out is None else b"".join(out)
        while one.has_backlog and not one.must_wait:
            sent += b"".join(watch(lambda: requests.resume(now_ms)))
    return bytes(sent)


def broker_sends(one: Session, data: bytes, watch: Watch, now_ms: float = 1.0) -> bytes:
    """As the shell does; what goes to the client."""
    sent = bytearray()
    for part in in_reads(data):
        responses = one.responses
        out = watch(lambda part=part: responses.take(memoryview(part), len(part), now_ms, now_ms))  # type: ignore[misc]
        sent += part[: responses.walker.taken] if out is None else b"".join(out)
        while responses.has_backlog():
            sent += b"".join(watch(lambda: responses.resume(now_ms)))
    return bytes(sent)


def header_of_tags() -> bytes:
    """A Metadata request with as many tagged fields in its header as may be."""
    tags = b"".join((bytes((i,)) if i < 128 else bytes((i & 127 | 128, i >> 7))) + b"\0" for i in range(1000))
    return framed(struct.pack(">hhih", 3, 9, 1, 1) + b"c" + b"\xe8\x07" + tags + b"\1\0\0\0")


TINY = {
    "ApiVersions": request(API_VERSIONS, 0, 1, b"", client_id=""),
    "ApiVersions that is answered here": request(API_VERSIONS, 99, 1, b"", client_id=""),
    "DescribeClientQuotas": request(48, 0, 1, struct.pack(">ib", 0, 0)),
    "Produce without acks": produce(1, 60, acks=0),
    "an unknown API": request(999, 0, 1, b""),
    "headers of a thousand tagged fields": header_of_tags(),
    "Fetch": request(FETCH, 12, 1, fetch_body(12)),
}


@pytest.mark.parametrize("what", TINY)
@pytest.mark.parametrize("limit", [None, 1e12], ids=["no limit", "a limit"])
def test_a_pipeline_of_tiny_requests_goes_in_slices(what: str, limit: float | None) -> None:
    of = ledger(produce_rate=limit, fetch_rate=limit, request_percentage=limit)
    one, watch = session(of, max_in_flight=1_000_000), Watch()
    frame = TINY[what]
    data = frame * (2 * READ_BYTES // len(frame))
    sent = client_sends(one, data, watch)
    assert len(sent) == (0 if "answered here" in what else len(data))
    if "thousand" not in what:
        assert len(watch.took) >= data.count(frame) // FRAMES_PER_WALK
    watch.check()


def test_a_pipeline_of_tiny_responses_goes_in_slices() -> None:
    one, watch = session(ledger(), max_in_flight=1_000_000), Watch()
    count = 3000
    client_sends(one, produce(1, 60) * count, Watch())
    told = broker_sends(one, produce_response(1) * count, watch)
    assert told == produce_response(1) * count
    assert len(watch.took) >= count // FRAMES_PER_WALK
    assert not one.inflight
    watch.check()


def test_a_response_cut_behind_a_backlog_is_whole() -> None:
    one = session(ledger(), max_in_flight=1_000_000)
    count = 3 * FRAMES_PER_WALK
    client_sends(one, produce(1, 60) * count, Watch())
    told = bytearray()
    data = produce_response(1) * count
    for at in range(0, len(data), 1001):
        told += broker_sends(one, data[at : at + 1001], Watch())
    assert bytes(told) == data
