"""Which lane the data path takes: the compiled one where it was built, else the Python code that is its reference.

Nothing depends on it but speed (ADR 0023). It comes with the compiled arithmetic or not at all: `quota.compiled`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quota import compiled

if TYPE_CHECKING:
    from proxy._lane import Lane, Loop
    from proxy.io.reactor import Reactor, Watch
    from proxy.io.turns import Pause, Turns

ABI: Final = 6
"""What is expected of `proxy._lane`; raised together with its own when they have to change together."""


def _why_not() -> str:
    if compiled.WHY_NOT:
        return compiled.WHY_NOT
    try:
        import proxy._lane as _lane
    except ImportError as error:
        return str(error)
    # One that an older source was compiled to, and nobody has compiled again.
    return "" if getattr(_lane, "ABI", 0) == ABI else "it was compiled from other sources: make lane"


WHY_NOT: Final[str] = _why_not()
"""Why the lane is not compiled; empty when it is."""
COMPILED: Final[bool] = not WHY_NOT
DESCRIPTION: Final[str] = "compiled" if COMPILED else f"pure Python: {WHY_NOT}"
"""For people: the start's log line and `kquota --version`."""


def loop_for(reactor: Reactor, runner: Any, epoll_fd: int, trio_fd: int) -> Loop | None:
    """The compiled loop of a reactor that waits together with trio's `runner`; None without a lane."""
    if not COMPILED:
        return None
    from proxy import _lane

    return _lane.Loop(reactor, runner, epoll_fd, trio_fd, runner.clock.offset)


def lane_for(turns: Turns, client_watch: Watch[Pause]) -> Lane | None:
    """The compiled turns of a connection whose client's socket is plain or has a channel; None without a lane."""
    if not COMPILED:
        return None
    from proxy import _lane

    return _lane.Lane(turns, client_watch)
