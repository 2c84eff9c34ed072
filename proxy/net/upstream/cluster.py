"""The sidecar's own questions: the brokers of a cluster, its quotas, its tokens. Each has a connection of its own:
first which APIs the broker offers, then the question in the newest version that both have."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import trio

from proxy.core.interceptors import quota_admin
from proxy.core.wire import responses, schema
from proxy.core.wire.apis import API_VERSIONS, DESCRIBE_CLIENT_QUOTAS, METADATA, api_name
from proxy.core.wire.frames import WireError
from proxy.core.wire.messages import api_versions_request, framed, metadata_request, request_header
from proxy.core.wire.responses import NodeAddress
from proxy.core.wire.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.core.wire.throttle import REBOOTSTRAP_REQUIRED, UNSUPPORTED_VERSION, body_at
from proxy.net.tls.contexts import ClientTls, explain
from proxy.net.upstream import token_owners
from proxy.net.upstream.credentials import AUTHENTICATE_VERSIONS, HANDSHAKE_VERSIONS, Credentials, LoginError, login
from proxy.net.upstream.dial import open_stream, time_limit
from quota.admin import AdminError, Entity

CLIENT_ID = "kquota"
TLS_ALERT = b"\x15\x03"
"""How a TLS server answers anything but a ClientHello (RFC 8446, section 5.1: content type, major version)."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
LONG_BYTES: Final = 32_768
"""Longer answers are read in a thread: 500 brokers take a millisecond, 10 000 quotas ten."""
_CHECKED_VERSION: Final = 5
"""The first version of ApiVersions that names the cluster and the node (KIP-1242)."""
_MAX_OTHERS: Final = 16
_SECRETS: Final = trio.CapacityLimiter(4)
"""Threads that read the secret's file: no more of them hang when its file system does not answer."""

_T = TypeVar("_T")
Offered: TypeAlias = Mapping[int, tuple[int, int]]
"""API key -> (lowest, highest version) that a broker offers."""


class ClusterError(Exception):
    """The cluster did not answer; the message says which address and why."""


class LoginWantedError(ClusterError):
    """The broker speaks Kafka's protocol, but answers nothing more before a SASL login."""

    def __init__(self, text: str, offered: Offered) -> None:
        super().__init__(text)
        self.offered = offered


class Access(NamedTuple):
    """How the sidecar reaches brokers for its own questions."""

    timeout_s: float
    """For a whole question, its connection included."""
    tls: ClientTls | None = None
    credentials: Credentials | None = None
    nonce: int = 0

    def correlation_id(self, host: str, port: int) -> int:
        """Of the first request to this address. With a random `nonce` no other sidecar has the same."""
        return crc32(f"{host}:{port}".encode(), self.nonce) & 0x7FFF_FFFF


class Node(NamedTuple):
    """A broker of a cluster."""

    cluster_id: str
    node_id: int


class OtherNodeError(ClusterError):
    """A broker is not the one that it should be."""

    def __init__(self, address: str, node: Node, found: int | None) -> None:
        """`found`: its node id, if it is of the same cluster and known."""
        text = "another broker" if found is None else f"broker {found}"
        super().__init__(f"{address} is not broker {node.node_id} of cluster {node.cluster_id}, but {text}")
        self.found = found


class Cluster(NamedTuple):
    """What a broker says about its cluster."""

    brokers: list[NodeAddress]
    cluster_id: str | None
    """None: the broker has only versions of Metadata without it."""
    offered: Offered


class _Answer(NamedTuple):
    version: int
    frame: bytes
    offered: Offered

    def body(self, api_key: int) -> bytes:
        """Raises WireError."""
        return self.frame[body_at(self.frame, 0, len(self.frame), api_key, self.version) :]


class _Question(NamedTuple, Generic[_T]):
    api_key: int
    versions: range
    frame: Callable[[int], bytes]
    read: Callable[[_Answer], _T]
    """What an answer says. Raises WireError."""


async def first_answer(
    brokers: Iterable[tuple[str, int]], ask: Callable[[str, int], Awaitable[_T]]
) -> tuple[tuple[str, int], _T]:
    """The first of these brokers that answers `ask(host, port)`, and its answer. Raises ClusterError (all reasons)."""
    errors = []
    for host, port in brokers:
        try:
            return (host, port), await ask(host, port)
        except ClusterError as error:
            errors.append(str(error))
    raise ClusterError("; ".join(errors) or "no broker is known")


def _read_cluster(answer: _Answer) -> Cluster:
    return Cluster(*responses.read_cluster(answer.version, answer.frame), answer.offered)


_BROKERS: Final = _Question(
    METADATA,
    range(1, schema.APIS[METADATA][2] + 1),  # version 0 cannot ask for no topics; from 2 on there is the cluster's id
    lambda version: metadata_request(version, 1, CLIENT_ID),
    _read_cluster,
)
_QUOTAS: Final = _Question(
    DESCRIBE_CLIENT_QUOTAS,
    range(2),
    lambda version: framed(
        request_header(DESCRIBE_CLIENT_QUOTAS, version, 1, CLIENT_ID) + quota_admin.describe_request(version)
    ),
    lambda answer: quota_admin.read_described(answer.version, answer.body(DESCRIBE_CLIENT_QUOTAS)),
)
_OWNERS: Final = _Question(
    token_owners.DESCRIBE_DELEGATION_TOKEN,
    token_owners.VERSIONS,
    lambda version: token_owners.describe_request(version, 1, CLIENT_ID),
    lambda answer: token_owners.read_owners(answer.version, answer.body(token_owners.DESCRIBE_DELEGATION_TOKEN)),
)


async def ask_brokers(host: str, port: int, access: Access, node: Node | None = None) -> Cluster:
    """The cluster of the broker at `host:port`, which should be `node`; at least one broker. Raises ClusterError."""
    cluster = await _ask(host, port, access, _BROKERS, node)
    if not cluster.brokers:
        raise ClusterError(f"{host}:{port} knows of no brokers yet")
    return cluster


async def ask_quotas(host: str, port: int, access: Access) -> dict[Entity, dict[str, float]]:
    """All client quotas of the cluster, as this broker knows them. The cluster has to grant the sidecar's own user
    DescribeConfigs on the cluster. Raises ClusterError."""
    try:
        return await _ask(host, port, access, _QUOTAS)
    except AdminError as error:
        raise ClusterError(f"{host}:{port} refused to describe its client quotas: {error}") from error


async def ask_token_owners(host: str, port: int, access: Access) -> dict[str, str]:
    """Owners, by id, of the delegation tokens that the sidecar's own user may describe. Raises ClusterError."""
    return await _ask(host, port, access, _OWNERS)


async def ask_versions(host: str, port: int, access: Access) -> Offered:
    """What a broker offers; it answers before a login. Raises ClusterError."""
    return await _talk(host, port, access, lambda stream: _offers(stream, host, port, access))


async def check_node(host: str, port: int, access: Access, node: Node, others: Iterable[int] = ()) -> bool:
    """Ask a broker whether it is `node` (KIP-1242). False: it does not know, as brokers before 4.4. Raises
    OtherNodeError, which names the one of `others` (node ids) that it says to be, and ClusterError."""

    async def ask(stream: trio.abc.Stream, wanted: Node) -> int:
        correlation_id = access.correlation_id(host, port)
        request = api_versions_request(_CHECKED_VERSION, correlation_id, CLIENT_ID, **wanted._asdict())
        return responses.read_api_versions(_CHECKED_VERSION, await _exchange(stream, request))[0]

    async def talk(stream: trio.abc.Stream) -> bool:
        if access.credentials is not None:  # before a login it looks at neither id, and answers as if they were right
            offered = await _offers(stream, host, port, access)
            if offered.get(API_VERSIONS, (0, 0))[1] < _CHECKED_VERSION:
                return False
            await _log_in(stream, access.credentials, offered)
        error = await ask(stream, node)
        if error != REBOOTSTRAP_REQUIRED:
            return error == 0
        found = None
        with suppress(OSError, trio.BrokenResourceError, ValueError, WireError):
            for number in islice(others, _MAX_OTHERS):
                if await ask(stream, node._replace(node_id=number)) == 0:
                    found = number
                    break
        raise OtherNodeError(f"{host}:{port}", node, found)

    return await _talk(host, port, access, talk)


async def _ask(host: str, port: int, access: Access, question: _Question[_T], node: Node | None = None) -> _T:
    """Ask on a connection of its own what the broker offers, and then the question. Raises ClusterError."""
    offered: Offered | None = None

    async def talk(stream: trio.abc.Stream) -> _T:
        nonlocal offered
        offered = await _offers(stream, host, port, access, node)
        version = common(offered, question.api_key, question.versions)
        if access.credentials is not None:
            await _log_in(stream, access.credentials, offered)
        answer = _Answer(version, await _exchange(stream, question.frame(version)), offered)
        if len(answer.frame) < LONG_BYTES:
            return question.read(answer)
        return await trio.to_thread.run_sync(question.read, answer)

    try:
        return await _talk(host, port, access, talk)
    except ClusterError as error:
        if offered is not None and access.credentials is None and isinstance(error.__cause__, _ClosedError):
            text = f"{host}:{port} requires a SASL login: set upstream.sasl"
            raise LoginWantedError(text, offered) from error
        raise


async def _talk(host: str, port: int, access: Access, talk: Callable[[trio.abc.Stream], Awaitable[_T]]) -> _T:
    try:
        with time_limit(access.timeout_s) as waits_for:
            plain = await open_stream(host, port, waits_for)
            async with plain if access.tls is None else _secured(plain, host, access.tls) as stream:
                if isinstance(stream, trio.SSLStream):
                    waits_for.append("TLS handshake")
                    await stream.do_handshake()
                waits_for.append("answer")
                return await talk(stream)
    except (OSError, trio.BrokenResourceError, ValueError, LoginError, WireError) as error:
        reason = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error  # trio's stream wraps it
        text = explain(reason, of_broker=True)[1] if isinstance(reason, ssl.SSLError) else str(reason)
        raise ClusterError(f"{host}:{port}: {text}") from error


async def _offers(stream: trio.abc.Stream, host: str, port: int, access: Access, node: Node | None = None) -> Offered:
    """Ask what a broker offers, in a version that it has. `node`: the one that it should be, which brokers from 4.4 on
    check. Raises OtherNodeError, ValueError, WireError."""
    version, whom = schema.APIS[API_VERSIONS][2], {} if node is None else node._asdict()
    while True:
        request = api_versions_request(version, access.correlation_id(host, port), CLIENT_ID, **whom)
        error, offered = responses.read_api_versions(version, await _exchange(stream, request))
        if not error:
            return offered
        if error == REBOOTSTRAP_REQUIRED and node is not None:
            raise OtherNodeError(f"{host}:{port}", node, None)
        if error != UNSUPPORTED_VERSION or version == 0:
            raise ValueError(f"the broker answers ApiVersions {version} with error code {error}")
        version = max(0, min(version - 1, offered.get(API_VERSIONS, (0, 0))[1]))  # brokers before 2.4 name none


def common(offered: Offered, api_key: int, known: range) -> int:
    """The newest version that both have. Raises ValueError."""
    lowest, highest = offered.get(api_key, (0, -1))
    version = min(highest, known[-1])
    if version < max(lowest, known[0]):
        has = f"has versions {lowest} to {highest} of" if highest >= 0 else "has no"
        raise ValueError(f"the broker {has} {api_name(api_key)}, the sidecar supports {known[0]} to {known[-1]}")
    return version


def _secured(plain: trio.SocketStream, host: str, tls: ClientTls) -> trio.SSLStream[trio.SocketStream]:
    # Kafka's frames carry their length: a broker that ends without close_notify cannot truncate them unnoticed.
    return trio.SSLStream(plain, tls.library_context, server_hostname=tls.name_for(host), https_compatible=True)


async def _log_in(stream: trio.abc.Stream, credentials: Credentials, offered: Offered) -> None:
    secret = await trio.to_thread.run_sync(credentials.secret, abandon_on_cancel=True, limiter=_SECRETS)
    common(offered, SASL_HANDSHAKE, HANDSHAKE_VERSIONS)
    version = common(offered, SASL_AUTHENTICATE, AUTHENTICATE_VERSIONS)
    conversation = login(credentials, CLIENT_ID, secret, version)
    request = next(conversation)
    with suppress(StopIteration):
        while True:
            request = conversation.send(await _exchange(stream, request))


async def _exchange(stream: trio.abc.Stream, request: bytes) -> bytes:
    await stream.send_all(request)
    return await _read_frame(stream)


class _ClosedError(ValueError):
    """The connection was closed instead of answered."""


async def _read_frame(stream: trio.abc.ReceiveStream) -> bytes:
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        part = await stream.receive_some(65536)
        if not part:
            raise _ClosedError(
                "the connection was closed without an answer; is this a Kafka listener, and does its TLS "
                "match upstream.tls?"
            )
        data += part
        if len(data) >= 4 and wanted == 4:
            if data[:2] == TLS_ALERT:
                raise ValueError("the broker speaks TLS here, but upstream.tls is not set")
            wanted = 4 + int.from_bytes(data[:4], "big")
            if not 8 <= wanted <= MAX_RESPONSE_BYTES:
                raise ValueError(f"the answer is not Kafka's protocol (frame of {wanted - 4} bytes)")
    return bytes(data)
