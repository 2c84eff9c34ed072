"""Bytes in a pipe come before whatever is read next, however few they are when the sink takes no more."""

import random
import socket
import threading

import trio

from tests.support.scripted_broker import proxy_before
from tests.support.session_tools import produce, produce_response

REQUESTS, REQUEST_BYTES = 150, 100_001


def slow_broker(listener: socket.socket, got: bytearray, total: int) -> None:
    """Takes everything in small, uneven parts; answers at the end."""
    listener.settimeout(60)
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(60)
            first = peer.recv(1)
            if not first:
                continue
            data = bytearray(first)
            dice = random.Random(1)
            while len(data) < total:
                part = peer.recv(dice.randrange(1, 30_000))
                if not part:
                    break
                data += part
                if data[4:6] != b"\0\0":  # the sidecar's own question
                    break
            else:
                got += data
                for number in range(REQUESTS):
                    peer.sendall(produce_response(number))
                peer.recv(1)
                return


async def test_requests_reach_a_slow_broker_as_they_were_sent() -> None:
    sent = b"".join(produce(number, REQUEST_BYTES) for number in range(REQUESTS))
    got = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        proxy = proxy_before(listener.getsockname()[:2], splice_min_bytes=32_768)
        thread = threading.Thread(target=slow_broker, args=(listener, got, len(sent)), daemon=True)
        thread.start()
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                client = await trio.open_tcp_stream("127.0.0.1", proxy.port)
                await client.send_all(sent)
                expected = b"".join(produce_response(number) for number in range(REQUESTS))
                answers = bytearray()
                while len(answers) < len(expected):
                    part = await client.receive_some()
                    assert part, "closed"
                    answers += part
                assert answers == expected
                await client.aclose()
                await trio.to_thread.run_sync(thread.join)
                proxy.drain()
    assert got == sent
