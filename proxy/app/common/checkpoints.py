"""Long work on the event loop, which lets other tasks run about every millisecond."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

import trio

from proxy.core.telemetry.long_turns import LongTurns

CHECKPOINT_EVERY_S: Final = 0.001
T = TypeVar("T")


async def with_checkpoints(items: Iterable[T], what: str = "", turns: LongTurns | None = None) -> AsyncIterator[T]:
    """The items; other tasks run whenever a millisecond is over. `turns` counts a long turn as one of `what`."""
    began_s = 0.0  # long ago, so that even the first millisecond is known as `what`
    for item in items:
        yield item
        if time.perf_counter() - began_s >= CHECKPOINT_EVERY_S:
            await trio.lowlevel.checkpoint()
            began_s = time.perf_counter()
            if turns is not None:
                turns.begin(what, trio.current_time())
