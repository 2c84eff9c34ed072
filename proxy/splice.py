"""Moving bytes between two sockets inside the kernel: socket -> pipe -> socket by splice(2), pipes pooled.

A pipe is held only while bytes are being moved; an idle connection holds none.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from socket import socket
from typing import Final

import trio

PIPE_BYTES: Final = 1 << 20
"""Asked for; the kernel may give less (fs.pipe-max-size, fs.pipe-user-pages-soft)."""
POOL_SIZE: Final = 32


class Pipe:
    """A kernel pipe; `size_bytes` is what it can hold."""

    __slots__ = ("read_fd", "size_bytes", "write_fd")

    def __init__(self) -> None:
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
    """Empty pipes to reuse. `pipes_open` counts all that exist, so that tests can see a leak."""

    def __init__(self) -> None:
        self._free: list[Pipe] = []
        self.pipes_open = 0

    def take(self) -> Pipe | None:
        """An empty pipe; None when the process is out of file descriptors: then bytes go through the receive buffer."""
        if self._free:
            return self._free.pop()
        try:
            pipe = Pipe()
        except OSError:
            return None
        self.pipes_open += 1
        return pipe

    def give_back(self, pipe: Pipe, *, is_empty: bool) -> None:
        """Return a pipe; one that still holds bytes is closed."""
        if is_empty and len(self._free) < POOL_SIZE:
            self._free.append(pipe)
        else:
            pipe.close()
            self.pipes_open -= 1

    def close(self) -> None:
        """Close the free pipes."""
        while self._free:
            self._free.pop().close()
            self.pipes_open -= 1


async def splice_bytes(
    source: socket, sink: socket, count: int, pool: PipePool, on_moved: Callable[[int], None]
) -> bool:
    """Move exactly `count` bytes from `source` to `sink`, or none if there is no pipe; False if `source` ended before.

    `on_moved(n)` is called for each part that has reached `sink`. Raises SourceError / SinkError, the OSError as cause.
    """
    pipe = pool.take()
    if pipe is None:
        return True
    inside = 0
    remaining = count
    source_fd, sink_fd = source.fileno(), sink.fileno()
    try:
        while remaining or inside:
            moved = False
            if remaining and inside < pipe.size_bytes:
                try:
                    got = os.splice(source_fd, pipe.write_fd, min(remaining, pipe.size_bytes), flags=_NONBLOCK)
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise SourceError from error
                else:
                    if got == 0:
                        return False
                    remaining -= got
                    inside += got
                    moved = True
            if inside:
                try:
                    put = os.splice(pipe.read_fd, sink_fd, inside, flags=_NONBLOCK | (_MORE if remaining else 0))
                except BlockingIOError:
                    if not moved:
                        await trio.lowlevel.wait_writable(sink)
                        continue
                except OSError as error:
                    raise SinkError from error
                else:
                    inside -= put
                    on_moved(put)
                    moved = True
            if not moved:
                await trio.lowlevel.wait_readable(source)
            else:
                await trio.lowlevel.checkpoint()
        return True
    finally:
        pool.give_back(pipe, is_empty=inside == 0)


_NONBLOCK: Final[int] = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_MORE: Final[int] = os.SPLICE_F_MORE


class SourceError(Exception):
    """Reading failed; the cause is the OSError."""


class SinkError(Exception):
    """Writing failed; the cause is the OSError."""
