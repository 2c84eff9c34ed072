"""Asking the cluster: for its brokers, so that listeners exist before the first client comes, and for its quotas."""

from __future__ import annotations

import trio

from proxy import quota_admin
from proxy.wire import responses
from proxy.wire.apis import DESCRIBE_CLIENT_QUOTAS
from proxy.wire.frames import WireError
from proxy.wire.messages import framed, request_header
from proxy.wire.responses import NodeAddress
from quota.admin import AdminError, Entity

CLIENT_ID = "kquota"
METADATA_VERSION = 1
"""Version 1: no topics is an empty array, brokers have ids and addresses. Answered by 3.9 and 4.2 alike."""
QUOTAS_VERSION = 0
"""DescribeClientQuotas: the version that every broker with this API has (2.6 and later)."""
_BODY_AT = 8
"""Behind the size and a response header of version 0."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


class ClusterError(Exception):
    """The cluster did not answer; the message says which address and why."""


async def ask_brokers(host: str, port: int, timeout_s: float) -> list[NodeAddress]:
    """The brokers of the cluster that `host:port` belongs to. Raises ClusterError."""
    frame = await _ask(host, port, timeout_s, responses.metadata_request(METADATA_VERSION, 1, CLIENT_ID))
    try:
        brokers = responses.read_brokers(METADATA_VERSION, frame, 0, len(frame))
    except WireError as error:
        raise ClusterError(f"{host}:{port}: {error}") from error
    if not brokers:
        raise ClusterError(f"{host}:{port} knows of no brokers yet")
    return brokers


async def ask_quotas(host: str, port: int, timeout_s: float) -> dict[Entity, dict[str, float]]:
    """All client quotas of the cluster, as this broker knows them. Raises ClusterError.

    The cluster has to allow DescribeConfigs on itself to the sidecar's own connection.
    """
    head = request_header(DESCRIBE_CLIENT_QUOTAS, QUOTAS_VERSION, 1, CLIENT_ID)
    frame = await _ask(host, port, timeout_s, framed(head + quota_admin.describe_request(QUOTAS_VERSION)))
    try:
        # 10 000 quotas take about 10 ms to read: aside, traffic goes on
        return await trio.to_thread.run_sync(quota_admin.read_described, QUOTAS_VERSION, frame[_BODY_AT:])
    except WireError as error:
        raise ClusterError(f"{host}:{port}: {error}") from error
    except AdminError as error:
        raise ClusterError(f"{host}:{port} does not tell its quotas: {error}") from error


async def _ask(host: str, port: int, timeout_s: float, request: bytes) -> bytes:
    """The response frame to a request frame, on a connection of its own. Raises ClusterError."""
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
            async with stream:
                await stream.send_all(request)
                return await _read_frame(stream)
    except trio.TooSlowError:
        raise ClusterError(f"{host}:{port} did not answer within {timeout_s:g} s") from None
    except (OSError, trio.BrokenResourceError, ValueError) as error:
        raise ClusterError(f"{host}:{port}: {error}") from error


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
