"""TLS that we have no key for, in transparent mode: its bytes are counted and throttled, and otherwise unknown.

Each connection counts as its static user without a client-id. What goes to the broker is charged to the produce quota,
what comes back to the fetch quota, TLS overhead and requests of every kind included. A direction over its quota is not
read until the delay is over, and TCP backpressure does the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from socket import MSG_PEEK, SHUT_WR, socket
from typing import Any, Final

import trio

from proxy.core.errors import CloseReason, SessionError, UpstreamError, broker_failed, client_failed
from proxy.core.telemetry.observer import ConnectionInfo
from proxy.net.io.connection import Connection
from proxy.net.io.sockets import send_rest
from proxy.net.io.splice import SinkError, SourceError, Splice, Step
from quota.entity import Kind
from quota.ledger import Account, Ledger

TLS_HANDSHAKE: Final = 0x16
"""ContentType of a ClientHello's record (RFC 8446, 5.1). A Kafka request that begins with it has 0x16000000 bytes, 369
MB, which no broker accepts unless configured to."""
HANDSHAKE_BYTES: Final = 4096
"""Of each direction, passed without waiting for the quota: a handshake has to be done before the connection queues."""
CHUNK_BYTES: Final = 65_536
"""At most this much is passed on before the quota is asked again."""
QUIET_S: Final = 1.0
"""While draining, a connection idle for this long counts as finished: what it still owes cannot be seen."""
SOFTWARE: Final = "TLS, passed through"
"""Shown in place of a client library."""


async def begins_with_tls(client: socket, timeout_s: float) -> bool:
    """Whether the first byte of a connection is a ClientHello's; it is only peeked at. False at the end of the stream,
    and when no byte came in time: the next read then finds out."""
    with trio.move_on_after(timeout_s):
        await trio.lowlevel.wait_readable(client)
        with suppress(OSError):  # reset; the next read raises it again
            return client.recv(1, MSG_PEEK) == bytes([TLS_HANDSHAKE])
    return False


class TransparentConnection(Connection):
    """A redirected connection: only its first byte tells whether it speaks Kafka's protocol or TLS."""

    def __init__(self, ledger: Ledger, dial_plain: Callable[[], Awaitable[socket]], *arguments: Any) -> None:
        """`dial_plain()` is for TLS, which is passed through; `arguments` are those of `Connection`."""
        super().__init__(*arguments)
        self._dial_plain = dial_plain
        self._ledger = ledger
        self._is_tls = False
        self._drain_asked = trio.Event()
        self._moved = {Kind.PRODUCE: 0, Kind.FETCH: 0}
        self._until_ms = {Kind.PRODUCE: 0.0, Kind.FETCH: 0.0}

    def drain(self) -> None:
        """As any `Connection`; with TLS, close as soon as the connection is idle."""
        if self._is_tls:
            self._drain_asked.set()
        else:
            super().drain()

    def info(self) -> ConnectionInfo:
        """What /connections shows."""
        if not self._is_tls:
            return super().info()
        now_s = trio.current_time()
        user, source = self.session.user, self.user_source
        muted_ms = max(0.0, max(self._until_ms.values()) - now_s * 1000.0)
        up, down = self._moved[Kind.PRODUCE], self._moved[Kind.FETCH]
        idle_s = now_s - self.last_activity_s
        return ConnectionInfo(self.peer, self.broker_name, user, ("",), SOFTWARE, 0, muted_ms, up, down, idle_s, source)

    async def _serve(self) -> CloseReason:
        self._is_tls = await begins_with_tls(self._client, inf)
        return await (self._pass_through() if self._is_tls else super()._serve())

    async def _pass_through(self) -> CloseReason:
        counters = self._shared.counters
        self.session.pass_unread()
        counters.passthrough_opened += 1
        counters.passthrough_open += 1
        account = self._ledger.account(self.session.user, "")
        account.join()
        self._ledger.wake(account)
        try:
            try:
                broker = self._broker = await self._dial_plain()
            except UpstreamError as error:
                raise SessionError(
                    CloseReason.UPSTREAM_UNREACHABLE, f"cannot connect to broker {self.broker_name}: {error}"
                ) from error
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._go_on_until_quiet, nursery.cancel_scope)
                nursery.start_soon(self._pass_requests, broker, account)
                await self._pass(broker, self._client, Kind.FETCH, account)
                self._reason = self._reason or CloseReason.BROKER_CLOSED
                nursery.cancel_scope.cancel()
        finally:
            counters.passthrough_open -= 1
            account.leave()
            self._ledger.wake(account)
        return self._reason or CloseReason.DRAINED

    async def _pass_requests(self, broker: socket, account: Account) -> None:
        await self._pass(self._client, broker, Kind.PRODUCE, account)
        self._reason = self._reason or CloseReason.CLIENT_CLOSED
        with suppress(OSError):  # already reset
            broker.shutdown(SHUT_WR)

    async def _pass(self, source: socket, sink: socket, kind: Kind, account: Account) -> None:
        """Pump one direction until its end, as fast as the quota allows."""
        splice = Splice(self._shared.pipes)
        counters = self._shared.counters
        place = object()  # this direction's place in the group's queue
        source_failed, sink_failed = client_failed, broker_failed
        if kind is Kind.FETCH:
            source_failed, sink_failed = broker_failed, client_failed

        def moved(count: int) -> None:
            self._active_s = now_s = trio.current_time()
            self._moved[kind] += count
            counters.passthrough_bytes[kind.value] += count
            self._ledger.wake(account)
            delay_ms = self._ledger.charge(account, kind, count, now_s * 1000.0)
            if delay_ms:
                self._ledger.note_throttle(account, kind, delay_ms, at_ms=now_s * 1000.0, amount=count)
                self._until_ms[kind] = now_s * 1000.0 + delay_ms

        def move(count: int) -> Step:
            try:
                return splice.step(source.fileno(), sink.fileno(), count)
            finally:
                if splice.moved:
                    moved(splice.moved)

        try:
            while True:
                now_ms = trio.current_time() * 1000.0
                if self._moved[kind] >= HANDSHAKE_BYTES and not splice.inside:
                    wait_ms, _ = self._ledger.queue(account, kind, place, CHUNK_BYTES, now_ms, whole=True)
                    if wait_ms:
                        self._until_ms[kind] = max(self._until_ms[kind], now_ms + wait_ms)
                if self._until_ms[kind] > now_ms:
                    await self._mute(kind)
                    continue
                try:
                    count = CHUNK_BYTES if self._moved[kind] >= HANDSHAKE_BYTES else HANDSHAKE_BYTES
                    step = move(count)
                    while step is Step.ENDED and splice.inside:  # what was read before the end
                        await trio.lowlevel.wait_writable(sink)
                        move(splice.inside)
                except SourceError as error:
                    raise source_failed(error.__cause__) from error
                except SinkError as error:
                    raise sink_failed(error.__cause__) from error
                match step:
                    case Step.ENDED:
                        return
                    case Step.EMPTY:
                        await trio.lowlevel.wait_readable(source)
                    case Step.FULL:
                        await trio.lowlevel.wait_writable(sink)
                    case Step.NO_PIPE:
                        if not await self._copy(source, sink, source_failed, sink_failed, moved):
                            return
                    case _:
                        await trio.lowlevel.checkpoint()
        finally:
            splice.close()
            self._ledger.leave_queue(account, kind, place)

    async def _copy(self, source: socket, sink: socket, source_failed: Any, sink_failed: Any, moved: Any) -> bool:
        """Move one read's worth without a pipe, as there are no file descriptors left; False at the end."""
        await trio.lowlevel.wait_readable(source)
        try:
            data = source.recv(CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            raise source_failed(error) from error
        await send_rest(sink, data, sink_failed)
        moved(len(data))
        return bool(data)

    async def _mute(self, kind: Kind) -> None:
        counters = self._shared.counters
        counters.connections_muted += 1
        try:
            await trio.sleep_until(self._until_ms[kind] / 1000.0)
        finally:
            counters.connections_muted -= 1

    async def _go_on_until_quiet(self, scope: trio.CancelScope) -> None:
        await self._drain_asked.wait()
        while True:
            now_s = trio.current_time()
            quiet_at_s = max(self.last_activity_s, *(until / 1000.0 for until in self._until_ms.values())) + QUIET_S
            if now_s >= quiet_at_s:
                self._reason = self._reason or CloseReason.DRAINED
                scope.cancel()
                return
            await trio.sleep_until(quiet_at_s)
