"""The compiled lane beside the Python code that it stands for: the same bytes at the same times, the same state after
each step. Two connections get the same script, one of each kind, over sockets of their own and on one clock."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from proxy import lane
from proxy.wire.apis import PRODUCE, is_flexible
from proxy.wire.messages import framed
from quota.entity import DEFAULT
from quota.table import Entry, QuotaTable
from tests.support.examples import examples
from tests.support.lane_tools import Driven, both
from tests.support.session_tools import FETCH, METADATA, encode, fetch_body, kio_message, produce, request, response

pytestmark = pytest.mark.skipif(not lane.COMPILED, reason=f"the lane is not compiled: {lane.WHY_NOT}")

EXAMPLES = int(os.environ.get("KQUOTA_EXAMPLES", "0")) or examples(120)
"""Fewer where each takes longer (tests/sanitize.py)."""
FEW = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# ---- quotas ----------------------------------------------------------------------------------------------------------


def limits(draw: Any) -> QuotaTable:
    rate = st.one_of(st.none(), st.sampled_from([1.0, 1000.0, 50_000.0, 3_333_333.3, 1e12, 2e18, 2.0**63, 1_000_000]))
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["mode"] = "shadow"
    produce, percent = draw(rate), draw(st.one_of(st.none(), st.sampled_from([0.01, 1.0, 200.0])))
    if produce is None and percent is None:
        return QuotaTable([])
    entry = Entry(
        client_id=DEFAULT, producer_byte_rate=produce, consumer_byte_rate=produce, request_percentage=percent, **more
    )
    return QuotaTable([entry])


@pytest.mark.parametrize("name", ["client_waits", "mute_until_ms", "held_bytes"])
def test_a_missing_attribute_is_an_error_as_in_python(name: str) -> None:
    """Not a null pointer that is followed."""

    async def main() -> None:
        with both(QuotaTable([]), waits_here=True) as (_, ours, theirs):
            for one in (ours, theirs):
                for number in (1, 2):
                    one.feed(one.client_far, produce(number, 500))
                delattr(one.session.exchange, name)
                with pytest.raises(AttributeError, match=rf"^'?Exchange'? object has no attribute '{name}'$|^{name}$"):
                    one.feed(one.client_far, produce(3, 500))

    trio.run(main, clock=MockClock())


@pytest.mark.parametrize("smooth", [True, False])
def test_numbers_that_do_not_fit_into_64_bits(smooth: bool) -> None:
    """Kafka's own "no limit" grants ten times as much at once, and what was owed at it takes ages at another limit."""

    def limited(limit: float) -> QuotaTable:
        return QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=limit, consumer_byte_rate=limit)])

    async def main() -> None:
        with both(limited(2.0**63), waits_here=False, smooth=smooth) as (clock, ours, theirs):

            def send(frame: bytes) -> None:
                for one in (ours, theirs):
                    one.feed(one.client_far, frame)
                assert ours.state() == theirs.state()
                assert not ours.ended
                clock.now_s += 0.1

            for number in range(3):  # the first one is the Python code's, which finds the client
                send(request(FETCH, 11, number, fetch_body(11, partitions={0: 0})))
                send(produce(10 + number, 500))
            assert len(ours.session.inflight) == 6
            for one in (ours, theirs):
                for group in one.ledger.groups():
                    group.owed_until = group.last_ms + 30_000
                one.ledger.swap(limited(1e-3))
                assert any(group.owed_until > 2**63 for group in one.ledger.groups())
            send(request(FETCH, 11, 20, fetch_body(11, partitions={0: 0})))
            assert ours.counters.fetches_answered == 1
            send(produce(21, 500))

    trio.run(main, clock=MockClock())


# ---- both directions of a connection ---------------------------------------------------------------------------------


# ---- both directions of a connection ---------------------------------------------------------------------------------


def answer_plain(version: int, correlation_id: int, throttle_ms: int = 0, name: bytes = b"t", kind: str = "") -> bytes:
    """A Produce response for one partition; `kind` makes it one that is not plain."""
    if version < 9:
        tail = struct.pack(">i", throttle_ms) if version > 0 else b""
        return response(PRODUCE, version, correlation_id, struct.pack(">i", 0) + tail)
    topic = name.rjust(16, b"\0") if version >= 13 else bytes((len(name) + 1,)) + name
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
    """Requests and, for those that a broker answers, the responses."""

    requests: list[bytes] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)
    number: int = 0
    large: bool = False
    """With fetch responses so large that the lane reads no more than the next one's head: the rest is cut otherwise."""

    def add(self, draw: Any) -> None:
        self.number += 1
        number, client_id = self.number, draw(st.sampled_from(["c", "c", "c", "", "d", "прокси", "x" * 300]))
        kind = draw(st.sampled_from(["produce"] * 6 + ["fetch"] * 2 + ["metadata", "heartbeat"]))
        told_ms = draw(st.sampled_from([0] * 9 + [250]))
        if kind == "produce":
            version, acks = draw(st.integers(0, 12)), draw(st.sampled_from([1, 1, 1, -1, 0]))
            size = draw(st.sampled_from([0, 1, 40, 3_000, 20_000, 90_000]))
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
            size = draw(st.sampled_from([0, 10, 500, 20_000, 120_000, *([300_000] if self.large else [])]))
            body = struct.pack(">i", told_ms) + (struct.pack(">hi", 0, 0) if version >= 7 else b"") + bytes(size)
            upstream = min(version, 15) if draw(st.booleans()) else version
            self.responses.append(response(FETCH, upstream, number, body))
        elif kind == "metadata":
            self.requests.append(request(METADATA, 1, number, struct.pack(">i", 0), client_id))
            kio = kio_message("metadata", 1, "response")
            brokers = (kio.MetadataResponseBroker(node_id=1, host="h", port=9, rack=None),)
            self.responses.append(
                response(METADATA, 1, number, encode(kio.MetadataResponse(brokers=brokers, controller_id=1, topics=())))
            )
        else:
            assert is_flexible(12, 4)
            self.requests.append(request(12, 4, number, b"\x02g" + struct.pack(">i", 1) + b"\x02m\0\0", client_id))
            self.responses.append(response(12, 4, number, struct.pack(">ih", told_ms, 0) + b"\0"))


def cut(draw: Any, data: bytes) -> list[bytes]:
    """In a few parts, anywhere."""
    at = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=4))})
    return [data[first:last] for first, last in pairwise(at)]


def owed(driven: Driven) -> int:
    """Requests that have reached the broker whole: as many may be answered."""
    data, count = driven.to_broker, 0
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            break
        count += 1
        at += 4 + size
    return count


@FEW
@given(st.data())
def test_any_stream_goes_the_same_way(data: Any) -> None:
    async def main() -> None:
        draw = data.draw
        more = {"rewrite": draw(st.booleans()), "max_in_flight": draw(st.sampled_from([1024, 2]))}
        more["send_buffer_bytes"] = draw(st.sampled_from([1 << 20, 4608]))
        large = more["came_now"] = draw(st.booleans())
        more["waits_here"] = draw(st.booleans())
        with both(limits(draw), smooth=draw(st.booleans()), **more) as (clock, ours, theirs):
            for _ in range(draw(st.integers(1, 5))):
                script = Script(number=draw(st.integers(0, 2**31 - 100)), large=large)
                for _ in range(draw(st.integers(1, 6))):
                    script.add(draw)
                for part in cut(draw, b"".join(script.requests)):
                    for one in (ours, theirs):
                        one.feed(one.client_far, part)
                        assert not one.unsent or one.session.mute_until_ms > 0 or one.session.must_wait
                    assert ours.unsent == theirs.unsent
                    assert ours.state() == theirs.state()
                    clock.now_s += draw(st.sampled_from([0.0, 0.0001, 0.003, 1.1]))
                    if ours.unsent:
                        return  # nobody reads any more: what follows would be cut off
                # Those that wait for an answer, in order: some requests were answered here.
                for frame in script.responses:
                    left = [one for one in ours.session.inflight if one.local_answer is None]
                    if not left or left[0].correlation_id != int.from_bytes(frame[4:8], "big", signed=True):
                        continue
                    for part in cut(draw, frame):
                        for one in (ours, theirs):
                            one.feed(one.broker_far, part)
                        assert ours.state() == theirs.state()
                        clock.now_s += draw(st.sampled_from([0.0, 0.0001, 0.003]))
                clock.now_s += draw(st.sampled_from([0.0, 0.5, 31.0]))
                for one in (ours, theirs):
                    one.run()
                assert ours.state() == theirs.state()
                if ours.ended:
                    return

    trio.run(main, clock=MockClock())


@pytest.mark.parametrize("length", [-1, 0, -2, -32_768])
def test_no_client_id_and_none_that_can_be(length: int) -> None:
    async def main() -> None:
        with both(QuotaTable([]), waits_here=True) as (_, ours, theirs):
            for number in (1, 2, 3):
                body = struct.pack(">hhi", PRODUCE, 3, number)
                body += struct.pack(">h", 0 if number == 1 else length) + struct.pack(">hhi", -1, 1, 30_000) + b"r" * 50
                for one in (ours, theirs):
                    one.feed(one.client_far, framed(body))
                assert ours.state() == theirs.state()
            assert bool(ours.ended) is (length < -1), ours.ended

    trio.run(main, clock=MockClock())
