"""Memory that stays after requests: none."""

import sys

from tests.support.scripted_broker import answer, connect, exchange, through
from tests.support.session_tools import produce, produce_response

REQUESTS = 500


async def test_the_same_memory_after_many_requests() -> None:
    async with through(answer) as (proxy, broker, _):
        client = await connect(proxy)
        for number in range(REQUESTS):
            assert await exchange(client, produce(number, 200)) == produce_response(number)
        broker.received.clear()
        before = sys.getallocatedblocks()
        for number in range(REQUESTS * 4):
            assert await exchange(client, produce(number, 200)) == produce_response(number)
        broker.received.clear()
        assert sys.getallocatedblocks() - before < REQUESTS
