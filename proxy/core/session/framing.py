"""Walking a byte stream frame by frame, looking at heads only: what both directions of a session share.

                 need more bytes                         bytes remain
              +-------------------+                 +-------------------+
              v                   |                 v                   |
    BOUNDARY ---> HEAD (held) ----+--- verdict ---> BODY (forward | drop) ---> BOUNDARY

A `FrameInspector` looks at the head of a frame and decides what happens to it; the walker counts the rest. Bytes that
are forwarded unchanged are never copied, but returned as views into the caller's buffer, as few and as long as
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

FRAMES_PER_WALK: Final = 48
"""Frames of one walk; what is left waits while others are served. A frame takes 5 to 30 µs in pure Python, so a walk
takes about a millisecond. A frame that takes longer counts as several (`FrameWalker.left`)."""
_MOST: Final = FRAMES_PER_WALK
_LEFT_AFTER_LITTLE: Final = FRAMES_PER_WALK - FRAMES_PER_WALK // 8

Scrub = Callable[[memoryview], bytes]


class FrameInspector:
    """Decides about each frame of a walk. Both directions of a session are one."""

    __slots__ = ()

    def inspect(self, buf: bytearray | memoryview, start: int, end: int, out: list[Buffer]) -> int:
        """Inspect the frame at `start`, of which the bytes up to `end` (or its own end) have arrived.

        Returns 0: more bytes are needed, `walker.need` from `start`; or, with `walker.stopped` set, the frame has to be
        inspected again later, and the walk ends before it.
        n > 0: n bytes processed in place; they are forwarded, or dropped if `walker.dropping` was set.
        n < 0: -n bytes are replaced by what was appended to `out`.
        Unless 0, `walker.skip` has been set to the length of the rest of the frame.
        """
        raise NotImplementedError

    def complete(self) -> Sequence[Buffer]:
        """The last byte of a frame has been processed. Returns buffers to insert after it; may set `stopped`."""
        raise NotImplementedError


class FrameWalker:
    """Framing state of one direction."""

    __slots__ = ("dropping", "held", "left", "need", "scrub", "skip", "stopped", "taken")

    def __init__(self) -> None:
        self.skip = 0
        """Bytes of the current frame still to come that are not inspected."""
        self.dropping = False
        """Those bytes are dropped instead of forwarded."""
        self.scrub: Scrub | None = None
        """Those bytes pass through this function, which may hold some back until the frame's last piece."""
        self.held: bytearray | None = None
        """The head of a frame of which too little has arrived to inspect it."""
        self.need = 0
        """Length of `held` at which to inspect it again."""
        self.stopped = False
        """Go no further for now: set by `complete`, by `inspect`, or because this walk has done its share."""
        self.left = 0
        """How many more frames this walk may inspect. `inspect` lowers it for what takes as long as several."""
        self.taken = 0
        """How many bytes the last walk processed."""

    def at_boundary(self) -> bool:
        """True between two frames."""
        return self.skip == 0 and self.held is None

    def did_little(self) -> bool:
        """Whether the last walk did so little that another one may follow before others are served."""
        return not self.stopped and self.left >= _LEFT_AFTER_LITTLE

    def movable(self) -> int:
        """Bytes that may be moved from one socket to the other unseen."""
        return 0 if self.dropping or self.scrub is not None else self.skip

    def walk(self, side: FrameInspector, view: memoryview, end: int) -> list[Buffer] | None:
        """Process the first `end` bytes of a writable view. Returns what to send on, in order; None (nearly always)
        means the processed bytes, unchanged.

        Fewer than all are `taken` only if it has `stopped`. (What `inspect` looked at then may be in `held`, and comes
        before the bytes that were not taken.)
        """
        out: list[Buffer] = []
        position = run = 0  # view[run:position] is forwarded unchanged
        self.stopped = False
        self.left = _MOST
        while position < end:
            if self.skip:
                take = self.skip if self.skip < end - position else end - position
                if self.scrub is not None:
                    out.append(self.scrub(view[position : position + take]))
                position += take
                self.skip -= take
                if self.dropping or self.scrub is not None:
                    run = position
            elif self.held is not None:
                take = min(self.need - len(self.held), end - position)
                self.held += view[position : position + take]
                run = position = position + take
                if len(self.held) < self.need:
                    break
                held, self.held = self.held, None
                used = side.inspect(held, 0, len(held), out)
                if used == 0:
                    self.held = held
                    if self.stopped:
                        break
                    continue
                if used > 0 and not self.dropping:
                    out.append(held)
            else:
                before = len(out)
                used = side.inspect(view, position, end, out)
                if used > 0 and not self.dropping:
                    position += used
                else:
                    if run < position:
                        out.insert(before, view[run:position])
                    if used == 0:
                        if self.stopped:
                            run = position
                            break
                        self.held = bytearray(view[position:end])
                        run = position = end
                        break
                    run = position = position + abs(used)
            if self.skip == 0 and self.held is None:
                self.dropping = False
                self.scrub = None
                inserted = side.complete()
                if inserted:
                    if run < position:
                        out.append(view[run:position])
                        run = position
                    out.extend(inserted)
                self.left -= 1
                if self.left <= 0 and position < end:
                    self.stopped = True
                if self.stopped:
                    break
        self.taken = position
        if run == 0 and not out:
            return None
        if run < position:
            out.append(view[run:position])
        return out
