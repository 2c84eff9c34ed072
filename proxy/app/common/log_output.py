"""Where log lines go. A slow or absent reader and a full disk neither delay nor end anything: a line that cannot be
written at once is dropped and counted."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from functools import lru_cache
from typing import Final, TextIO

WAIT_MS: Final = 20
"""How long the first line waits for a reader that is busy; later ones do not, until one has been written."""
CHUNK_BYTES: Final = select.PIPE_BUF
"""A pipe or socket that polls as writable takes this much without blocking."""


class LogOutput:
    """A stream of log lines. Calls of `write` need a lock, as structlog's loggers have."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._poll = select.poll()
        try:
            self._fd = stream.fileno()
        except OSError:  # text in memory
            self._fd = -1
        else:
            self._poll.register(self._fd, select.POLLOUT)
        self._rest = b""
        """The end of a line whose beginning is written."""
        self._stuck = False
        self.lost = 0
        """Lines dropped since the last one that was written."""

    def write(self, line: str) -> None:
        """Write a line with its newline, or drop it."""
        if self._fd < 0:
            self._stream.write(line)
            return
        if self._rest:
            self._send()
            if self._rest:
                self.lost += 1
                return
        self._rest = data = line.encode(self._encoding, "backslashreplace")
        self._send()
        if self._rest == data:  # nothing of it is written
            self._rest = b""
            self.lost += 1
        else:
            self.lost = 0

    def flush(self) -> None:
        """Nothing is buffered."""

    def _send(self) -> None:
        with suppress(OSError):  # the disk is full, or nobody reads any more
            while self._rest and self._poll.poll(0 if self._stuck else WAIT_MS):
                self._rest = self._rest[os.write(self._fd, self._rest[:CHUNK_BYTES]) :]
        self._stuck = bool(self._rest)


@lru_cache(maxsize=1)
def output_of(stream: TextIO) -> LogOutput:
    """The output to a stream: the same after a reload."""
    return LogOutput(stream)
