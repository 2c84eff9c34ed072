"""Each mute has its own deadline (ThrottledChannelExpirationTest, case F1), on a clock that the test moves."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from proxy.core.wire import requests
from tests.support.scripted_broker import answer, connect, never_answer, read_frame, really, through
from tests.support.session_tools import produce, produce_response, request

RATE = 1000
UNKNOWN_API = 999
DELAYS_MS = {"a": 10, "b": 30, "c": 30, "d": 20}


def client_id(frame: bytes) -> str:
    header = requests.parse_request_header(memoryview(frame), 0, len(frame), 1 << 20)
    assert header is not None
    return header.client_id


async def test_four_connections_come_back_each_at_its_own_deadline(mock_clock: MockClock) -> None:
    """F1: delays of 10, 30, 30 and 20 ms: four are muted, then three, two, none, and none stays behind."""
    async with through(answer, quota=RATE) as (proxy, broker, _):
        for name, delay_ms in DELAYS_MS.items():
            client = await connect(proxy)
            # 10 000 + d bytes in the first window of 10 s: ((10 000 + d) / 10 - 1000) / 1000 * 10 000 = d ms
            await client.send_all(produce(1, 10_000 + delay_ms, client_id=name))
            await client.send_all(request(UNKNOWN_API, 0, 2, b"", client_id=name))  # under no quota of bytes
            first = await read_frame(client)
            assert first == produce_response(1, throttle_ms=delay_ms)  # answered at once, with its own delay
        counters = proxy.counters
        await really(lambda: counters.connections.muted == 4)
        passed = [client_id(frame) for frame in broker.received]
        assert passed == ["a", "b", "c", "d"]  # the second requests wait unread

        def settled(muted: int, requests: int) -> bool:
            return counters.connections.muted <= muted and len(broker.received) >= requests

        steps: list[tuple[float, int, set[str]]] = [(9.5, 4, set()), (1, 3, {"a"}), (10, 2, {"d"}), (10, 0, {"b", "c"})]
        for step_ms, still_muted, released in steps:
            before = len(broker.received)
            mock_clock.jump(step_ms / 1000)
            await really(partial(settled, still_muted, before + len(released)))
            assert {client_id(frame) for frame in broker.received[before:]} == released
        assert counters.connections.muted == 0
        mock_clock.rate = 1.0


@pytest.mark.parametrize(("acks", "watched"), [(1, 1), (0, 0)])
async def test_mute_is_ignored_only_after_its_announcement(acks: int, watched: int) -> None:
    """A mute of 1 s, in whose second half more comes. Without an answer (acks=0) the client cannot know of it."""
    for _attempt in range(5):  # a look that comes late on a busy machine does not count
        async with through(answer if acks else never_answer, quota=RATE) as (proxy, _broker, _):
            client = await connect(proxy, produce(1, 11_000, acks=acks))
            await trio.sleep(0.7)
            await client.send_all(request(UNKNOWN_API, 0, 2, b""))
            await really(lambda: proxy.counters.counted.by_api().get(-1) == 1)  # read after the mute
            seen = [(one.mutes, one.ignored) for one in proxy.counters.libraries]
        if len(seen) == watched:
            break
    assert seen == [(1, 1)] * watched
