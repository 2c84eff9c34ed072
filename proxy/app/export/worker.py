"""The thread that delivers usage records: a bounded buffer in front of one sink, so that traffic never waits. When it
is full the oldest records are dropped, and readers see the gap in their sequence numbers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

log = structlog.get_logger("kquota.export")

TICK_S: Final = 1.0
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0


@dataclass(slots=True)
class Batch:
    """Records of one interval, ready to be written."""

    lines: list[bytes]
    """Each with its newline, in order of sequence; a sink that fails half-way removes what it has delivered."""
    first_sequence: int
    end_ms: int
    partition: str

    @property
    def size_bytes(self) -> int:
        """Its size in the buffer."""
        return sum(map(len, self.lines))


class Sink(Protocol):
    """Where records go. Called by one thread only; may block."""

    def write(self, batch: Batch) -> None:
        """Deliver all of it. Raises OSError; records delivered before the error are removed from the batch."""

    def tick(self) -> None:
        """Called periodically, while there is nothing to write. Raises OSError."""

    def close(self) -> None:
        """There are no more records. Raises OSError."""


class Worker:
    """Feeds a sink from a buffer of at most `buffer_bytes`, in a thread of its own."""

    def __init__(self, name: str, sink: Sink, buffer_bytes: int) -> None:
        self.name = name
        self._sink = sink
        self._buffer_bytes = buffer_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()
        self._in_work: Batch | None = None
        self._end_s: float | None = None
        """Monotonic time at which to give up; set when there are no more records."""
        self.records = self.errors = self.dropped = 0
        self.last_success_s = 0.0
        """Wall clock; 0: never."""
        self._last_error: str | None = None
        self.done = threading.Event()

    def start(self) -> None:
        """Start the thread. It does not keep the process alive."""
        threading.Thread(target=self._run, name=f"kquota-export-{self.name}", daemon=True).start()

    def offer(self, batch: Batch) -> None:
        """Queue a batch. Never blocks; what the buffer cannot hold is dropped, oldest first, and counted."""
        with self._changed:
            self._waiting.append(batch)
            self._evict()
            self._changed.notify()

    def end(self, within_s: float) -> None:
        """There are no more records: deliver what is queued within this time, then give up, and set `done`."""
        with self._changed:
            self._end_s = time.monotonic() + within_s
            self._changed.notify()

    def pending(self) -> list[Batch]:
        """What is not delivered yet, the oldest first."""
        with self._changed:
            return [*([self._in_work] if self._in_work else []), *self._waiting]

    @property
    def pending_bytes(self) -> int:
        """Size of that."""
        return sum(batch.size_bytes for batch in self.pending())

    @property
    def lag_s(self) -> float:
        """How long ago the interval of the oldest of it ended; 0 when nothing is queued."""
        oldest = next(iter(self.pending()), None)
        return 0.0 if oldest is None else max(time.time() - oldest.end_ms / 1000.0, 0.0)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            retry_s = FIRST_RETRY_S
            while (batch := self._take()) is not None:
                if self._deliver(batch):
                    retry_s = FIRST_RETRY_S
                elif self._give_back(batch):
                    break
                else:
                    self._rest(retry_s)
                    retry_s = min(retry_s * 2, LONGEST_RETRY_S)
            self._try(self._sink.close)
        except Exception:  # an internal error ends the export, never the traffic
            log.exception("the writer of usage records stopped: internal error", sink=self.name)
            self.errors += 1
        finally:
            with self._changed:
                self.dropped += sum(len(batch.lines) for batch in self.pending())
                self._waiting.clear()
                self._in_work = None
            self.done.set()

    def _take(self) -> Batch | None:
        while True:
            with self._changed:
                if self._waiting:
                    self._in_work = self._waiting.popleft()
                    return self._in_work
                if self._end_s is not None:
                    return None
                woken = self._changed.wait(TICK_S)
            if not woken:
                self._try(self._sink.tick)

    def _deliver(self, batch: Batch) -> bool:
        before = len(batch.lines)
        try:
            self._sink.write(batch)
        except OSError as error:
            self.records += before - len(batch.lines)
            self._failed(error)
            return False
        with self._changed:
            self.records += before
            self._in_work = None
            self.last_success_s = time.time()
        if self._last_error is not None:
            log.info("writing usage records resumed", sink=self.name)
            self._last_error = None
        return True

    def _give_back(self, batch: Batch) -> bool:
        """Put a batch that could not be delivered back to the front. True when there is no time left to try again."""
        with self._changed:
            self._in_work = None
            self._waiting.appendleft(batch)
            self._evict()
            return self._end_s is not None and time.monotonic() >= self._end_s

    def _rest(self, retry_s: float) -> None:
        """Wait before the next try, but no longer than there is time when there are no more records."""
        until_s = time.monotonic() + retry_s
        with self._changed:
            while (left_s := min(until_s, self._end_s or until_s) - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _evict(self) -> None:
        while self._waiting and sum(batch.size_bytes for batch in self._waiting) > self._buffer_bytes:
            self.dropped += len(self._waiting.popleft().lines)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.errors += 1
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if text != self._last_error:
            self._last_error = text
            log.error("usage records cannot be written, retrying", sink=self.name, error=text)
