"""Long work lets others go on now and then: it calls what it was given, and knows nothing of threads and clocks."""

from collections.abc import Callable

Pause = Callable[[], None]
"""Called now and then in long work, by whoever wants to let others go on meanwhile."""


def without_pause() -> None:
    """Nobody waits."""
