"""TLS handshakes, in a thread of their own, so that a storm of them stalls no other connection: a full one costs the
server 1 to 3 ms of CPU, for which OpenSSL releases the GIL. One that waits for bytes holds a socket."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from proxy.core.errors import CloseReason, SessionError, UpstreamError
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
IDLE_S: Final = 1.0
"""The thread ends when no handshake has been under way for so long."""


@dataclass(slots=True, eq=False)
class _Handshake:
    """One handshake. The task that waits for it and the thread that does its steps share no lock: each sets its flag
    before it reads the other's."""

    sock: socket.socket
    """The TLS socket, once there is one."""
    begin: Callable[[socket.socket], TlsSocket] | None
    """`begin(plain)` takes the socket over; called by the thread at the first step."""
    in_step: bool = False
    cancelled: bool = False
    error: BaseException | None = None
    token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)
    done: trio.Event = field(default_factory=trio.Event)

    def step(self) -> int:
        """Go on. Returns the event of epoll to wait for; 0: it is over."""
        try:
            if self.begin is not None:
                self.sock, self.begin = self.begin(self.sock), None
            assert isinstance(self.sock, TlsSocket)
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return select.EPOLLIN
        except ssl.SSLWantWriteError:
            return select.EPOLLOUT
        except Exception as error:
            self.error = error
        return 0


class _Thread:
    """Does the steps of all handshakes, one after the other, each when its socket is ready. A step in a thread of
    trio's, and a wait of trio's between two of them, cost as much CPU as the cryptography."""

    def __init__(self) -> None:
        self._poller = select.epoll()
        self._under_way: dict[int, _Handshake] = {}
        self._starts = threading.Lock()
        self._runs = False

    async def finish(self, handshake: _Handshake, first: int) -> TlsSocket:
        """The TLS socket, after a handshake whose first step waits for the event `first`. Raises OSError, ValueError.

        When it fails or is cancelled, `handshake.sock` is the caller's to close.
        """
        fd = handshake.sock.fileno()
        try:
            self._under_way[fd] = handshake
            self._poller.register(fd, first | select.EPOLLONESHOT)
            with self._starts:
                if not self._runs:
                    self._runs = True
                    threading.Thread(target=self._run, name="kquota-handshakes", daemon=True).start()
            await handshake.done.wait()
        finally:
            handshake.cancelled = True
            del self._under_way[fd]
            with suppress(OSError):  # the kernel would not watch it
                self._poller.unregister(fd)
            if handshake.in_step:
                with trio.CancelScope(shield=True):
                    await handshake.done.wait()
        error, handshake.error = handshake.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # it refers to this frame
        assert isinstance(handshake.sock, TlsSocket)
        return handshake.sock

    def _run(self) -> None:
        while True:
            ready = self._poller.poll(IDLE_S)
            for fd, _ in ready:
                handshake = self._under_way.get(fd)
                if handshake is not None:
                    self._step(fd, handshake)
            with self._starts:
                if not ready and not self._under_way:
                    self._runs = False
                    return

    def _step(self, fd: int, handshake: _Handshake) -> None:
        handshake.in_step = True
        event = 0 if handshake.cancelled else handshake.step()
        if event:
            with suppress(OSError):  # cancelled meanwhile
                self._poller.modify(fd, event | select.EPOLLONESHOT)
            handshake.in_step = False
        if not event or handshake.cancelled:
            with suppress(trio.RunFinishedError):
                handshake.token.run_sync_soon(handshake.done.set)


class Handshakes:
    """Turns plain connections into TLS connections, in both directions."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._thread = _Thread()
        self._log_limiter = LogLimiter(log.info, "more TLS handshakes not completed")

    async def with_client(self, tls: ServerTls, client: socket.socket, peer: str) -> tuple[TlsSocket, str | None]:
        """Do a client's handshake: the TLS socket, which replaces `client`, and its user. Raises SessionError: it
        has been counted and logged, and the socket is closed."""
        reason, text = "timeout", f"the client did not finish the TLS handshake within {tls.handshake_timeout_s:g} s"
        handshake = _Handshake(client, lambda plain: TlsSocket(tls.context, plain))
        with ExitStack() as unfinished:
            unfinished.callback(lambda: handshake.sock.close())
            with trio.move_on_after(tls.handshake_timeout_s):
                try:
                    secured = await self._thread.finish(handshake, select.EPOLLIN)
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
                await _linger(handshake.sock)
        raise SessionError(CloseReason.TLS_HANDSHAKE, text)

    async def with_broker(self, tls: ClientTls, broker: socket.socket, host: str, port: int) -> TlsSocket:
        """Do the handshake with a broker; the caller sets the deadline. Raises UpstreamError."""
        handshake = _Handshake(broker, lambda plain: TlsSocket(tls.context, plain, tls.name_for(host)))
        with ExitStack() as unfinished:
            unfinished.callback(lambda: handshake.sock.close())
            try:
                secured = await self._thread.finish(handshake, select.EPOLLOUT)
            except (OSError, ValueError) as error:  # ValueError: a name that no host can have
                reason, text = explain(error, of_broker=True)
                self._counters.tls_handshake_failures["broker", reason] += 1
                raise UpstreamError(f"{host}:{port}: {text}") from error
            unfinished.pop_all()
            self._counters.tls_handshakes["broker"] += 1
            return secured

    def _failed(self, reason: str, peer: str, text: str) -> None:
        self._counters.tls_handshake_failures["client", reason] += 1
        if self._log_limiter.allows(reason=reason, peer=peer, error=text):
            if reason == "closed":  # port probes open connections and close them again
                log.info("TLS handshake not finished", reason=reason, peer=peer, error=text)
            else:
                log.warning("TLS handshake failed", reason=reason, peer=peer, error=text)


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
