"""The endpoint of a TLS connection that calls OpenSSL directly (`proxy.net.tls._openssl`, ADR 0016).

Without compiled modules there is no such endpoint; `records.pyx` is the compiled version.
"""

from __future__ import annotations

from proxy.net.io.endpoint import Endpoint


class TlsEndpoint(Endpoint):
    """Uses the socket's own methods."""

    __slots__ = ()
