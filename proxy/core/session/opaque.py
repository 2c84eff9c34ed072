"""A session whose bytes cannot be read, TLS that is passed through: the doors of `Session`, with byte quotas alone.

The connection counts as one client, its user without a client-id. What goes to the broker is charged to the produce
quota, what comes back to the fetch quota, TLS overhead and requests of every kind included. A direction over its quota
is not read until the delay is over, and TCP backpressure does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from proxy.core.session.effects import NEVER, Effects
from proxy.core.session.outgoing import Outgoing
from proxy.core.session.session import Session
from proxy.core.session.state import SessionState
from proxy.core.session.states import Client
from proxy.core.telemetry.observer import Counters
from quota.entity import Kind
from quota.ledger import Ledger

HANDSHAKE_BYTES: Final = 4096
"""Of each direction, passed without waiting for the quota: a handshake has to be done before the connection queues."""
CHUNK_BYTES: Final = 65_536
"""What the quota is asked for at once: as much as one read brings."""
QUIET_MS: Final = 1000.0
"""A connection that drains, or whose client has closed its side, ends when it has been idle for so long: what is still
owed cannot be seen."""
SOFTWARE: Final = "TLS, passed through"
"""Shown in place of a client library."""


@dataclass(eq=False, slots=True)
class Flow:
    """One direction: what has moved, and until when it is not read. It is its own place in its group's queue."""

    kind: Kind
    out: Outgoing
    handshake_bytes: int = HANDSHAKE_BYTES
    """What is left of these; not above 0: none."""
    muted: bool = False
    until_ms: float = 0.0
    """The end of the latest mute."""

    def mute(self, until_ms: float) -> None:
        """Do not read it before this time."""
        self.muted, self.until_ms = True, until_ms


class OpaqueSession(Session):
    """One client connection and its broker connection, of which only bytes are counted."""

    __slots__ = ("_account", "_active_ms", "_down", "_muted", "_up")

    def __init__(self, ledger: Ledger, counters: Counters, *, user: str, effects: Effects | None = None) -> None:
        """As `SessionState`."""
        super().__init__(SessionState(ledger, counters, user=user, translate=None, effects=effects))
        self._up = Flow(Kind.PRODUCE, self._effects.to_broker)
        self._down = Flow(Kind.FETCH, self._effects.to_client)
        self._active_ms = -inf
        self._muted = False
        self.requests.software = SOFTWARE
        self.requests.established = True  # no first request can be waited for
        self._account = self.requests.joined[""] = ledger.account(user, "")
        self._account.join()
        ledger.wake(self._account)
        counters.passthrough.opened += 1
        counters.passthrough.open += 1

    # ---- doors ------------------------------------------------------------------------------------------------------

    def on_client_bytes(self, view: memoryview, count: int, now_ms: float) -> Effects:
        """The first `count` bytes of the view came from the client."""
        self.throttle.client_bytes += count
        self._effects.begin()
        self._pass(self._up, view, count, now_ms)
        return self._next(now_ms)

    def on_broker_bytes(self, view: memoryview, count: int, now_ms: float, arrived_ms: float) -> Effects:
        """The first `count` bytes of the view came from the broker."""
        self.responses.bytes_total += count
        self._effects.begin()
        self._pass(self._down, view, count, now_ms)
        return self._next(now_ms)

    def on_unread(self, unread_bytes: int, closed: bool, now_ms: float) -> Effects:
        """The client, which is muted, has sent `unread_bytes` more: they are read when the mute is over."""
        return self.on_deadline(now_ms)

    def on_deadline(self, now_ms: float) -> Effects:
        """As `Session.on_deadline`."""
        self._effects.begin()
        for flow in (self._up, self._down):
            if flow.muted and flow.until_ms <= now_ms:
                flow.muted = False
                self._queue(flow, now_ms)
        return self._next(now_ms)

    def close(self, now_ms: float) -> None:
        """The connection ends."""
        if self.client is Client.GONE:
            return
        super().close(now_ms)
        ledger, counters = self.state.ledger, self.state.counters
        for flow in (self._up, self._down):
            flow.muted = False
            ledger.leave_queue(self._account, flow.kind, flow)
        self._count_muted()
        counters.passthrough.open -= 1

    # ---- what they do -----------------------------------------------------------------------------------------------

    def _pass(self, flow: Flow, view: memoryview, count: int, now_ms: float) -> None:
        """Forward what was read, charge it, and ask whether more may be read."""
        flow.out.use(view)
        flow.out.forward(0, count)
        self._active_ms = now_ms
        flow.handshake_bytes -= count
        state, account = self.state, self._account
        state.counters.passthrough.bytes[flow.kind.value] += count
        state.ledger.wake(account)
        delay_ms = state.ledger.charge(account, flow.kind, count, now_ms)
        if delay_ms:
            state.ledger.note_throttle(account, flow.kind, delay_ms, at_ms=now_ms, amount=count)
            flow.mute(now_ms + delay_ms)
        else:
            self._queue(flow, now_ms)

    def _queue(self, flow: Flow, now_ms: float) -> None:
        """Wait for the group's debt, before the next bytes are read."""
        if flow.handshake_bytes <= 0:
            wait_ms = self.state.ledger.queue(self._account, flow.kind, flow, CHUNK_BYTES, now_ms, True)
            if wait_ms:
                flow.mute(now_ms + wait_ms)

    def _next(self, now_ms: float) -> Effects:
        effects, up, down = self._effects, self._up, self._down
        effects.read_client = not up.muted and self.client in (Client.OPEN, Client.LAST)
        effects.read_broker = not down.muted
        waits = [flow.until_ms for flow in (up, down) if flow.muted]
        if self.client is not Client.OPEN:
            quiet_ms = max(self._active_ms, up.until_ms, down.until_ms) + QUIET_MS
            if now_ms >= quiet_ms:
                effects.ended = self._last_reason()
            else:
                waits.append(quiet_ms)
        effects.wake_at_ms = min(waits, default=NEVER)
        self._settle_broker()
        self._count_muted()
        return effects

    def _count_muted(self) -> None:
        muted = self._up.muted or self._down.muted
        self.state.counters.connections.muted += muted - self._muted
        self._muted = muted

    # ---- what the shell looks at ------------------------------------------------------------------------------------

    def read_ahead_over(self, now_ms: float) -> float:
        """Nothing is read ahead."""
        return NEVER

    def may_end(self, now_ms: float) -> bool:
        """What is in flight cannot be seen."""
        return False

    @property
    def mute_until_ms(self) -> float:
        """One direction is not read before this time."""
        return max(self._up.until_ms, self._down.until_ms)
