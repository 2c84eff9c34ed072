"""Transparent mode without a key: only the first byte of a connection shows whether it is Kafka's protocol or TLS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from socket import socket
from typing import Any, Final

import trio

from proxy.core.errors import CloseReason
from proxy.core.session.opaque import OpaqueSession
from proxy.net.io.connection import Connection
from proxy.net.listen.balancers import peek
from quota.ledger import Ledger

TLS_HANDSHAKE: Final = 0x16
"""ContentType of a ClientHello's record (RFC 8446, 5.1). A Kafka request that begins with it has 0x16000000 bytes, 369
MB, which no broker accepts unless configured to."""


async def begins_with_tls(client: socket, timeout_s: float) -> bool:
    """Whether the first byte of a connection is a ClientHello's; it is only peeked at. False at the end of the stream,
    and when no byte came in time: the next read then finds out."""
    with trio.move_on_after(timeout_s), suppress(OSError):
        return await peek(client, 1) == bytes([TLS_HANDSHAKE])
    return False


class TransparentConnection(Connection):
    """A redirected connection. TLS is passed through."""

    def __init__(self, ledger: Ledger, dial_plain: Callable[[], Awaitable[socket]], *arguments: Any) -> None:
        """`dial_plain()` is for TLS, which is passed through; `arguments` are those of `Connection`."""
        super().__init__(*arguments)
        self._dial_plain = dial_plain
        self._ledger = ledger

    async def _serve(self) -> CloseReason:
        if await begins_with_tls(self._client, inf):
            shared = self._shared
            self._dial = self._dial_plain
            user = self.session.user
            self.session = OpaqueSession(self._ledger, shared.counters, user=user, effects=shared.effects)
        return await super()._serve()
