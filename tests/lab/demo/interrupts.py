"""Ctrl-C and similar signals: an exception while waiting, a flag while drawing, ignored while cleaning up."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked us to stop."""


class Interrupts:
    """Context manager around the demo; `number` is the signal that came first."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.raising = True
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def exit_code(self) -> int:
        """As in shells: 128 + signal (130 for Ctrl-C)."""
        return 128 + (self.number or 0)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.number is not None:
            raise Interrupted

    def __enter__(self) -> Self:
        self._before = {one: signal.signal(one, self._received) for one in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            if self.raising:
                raise Interrupted
