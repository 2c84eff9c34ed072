"""Asking the cluster for its brokers, so that listeners exist before the first client comes, and for its quotas."""

from __future__ import annotations

import ssl
from functools import partial
from struct import Struct
from typing import Final

import trio

from proxy.core.interceptors import quota_admin
from proxy.core.wire import responses
from proxy.core.wire.apis import DESCRIBE_CLIENT_QUOTAS
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import api_versions_request, framed, request_header
from proxy.core.wire.responses import NodeAddress
from proxy.net.tls.contexts import ClientTls, explain
from proxy.net.upstream import token_owners
from proxy.net.upstream.credentials import Credentials, LoginError, login
from quota.admin import AdminError, Entity

CLIENT_ID = "kquota"
METADATA_VERSION = 1
"""Version 1: an empty array means no topics, and brokers have ids and addresses. 3.9 and 4.2 both answer it."""
QUOTAS_VERSION = 0
"""DescribeClientQuotas: the version that every broker with this API has (2.6 and later)."""
_BODY_AT = 8
"""After the size and a response header of version 0."""
TLS_ALERT = b"\x15\x03"
"""How a TLS server answers anything but a ClientHello (RFC 8446, section 5.1: content type, major version)."""
_VERSIONS: Final = Struct(">ihi")
"""ApiVersions response of version 0 after its size: correlation id, error code, number of APIs."""
_VERSION: Final = Struct(">hhh")
"""One of its APIs: key, least and highest version."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_SECRETS: Final = trio.CapacityLimiter(4)
"""Threads that read the secret's file: no more of them hang when its file system does not answer."""


class ClusterError(Exception):
    """The cluster did not answer; the message says which address and why."""


class LoginWantedError(ClusterError):
    """The broker speaks Kafka's protocol, but answers nothing more before a SASL login."""


async def ask_brokers(
    host: str, port: int, timeout_s: float, tls: ClientTls | None = None, credentials: Credentials | None = None
) -> list[NodeAddress]:
    """The brokers of the cluster that `host:port` belongs to. Raises ClusterError."""
    question = responses.metadata_request(METADATA_VERSION, 1, CLIENT_ID)
    try:
        frame = await _ask(host, port, timeout_s, question, tls, credentials)
    except ClusterError as error:
        if credentials is None and isinstance(error.__cause__, _ClosedError):
            try:
                await ask_versions(host, port, timeout_s, tls)
            except ClusterError:
                pass
            else:
                text = f"{host}:{port} wants a login by SASL, and the sidecar has none (upstream.sasl)"
                raise LoginWantedError(text) from error
        raise
    try:
        read = partial(responses.read_brokers, METADATA_VERSION, frame, 0, len(frame))
        # 500 brokers take a millisecond: in a thread, traffic goes on
        brokers = read() if len(frame) < 32_768 else await trio.to_thread.run_sync(read)
    except WireError as error:
        raise ClusterError(f"{host}:{port}: {error}") from error
    if not brokers:
        raise ClusterError(f"{host}:{port} knows of no brokers yet")
    return brokers


async def ask_quotas(
    host: str, port: int, timeout_s: float, tls: ClientTls | None = None, credentials: Credentials | None = None
) -> dict[Entity, dict[str, float]]:
    """All client quotas of the cluster, as this broker knows them. Raises ClusterError.

    The cluster has to grant the sidecar's own user DescribeConfigs on the cluster.
    """
    head = request_header(DESCRIBE_CLIENT_QUOTAS, QUOTAS_VERSION, 1, CLIENT_ID)
    question = framed(head + quota_admin.describe_request(QUOTAS_VERSION))
    frame = await _ask(host, port, timeout_s, question, tls, credentials)
    try:
        # parsing 10 000 quotas takes about 10 ms: in a thread, traffic goes on
        return await trio.to_thread.run_sync(quota_admin.read_described, QUOTAS_VERSION, frame[_BODY_AT:])
    except WireError as error:
        raise ClusterError(f"{host}:{port}: {error}") from error
    except AdminError as error:
        raise ClusterError(f"{host}:{port} refused to describe its client quotas: {error}") from error


async def ask_token_owners(
    host: str, port: int, timeout_s: float, tls: ClientTls | None, credentials: Credentials
) -> dict[str, str]:
    """Owners of the delegation tokens that the sidecar's own user may see, by token id. Raises ClusterError.

    The cluster has to grant that user Describe on the tokens.
    """
    frame = await _ask(host, port, timeout_s, token_owners.describe_request(1, CLIENT_ID), tls, credentials)
    try:
        return token_owners.read_owners(memoryview(frame)[_BODY_AT:])
    except WireError as error:
        raise ClusterError(f"{host}:{port}: {error}") from error


async def ask_versions(
    host: str, port: int, timeout_s: float, tls: ClientTls | None = None
) -> dict[int, tuple[int, int]]:
    """The least and the highest version of each API of a broker; it answers before a login. Raises ClusterError."""
    frame = await _ask(host, port, timeout_s, api_versions_request(0, 1, CLIENT_ID), tls)
    body = frame[4 + _VERSIONS.size :]
    correlation_id, error_code, count = _VERSIONS.unpack_from(frame.ljust(4 + _VERSIONS.size, b"\0"), 4)
    if correlation_id != 1 or error_code or not 0 < count == len(body) / _VERSION.size:
        raise ClusterError(f"{host}:{port}: the answer to ApiVersions is malformed")
    return {key: (least, highest) for key, least, highest in _VERSION.iter_unpack(body)}


async def _ask(
    host: str,
    port: int,
    timeout_s: float,
    request: bytes,
    tls: ClientTls | None,
    credentials: Credentials | None = None,
) -> bytes:
    """Send a request frame on a connection of its own and return the response frame. Raises ClusterError."""
    try:
        with trio.fail_after(timeout_s):
            stream = await _open(host, port, tls)
            async with stream:
                if credentials is not None:
                    await _log_in(stream, credentials)
                await stream.send_all(request)
                return await _read_frame(stream)
    except trio.TooSlowError:
        raise ClusterError(f"{host}:{port} did not answer within {timeout_s:g} s") from None
    except (OSError, trio.BrokenResourceError, ValueError, LoginError) as error:
        reason = error.__cause__ if tls is not None and isinstance(error.__cause__, OSError) else error
        text = explain(reason, of_broker=True)[1] if isinstance(reason, ssl.SSLError) else str(reason)
        raise ClusterError(f"{host}:{port}: {text}") from error


async def _open(host: str, port: int, tls: ClientTls | None) -> trio.abc.Stream:
    """Connect to a broker, with TLS if configured. Raises OSError and BrokenResourceError."""
    plain = await trio.open_tcp_stream(host, port)
    if tls is None:
        return plain
    # Kafka's frames carry their length: a broker that ends without close_notify cannot truncate them unnoticed.
    stream = trio.SSLStream(plain, tls.library_context, server_hostname=tls.name_for(host), https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def _log_in(stream: trio.abc.Stream, credentials: Credentials) -> None:
    secret = await trio.to_thread.run_sync(credentials.secret, abandon_on_cancel=True, limiter=_SECRETS)
    conversation = login(credentials, CLIENT_ID, secret)
    request = next(conversation)
    while True:
        await stream.send_all(request)
        try:
            request = conversation.send(await _read_frame(stream))
        except StopIteration:
            return


class _ClosedError(ValueError):
    """The connection was closed instead of answered."""


async def _read_frame(stream: trio.abc.ReceiveStream) -> bytes:
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        part = await stream.receive_some(65536)
        if not part:
            raise _ClosedError(
                "the connection was closed without an answer; is this a Kafka listener, and does it use TLS if and "
                "only if upstream.tls is set?"
            )
        data += part
        if len(data) >= 4 and wanted == 4:
            if data[:2] == TLS_ALERT:
                raise ValueError("the broker speaks TLS here, and upstream.tls is not set")
            wanted = 4 + int.from_bytes(data[:4], "big")
            if not 8 <= wanted <= MAX_RESPONSE_BYTES:
                raise ValueError(f"the answer is not Kafka's protocol (frame of {wanted - 4} bytes)")
    return bytes(data)
