"""Two requests for one wake-up (ADR 0025): when a connection's requests are reported in pairs.

A producer with several requests in flight sends the next one whether or not the last is answered. Each request that is
passed on at once wakes a thread of the broker, which interrupts other work, answers, and sleeps again. Two requests
passed on together wake it once. So on such a connection the kernel reports requests only when there is more than one
(SO_RCVLOWAT), which also wakes this thread less often. Every `TICK_NS` the event loop checks for a single request that
waits; it waits for twice that at most.

Such connections are found by trying: a client that waits for each answer sends no second request before it. A failed
try has delayed one request by that time, and the next try comes after twice as many requests as this one.
"""

from __future__ import annotations

from socket import SO_RCVLOWAT, SOL_SOCKET, socket
from typing import TYPE_CHECKING, Any, Final

from proxy.io.kernel import unread_bytes

if TYPE_CHECKING:
    from proxy.io.rounds import Round, Watch

TICK_NS: Final = 500_000
CLOSE_S: Final = 0.0005
"""Requests no further apart than this count as close to each other."""
FIRST_TRY: Final = 16
"""Requests close to each other before the first try."""
NEXT_TRY: Final = 2
"""The same after a pause."""
LATEST_TRY: Final = 4096
"""The most requests between two tries."""
PAIR_BYTES: Final = 32_768
"""Size of a request; larger ones are worth a wake-up of their own."""


class Pairing:
    """Whether the requests of one connection, on a plain socket, are reported in pairs."""

    __slots__ = ("_came", "_read_s", "_round", "_sock", "_to_go", "apart", "waits_for_bytes", "watch")

    def __init__(self, sock: socket, watch: Watch, loop: Round) -> None:
        self._sock = sock
        self.watch: Any = watch
        self._round: Any = loop
        self.waits_for_bytes = 0
        """The socket is reported readable only with more bytes than this; 0: with any."""
        self._came = False
        """More bytes have arrived since the last tick."""
        self._read_s = float("-inf")
        """When the last request was read; -inf: it was not a whole Produce request, or there was more behind it."""
        self.apart = FIRST_TRY
        """Requests close to each other between one try and the next."""
        self._to_go = FIRST_TRY
        """How many of them are still to come."""

    def note_part(self) -> None:
        """A read has filled the buffer: there may be more."""
        self._read_s = float("-inf")

    def note_read(self, now_s: float, received: int, produce_bytes: int, over: bool) -> None:
        """The socket has been read empty, `received` bytes, from `now_s` on. `produce_bytes`: the size of the Produce
        request that it ends with; 0 if it ends otherwise. `over`: the peer has closed its side."""
        before_s = self._read_s
        self._read_s = now_s if produce_bytes else float("-inf")
        if self.waits_for_bytes:
            if not produce_bytes or over:
                self.part()
            elif received > self.waits_for_bytes:
                self.apart = 0
                self._came = True
                if produce_bytes > self.waits_for_bytes:
                    self._wait_for(produce_bytes)
        elif produce_bytes and now_s - before_s <= CLOSE_S and produce_bytes <= PAIR_BYTES:
            self._to_go -= 1
            if self._to_go < 0:
                self._pair(produce_bytes)

    def _pair(self, produce_bytes: int) -> None:
        """Report the socket readable only with more than a request like the last one."""
        self._to_go = max(self.apart, NEXT_TRY)
        if self._round.pair(self):
            self._came = True
            self._wait_for(produce_bytes)

    def _wait_for(self, count: int) -> None:
        self.waits_for_bytes = count
        try:
            self._sock.setsockopt(SOL_SOCKET, SO_RCVLOWAT, count + 1)
        except OSError:
            self.part()  # the kernel refuses

    def part(self) -> None:
        """Report the socket readable with any byte. (The kernel reports at once what has already arrived.)"""
        if self.waits_for_bytes:
            self.waits_for_bytes = 0
            self._round.part(self)
            try:
                self._sock.setsockopt(SOL_SOCKET, SO_RCVLOWAT, 1)
            except OSError:
                return  # the connection no longer exists

    def is_stuck(self) -> bool:
        """No second request came between two ticks: stop pairing. Returns whether a single request waits."""
        if self._came:
            self._came = False
            return False
        alone = unread_bytes(self._sock) > 0
        if alone:
            self.apart = min(2 * self.apart + 2, LATEST_TRY)
        self._to_go = max(self.apart, NEXT_TRY)
        self.part()
        return alone
