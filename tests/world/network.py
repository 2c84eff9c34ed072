"""TCP as its users see it: bytes in order, cut anywhere, late, or never; windows, ends and resets.

Connections do not wait for each other, so what is sent on two of them arrives in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP

from tests.world.clock import Clock

BROKEN = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP
HEAD_BYTES = 80  # cuts are more frequent within so many bytes: the heads of frames


class Path:
    """The network between two hosts, and what is wrong with it."""

    def __init__(self, clock: Clock, delay_s: float) -> None:
        self.clock = clock
        self.delay_s = delay_s
        self.stalled_until_s = 0.0  # nothing arrives before
        self.bytes_per_s = 0.0  # 0: any number
        self.cuts = 0.0  # the probability that a piece is cut once more
        self.window = 262_144  # bytes that a receiver holds unread, and that a sender holds unsent
        self.sockets: dict[Socket, None] = {}  # one side of each connection

    @property
    def connected_s(self) -> float:
        """When a connection that is begun now is there."""
        return max(self.clock.now_s, self.stalled_until_s) + 2 * self.delay_s

    def connect(self, chance: Random) -> tuple[Socket, Socket]:
        near, far = Socket(self, chance), Socket(self, chance)
        near.peer, far.peer = far, near
        self.sockets[near] = None
        return near, far

    def reset(self) -> None:
        """Break all connections."""
        for one in list(self.sockets):
            one.peer.broke()
            one.broke()


class Socket:
    """One side of a connection. `notify(flags)` is called for each event, edge-triggered, with the flags of epoll."""

    __slots__ = (
        "_arriving", "_full", "broken", "chance", "closed", "end_sent", "ended", "gone", "inbox", "notify", "outbox",
        "path", "peer", "shut",
    )  # fmt: skip

    def __init__(self, path: Path, chance: Random) -> None:
        self.path = path
        self.chance = chance
        self.peer: Socket = self
        self.inbox = bytearray()
        self.outbox = bytearray()  # sent and not arrived
        self.ended = False  # the peer sends no more, and all has arrived
        self.shut = self.end_sent = self.broken = self.closed = self.gone = False
        self._arriving = self._full = False
        self.notify: Callable[[int], object] = _unheard

    def flags(self) -> int:
        """What epoll would say of it now."""
        if self.broken:
            return BROKEN
        room = EPOLLOUT if len(self.outbox) < self.path.window else 0
        return room | (EPOLLIN if self.inbox else 0) | (EPOLLIN | EPOLLRDHUP if self.ended else 0)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes were taken. Raises OSError."""
        if self.broken or self.shut:
            raise ConnectionResetError(104, "reset")
        taken = min(len(data), self.path.window - len(self.outbox))
        self.outbox += data[:taken]
        self._full = taken < len(data)
        self._pump()
        return taken

    def read(self, most: int = 1 << 30) -> bytes | None:
        """What has arrived; empty at the end, None if nothing has. Raises OSError."""
        if self.broken:
            raise ConnectionResetError(104, "reset")
        if self.inbox:
            data = bytes(self.inbox[:most])
            del self.inbox[:most]
            self.peer._pump()
            return data
        return b"" if self.ended else None

    def shutdown(self) -> None:
        self.shut = True
        self._pump()

    def close(self) -> None:
        """As the kernel does it: with unread bytes, or when some come later, the peer gets a reset."""
        if self.closed:
            return
        self.closed = True
        self.notify = _unheard
        if self.inbox and not self.broken:
            self._abort()
        else:
            self.shutdown()

    def abort(self) -> None:
        self.notify = _unheard
        if not self.broken:
            self._abort()
        self.closed = True

    def vanish(self) -> None:
        """The host is gone: nothing arrives there, and nothing comes from it."""
        self.gone = self.closed = True
        self.notify = _unheard
        self.outbox.clear()

    def broke(self) -> None:
        if not self.broken:
            self.broken = True
            self.inbox.clear()
            self.outbox.clear()
            self._forget()
            self.notify(BROKEN)

    def _abort(self) -> None:
        self.broken = True
        self.inbox.clear()
        self.outbox.clear()
        self.path.clock.after(self.path.delay_s, self.peer.broke)
        self._forget()

    def _forget(self) -> None:
        self.path.sockets.pop(self, None)
        self.path.sockets.pop(self.peer, None)

    def _pump(self) -> None:
        """Let the next piece arrive, if there is one and the peer has room for it."""
        peer, path = self.peer, self.path
        if self._arriving or self.broken or self.gone or peer.gone:
            return
        count = min(len(self.outbox), path.window - len(peer.inbox))
        if not count and not (self.shut and not self.end_sent and not self.outbox):
            return
        chance, delay_s = self.chance, path.delay_s
        if path.cuts:
            delay_s *= 0.5 + chance.random()
            if count > 1 and chance.random() < path.cuts:
                count = chance.randint(1, count if chance.random() < 0.5 else min(count, HEAD_BYTES))
        if path.bytes_per_s and count:
            count = min(count, max(int(path.bytes_per_s * 0.2), 1))
            delay_s += count / path.bytes_per_s
        self._arriving = True
        path.clock.at(max(path.clock.now_s, path.stalled_until_s) + delay_s, self._arrive, count)

    def _arrive(self, count: int) -> None:
        self._arriving = False
        peer, path = self.peer, self.path
        if self.broken or self.gone or peer.gone:
            return
        if path.stalled_until_s > path.clock.now_s:
            self._pump()
            return
        if not count:
            self.end_sent = peer.ended = True
            if peer.closed:
                self._forget()
            peer.notify(EPOLLIN | EPOLLRDHUP)
            return
        if peer.closed:
            peer._abort()
            return
        peer.inbox += self.outbox[:count]
        del self.outbox[:count]
        peer.notify(EPOLLIN)
        if self._full and not self.broken:
            self._full = False
            self.notify(EPOLLOUT)
        self._pump()


def _unheard(_flags: int) -> None: ...
