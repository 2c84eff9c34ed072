"""What the demo's clients share: their task as JSON, their reports as JSON lines, and pacing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

REPORT_EVERY_S = 0.25
RECORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Spec:
    """What one client has to do; travels as the program's only argument."""

    bootstrap: str
    client_id: str
    topic: str
    wanted: float | None = None
    """The bytes/s of record values it wants to move; None: as many as it can."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls) -> Spec:
        """The task that this process was started with."""
        return cls(**json.loads(sys.argv[1]))


@dataclass(slots=True)
class Tally:
    """What the client has seen so far; written by the library's threads, read by the reporter's."""

    moved: int = 0
    """Bytes of record values acknowledged by the broker, or received from it."""
    failed: int = 0
    """Records given up, errors of the library."""
    problem: str = ""
    """The last of those errors."""
    throttle_max_ms: float | None = None
    """The longest throttle time that the library itself reports; None: this one reports none."""
    throttles: int = 0
    """How many throttles the library has reported, if it reports each."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        """Count `size` bytes as moved."""
        with self._lock:
            self.moved += size

    def fail(self, problem: object) -> None:
        """Count one failure."""
        with self._lock:
            self.failed += 1
            self.problem = f"{type(problem).__name__}: {problem}" if isinstance(problem, Exception) else str(problem)

    def throttled(self, throttle_ms: float) -> None:
        """Record one throttle time that the library reported."""
        with self._lock:
            self.throttles += 1
            self.throttle_max_ms = max(self.throttle_max_ms or 0.0, throttle_ms)


def say(**message: object) -> None:
    """Write one JSON line; a parent that no longer listens ends the process."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def ready(version: str) -> None:
    """Tell the parent that the client is connected, then wait for its signal to start."""
    say(event="ready", version=version)
    if not sys.stdin.readline():
        os._exit(1)  # the parent is gone


def report(tally: Tally, refresh: Callable[[Tally], None] | None = None) -> None:
    """Report the tally every quarter of a second, from a thread, for as long as the process lives."""

    def loop() -> None:
        while True:
            if refresh is not None:
                refresh(tally)
            say(
                event="tally",
                at=time.monotonic(),  # one clock for all processes of a Linux machine
                moved=tally.moved,
                failed=tally.failed,
                problem=tally.problem,
                throttle_max_ms=tally.throttle_max_ms,
                throttles=tally.throttles,
            )
            time.sleep(REPORT_EVERY_S)

    threading.Thread(target=loop, daemon=True).start()


class Pace:
    """When the next record is due, for a client that wants a certain rate. Missed records are not made up for."""

    LATE_S = 0.25

    def __init__(self, wanted: float, now: float) -> None:
        """`wanted` in bytes/s, `now` in seconds of any clock."""
        self._wanted = wanted
        self._due = now

    def wait_s(self, size: int, now: float) -> float:
        """Schedule a record of `size` bytes; returns the seconds to wait before sending it."""
        self._due = max(self._due, now - self.LATE_S)
        wait_s = self._due - now
        self._due += size / self._wanted
        return max(wait_s, 0.0)


def payload() -> bytes:
    """The value of every record: bytes that do not compress."""
    return os.urandom(RECORD_BYTES)
