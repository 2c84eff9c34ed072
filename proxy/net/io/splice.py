"""Moving bytes between two sockets inside the kernel: socket -> pipe -> socket by splice(2), with pooled pipes.

A pipe is held only while bytes are being moved; an idle connection holds none.
"""

from __future__ import annotations

import enum
import fcntl
import os
from typing import Final

from proxy.net.io import calls

PIPE_BYTES: Final = 1 << 20
"""Requested size; the kernel may grant less (fs.pipe-max-size, fs.pipe-user-pages-soft)."""
_POOL_SIZE: Final = 32
SHARE: Final = 8
"""Rounds of reading and writing before other connections are served."""


class Pipe:
    """A kernel pipe; `size_bytes` is what it can hold."""

    def __init__(self) -> None:
        self.next: Pipe | None = None
        """In the pool: the one that was given back before it."""
        self.read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.size_bytes = fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:  # over the user's soft limit: the default size works, with more system calls
            self.size_bytes = fcntl.fcntl(self.write_fd, fcntl.F_GETPIPE_SZ)

    def close(self) -> None:
        """Close both ends; whatever is inside is lost."""
        os.close(self.read_fd)
        os.close(self.write_fd)


class PipePool:
    """Empty pipes to reuse. `pipes_open` counts all that exist, so that tests can detect a leak."""

    def __init__(self) -> None:
        self._free: Pipe | None = None
        """The one that was given back last,"""
        self._count = 0
        """of so many."""
        self.pipes_open = 0

    def take(self) -> Pipe | None:
        """An empty pipe; None when the process is out of file descriptors: bytes then go through the receive buffer."""
        pipe = self._free
        if pipe is not None:
            self._free, pipe.next = pipe.next, None
            self._count -= 1
            return pipe
        try:
            pipe = Pipe()
        except OSError:
            return None
        self.pipes_open += 1
        return pipe

    def give_back(self, pipe: Pipe, is_empty: bool) -> None:
        """Return a pipe; one that still holds bytes is closed."""
        if is_empty and self._count < _POOL_SIZE:
            pipe.next, self._free = self._free, pipe
            self._count += 1
        else:
            pipe.close()
            self.pipes_open -= 1

    def close(self) -> None:
        """Close the free pipes."""
        pipe, self._free, self._count = self._free, None, 0
        while pipe is not None:
            pipe.close()
            self.pipes_open -= 1
            pipe = pipe.next


class Step(enum.Enum):
    """How far `Splice.step` got."""

    DONE = enum.auto()
    """All bytes asked for have reached the sink."""
    EMPTY = enum.auto()
    """The source would block; all that was read has reached the sink."""
    FULL = enum.auto()
    """The sink would block."""
    SHARED = enum.auto()
    """The share of one connection is used up: others come first."""
    ENDED = enum.auto()
    """The source has ended."""
    NO_PIPE = enum.auto()
    """The process is out of file descriptors and nothing was moved: bytes have to go through the receive buffer."""
    SOURCE_FAILED = enum.auto()
    """Reading failed, with `Splice.error`."""
    SINK_FAILED = enum.auto()
    """Writing failed."""


# For `proxy.net.io.pair` too: looking a member up through the enum takes longer than what is done with it.
DONE, EMPTY, FULL, SHARED, ENDED, NO_PIPE, SOURCE_FAILED, SINK_FAILED = Step


class Splice:
    """One direction of a connection pair. Holds a pipe only while there are bytes inside."""

    def __init__(self, pool: PipePool) -> None:
        self._pool = pool
        self._pipe: Pipe | None = None
        self.inside = 0
        """Bytes that were read and have not reached the sink yet: they go before anything read later."""
        self.moved = 0
        """Bytes that reached the sink in the last step, even if it failed."""
        self.error: OSError | None = None
        """Why it failed."""

    def step(self, source_fd: int, sink_fd: int, count: int) -> Step:
        """Move up to `count` bytes to the sink without blocking; `moved` of them have reached it."""
        pipe, inside = self._pipe, self.inside
        self.moved = 0
        if pipe is None:
            pipe = self._pool.take()
            if pipe is None:
                return NO_PIPE
        size = pipe.size_bytes
        step = SHARED
        try:
            for _ in range(SHARE):
                source_empty = False
                if count > inside and inside < size:
                    try:
                        got = calls.splice(source_fd, pipe.write_fd, min(count - inside, size), False)
                    except OSError as error:
                        self.error, step = error, SOURCE_FAILED
                        break
                    if got == 0:
                        step = ENDED
                        break
                    if got < 0:
                        source_empty = True  # or the pipe has no slot left, if it is not empty
                    else:
                        inside += got
                if inside:
                    try:
                        put = calls.splice(pipe.read_fd, sink_fd, inside, count > inside)
                    except OSError as error:
                        self.error, step = error, SINK_FAILED
                        break
                    if put < 0:
                        step = FULL
                        break
                    inside -= put
                    count -= put
                    self.moved += put
                    if count == 0:
                        step = DONE
                        break
                elif source_empty:
                    step = EMPTY
                    break
        finally:
            self.inside = inside
            if inside:
                self._pipe = pipe
            else:
                self._pipe = None
                self._pool.give_back(pipe, True)
        return step

    def close(self) -> None:
        """Release the pipe; bytes still inside are lost."""
        if self._pipe is not None:
            self._pool.give_back(self._pipe, False)
            self._pipe = None
