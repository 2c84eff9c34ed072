"""TLS contexts of clients and brokers in this process."""

from __future__ import annotations

import ssl

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
