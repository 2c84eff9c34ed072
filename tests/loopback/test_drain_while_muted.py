"""The end of connections that are throttled: none waits for its mute, so the drain need not be longer than mutes."""

from __future__ import annotations

import pytest

from tests.support.scripted_broker import answer, closed_reason, connect, read_frame, through
from tests.support.session_tools import produce

pytestmark = pytest.mark.usefixtures("data_path")

MUTE_S = 29.0
"""What the client is told at least; the drain is much shorter, as by default (30 s, and 2 min for max_mute)."""


@pytest.mark.parametrize("sent_of_the_next", [0.0, 0.5, 1.0])
async def test_throttled_connections_end_at_once(sent_of_the_next: float) -> None:
    """What was answered is answered. The next request, sent or half sent during the mute, was not forwarded: it is
    unanswered, as at any end of a connection, and the client sends it again."""
    async with through(answer, quota=1.0, drain_timeout_s=5) as (proxy, broker, _):
        client = await connect(proxy)
        following = produce(2, 1000)
        await client.send_all(produce(1, 1000) + following[: round(sent_of_the_next * len(following))])
        answered = await read_frame(client)
        assert int.from_bytes(answered[-4:], "big") / 1000 >= MUTE_S
        proxy.drain()
        assert await client.receive_some() == b""
        await closed_reason(proxy, "drained")  # not drain_timeout
        assert len(broker.received) == 1
