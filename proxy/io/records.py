"""The endpoint of a TLS connection whose bytes go through OpenSSL itself (`proxy.tls._openssl`, ADR 0030).

There is none where kquota is not compiled; `records.pyx` has the one that is used then.
"""

from __future__ import annotations

from proxy.io.endpoint import Endpoint


class TlsEndpoint(Endpoint):
    """By the socket's own methods."""

    __slots__ = ()
