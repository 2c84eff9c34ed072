"""Asking the cluster for its brokers: listeners exist before the first client comes, and readiness is true."""

from __future__ import annotations

import trio

from proxy.wire import responses
from proxy.wire.frames import WireError
from proxy.wire.responses import NodeAddress

CLIENT_ID = "kquota"
METADATA_VERSION = 1
"""Version 1: no topics is an empty array, brokers have ids and addresses. Answered by 3.9 and 4.2 alike."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


class ClusterError(Exception):
    """The cluster did not answer; the message says which address and why."""


async def ask_brokers(host: str, port: int, timeout_s: float) -> list[NodeAddress]:
    """The brokers of the cluster that `host:port` belongs to. Raises ClusterError."""
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
            async with stream:
                await stream.send_all(responses.metadata_request(METADATA_VERSION, 1, CLIENT_ID))
                frame = await _read_frame(stream)
        brokers = responses.read_brokers(METADATA_VERSION, frame, 0, len(frame))
    except trio.TooSlowError:
        raise ClusterError(f"{host}:{port} did not answer within {timeout_s:g} s") from None
    except (OSError, trio.BrokenResourceError, ValueError, WireError) as error:
        raise ClusterError(f"{host}:{port}: {error}") from error
    if not brokers:
        raise ClusterError(f"{host}:{port} knows of no brokers yet")
    return brokers


async def _read_frame(stream: trio.SocketStream) -> bytes:
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        part = await stream.receive_some(65536)
        if not part:
            raise ValueError(
                "the connection was closed instead of an answer; is this a Kafka listener without TLS and SASL?"
            )
        data += part
        if len(data) >= 4 and wanted == 4:
            wanted = 4 + int.from_bytes(data[:4], "big")
            if not 8 <= wanted <= MAX_RESPONSE_BYTES:
                raise ValueError(f"the answer is not Kafka's protocol (frame of {wanted - 4} bytes)")
    return bytes(data)
