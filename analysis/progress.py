"""Progress of a long report: one line on a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from pyspark.sql import SparkSession

TERMINAL_S = 0.5
LOG_S = 10.0


class Progress:
    """Shows the current step, and how many of Spark's tasks in it are done, while the block runs."""

    def __init__(self, spark: SparkSession, out: TextIO | None = None) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._out = sys.stderr if out is None else out
        self._live = self._out.isatty()
        self._step = "starting"
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def step(self, name: str) -> None:
        """Set the current step."""
        self._step = name
        if not self._live:
            self._print(f"{self._seconds()} {name}")

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _watch(self) -> None:
        while not self._over.wait(TERMINAL_S if self._live else LOG_S):
            line = f"{self._seconds()} {self._step}{self._tasks()}"
            if self._live:
                self._out.write(f"\r\x1b[K{line}")
                self._out.flush()
            else:
                self._print(line)

    def _tasks(self) -> str:
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return f": {done} of {total} tasks" if total else ""

    def _seconds(self) -> str:
        return f"[{time.monotonic() - self._began:5.0f} s]"

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)
