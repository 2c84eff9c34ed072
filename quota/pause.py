"""Long computations call a function they are given from time to time, to let other tasks run."""

from collections.abc import Callable

Pause = Callable[[], None]
"""Called periodically during long work, to let other tasks run meanwhile."""


def without_pause() -> None:
    """Do not pause: no other task waits."""
