"""Proxies and brokers with TLS in this process, and large requests that pass through them."""

from __future__ import annotations

import ssl
import struct
from typing import Any

import trio

from proxy.net.listen.server import Proxy
from proxy.net.tls.contexts import ClientTls, ServerTls
from tests.support.certificates import Authority, Issued


def client_context(
    issuer: Authority, issued: Issued | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=issuer.certificate)
    context.maximum_version = version
    if issued is not None:
        context.load_cert_chain(issued.chain, issued.key)
    return context


def broker_context(issued: Issued, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.maximum_version = version
    context.load_cert_chain(issued.chain, issued.key)
    return context


def tls_on(issuer: Authority, host: Issued, *, by_client: bool, by_broker: bool) -> dict[str, Any]:
    """Arguments of `scripted_broker.through` for TLS on these sides."""
    more: dict[str, Any] = {"listen_tls": ServerTls(host.pair)} if by_client else {}
    if by_broker:
        more |= {"upstream_tls": ClientTls(authorities=issuer.certificate), "broker_tls": broker_context(host)}
    return more


async def connect(proxy: Proxy, context: ssl.SSLContext | None) -> trio.abc.Stream:
    plain = await trio.open_tcp_stream("127.0.0.1", proxy.port)
    if context is None:
        return plain
    return trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)


async def echo(stream: trio.abc.Stream, frame: bytes) -> None:
    """A broker that sends everything back, behind the correlation id."""
    await stream.send_all(struct.pack(">i", 4 + len(frame)) + frame[8:12] + frame)
