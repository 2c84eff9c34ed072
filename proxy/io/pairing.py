"""Two requests for one wake-up (ADR 0025): when a connection's requests are told of in pairs.

A producer with several requests under way sends the next one whether or not the last is answered. Each that is passed
on at once wakes a thread of the broker's, which puts aside what it was doing, answers, and sleeps again. Two that are
passed on together wake it once. So the kernel tells of requests on such a connection only when there is more than one
(SO_RCVLOWAT), which wakes this thread less often as well, and each `TICK_NS` the event loop looks whether a single one
is waiting, for at most twice that.

Which connections those are shows by trying: a client that waits for an answer sends no second request before it. A try
that fails has cost one request that time, and the next is made after twice as many requests as this one.
"""

from __future__ import annotations

from socket import SO_RCVLOWAT, SOL_SOCKET, socket
from typing import TYPE_CHECKING, Any, Final

from proxy.io.kernel import unread_bytes

if TYPE_CHECKING:
    from proxy.io.rounds import Round, Watch

TICK_NS: Final = 500_000
CLOSE_S: Final = 0.0005
"""Requests no further apart than this are close to each other."""
FIRST_TRY: Final = 16
"""Requests close to each other before the first try."""
NEXT_TRY: Final = 2
"""The same after a pause."""
LATEST_TRY: Final = 4096
"""Between two tries, at most."""
PAIR_BYTES: Final = 32_768
"""Of a request; larger ones are worth a wake-up of their own."""


class Pairing:
    """Whether the requests of one connection, on a plain socket, are told of in pairs."""

    __slots__ = ("_came", "_read_s", "_round", "_sock", "_to_go", "apart", "waits_for_bytes", "watch")

    def __init__(self, sock: socket, watch: Watch, loop: Round) -> None:
        self._sock = sock
        self.watch: Any = watch
        self._round: Any = loop
        self.waits_for_bytes = 0
        """More than how many bytes are waited for; 0: anything is told."""
        self._came = False
        """More has come since the last tick."""
        self._read_s = float("-inf")
        """When the last request was read; -inf: it was not a whole Produce request, or there was more behind it."""
        self.apart = FIRST_TRY
        """Requests close to each other from one try to the next."""
        self._to_go = FIRST_TRY
        """How many of them are still to come."""

    def note_part(self) -> None:
        """A read has taken all that was asked for: there may be more."""
        self._read_s = float("-inf")

    def note_read(self, now_s: float, received: int, produce_bytes: int, over: bool) -> None:
        """All there was has been read, `received` bytes, from `now_s` on. `produce_bytes`: the size of the Produce
        request that it ends with; 0 if it ends otherwise. `over`: nothing more comes."""
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
        """Be told only of more than a request like the last one."""
        self._to_go = max(self.apart, NEXT_TRY)
        if self._round.pair(self):
            self._came = True
            self._wait_for(produce_bytes)

    def _wait_for(self, count: int) -> None:
        self.waits_for_bytes = count
        try:
            self._sock.setsockopt(SOL_SOCKET, SO_RCVLOWAT, count + 1)
        except OSError:
            self.part()  # the kernel would not

    def part(self) -> None:
        """Be told of whatever comes. (The kernel does that at once of what is there.)"""
        if self.waits_for_bytes:
            self.waits_for_bytes = 0
            self._round.part(self)
            try:
                self._sock.setsockopt(SOL_SOCKET, SO_RCVLOWAT, 1)
            except OSError:
                return  # the connection is no more

    def is_stuck(self) -> bool:
        """No pair has come for the time from one tick to the next: pairs no more. Whether a request waits alone."""
        if self._came:
            self._came = False
            return False
        alone = unread_bytes(self._sock) > 0
        if alone:
            self.apart = min(2 * self.apart + 2, LATEST_TRY)
        self._to_go = max(self.apart, NEXT_TRY)
        self.part()
        return alone
