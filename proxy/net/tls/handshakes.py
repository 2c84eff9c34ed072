"""TLS handshakes, one at a time in a thread of their own, so that a storm of them stalls no other connection: a full
one costs the server 1 to 3 ms of CPU, for which OpenSSL releases the GIL. One that waits for bytes holds a socket."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, suppress
from typing import Final

import structlog
import trio

from proxy.core.errors import UpstreamError
from proxy.core.telemetry.observer import Counters
from proxy.net.close_log import LogLimiter
from proxy.net.tls.certificates import CertificateError
from proxy.net.tls.channel import TlsSocket
from proxy.net.tls.contexts import ClientTls, ServerTls, explain
from proxy.net.tls.principal import NoRuleError

log = structlog.get_logger("kquota.tls")

LINGER_S: Final = 1.0
"""How long a rejected client may take to read why: closing at once could cost it the alert (a reset)."""
LINGER_BYTES: Final = 65_536


class HandshakeError(Exception):
    """The client's handshake failed; it has been counted and logged, and the socket is closed."""


class Handshakes:
    """Turns plain connections into TLS connections, in both directions."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._worker = trio.CapacityLimiter(1)
        self._log_limiter = LogLimiter(log.info, "more TLS handshakes failed")

    async def with_client(self, tls: ServerTls, client: socket.socket, peer: str) -> tuple[TlsSocket, str | None]:
        """Do a client's handshake: the TLS socket, which replaces `client`, and its user. Raises HandshakeError."""
        reason, text = "timeout", f"the client did not finish the TLS handshake within {tls.handshake_timeout_s:g} s"
        channel: socket.socket = client
        with ExitStack() as unfinished:
            unfinished.callback(lambda: _close(channel))
            with trio.move_on_after(tls.handshake_timeout_s):
                await trio.lowlevel.wait_readable(client)
                try:
                    channel = secured = TlsSocket(tls.context, client)
                    await self._finish(secured)
                    user = tls.user(secured.channel.peer_certificate)
                except (NoRuleError, CertificateError) as error:
                    reason, text = "principal", str(error)
                except OSError as error:
                    reason, text = explain(error, of_broker=False)
                else:
                    unfinished.pop_all()
                    self._counters.tls_handshakes["client"] += 1
                    return secured, user
            self._failed(reason, peer.rpartition(":")[0], text)
            if reason not in ("timeout", "closed"):
                await _linger(channel)
        raise HandshakeError(text)

    async def with_broker(self, tls: ClientTls, broker: socket.socket, host: str, port: int) -> TlsSocket:
        """Do the handshake with a broker; the caller sets the deadline. Raises UpstreamError."""
        channel: socket.socket = broker
        try:
            channel = secured = TlsSocket(tls.context, broker, tls.name_for(host))
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                secured.do_handshake()  # writes a ClientHello: 0.1 ms, less than the way to a thread and back
            await trio.lowlevel.wait_readable(secured)
            await self._finish(secured)
        except BaseException as error:
            _close(channel)
            if not isinstance(error, OSError | ValueError):  # ValueError: a name that no host can have
                raise
            reason, text = explain(error, of_broker=True)
            self._counters.tls_handshake_failures["broker", reason] += 1
            raise UpstreamError(f"{host}:{port}: {text}") from error
        self._counters.tls_handshakes["broker"] += 1
        return secured

    async def _finish(self, channel: TlsSocket) -> None:
        while True:
            try:
                await trio.to_thread.run_sync(channel.do_handshake, limiter=self._worker)
                return
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(channel)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(channel)

    def _failed(self, reason: str, peer: str, text: str) -> None:
        self._counters.tls_handshake_failures["client", reason] += 1
        if self._log_limiter.allows(reason=reason, peer=peer, error=text):
            if reason == "closed":  # port probes open connections and close them again
                log.info("TLS handshake not finished", reason=reason, peer=peer, error=text)
            else:
                log.warning("TLS handshake failed", reason=reason, peer=peer, error=text)


def _close(channel: socket.socket) -> None:
    trio.lowlevel.notify_closing(channel)
    channel.close()


async def _linger(channel: socket.socket) -> None:
    """Let the peer read our alert: shut down our side, and read what it has sent, up to a limit."""
    if not isinstance(channel, TlsSocket):
        return
    with suppress(OSError), trio.move_on_after(LINGER_S):
        socket.socket.shutdown(channel, socket.SHUT_WR)
        for _ in range(8):
            await trio.lowlevel.wait_readable(channel)
            if not channel.discard(LINGER_BYTES):
                return
