"""Walking a byte stream frame by frame, looking at heads only: the part that both directions of a session share.

                 need more bytes                         bytes remain
              +-------------------+                 +-------------------+
              v                   |                 v                   |
    BOUNDARY ---> HEAD (held) ----+--- verdict ---> BODY (forward | drop) ---> BOUNDARY

A `judge` looks at the head of a frame and says what happens to it; the walker counts the rest. Bytes that are forwarded
as they stand are never copied, but returned as views into the caller's buffer, as few and as long as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Buffer = bytes | bytearray | memoryview

Judge = Callable[[bytearray | memoryview, int, int, list[Buffer]], int]
"""judge(buf, start, end, out): judge the frame at `start`, of which the bytes up to `end` (or its own end) are there.

Returns 0: more bytes needed, `walker.need` says how many from `start`; or, if it has set `walker.stopped`, the frame is
to be judged again later, and the walk ends before it.
n > 0: n bytes dealt with in place; they are forwarded, or dropped if `walker.dropping` was set.
n < 0: -n bytes are replaced by what was appended to `out`.
Unless 0, `walker.skip` has been set to the length of the rest of the frame.
"""
Complete = Callable[[], Sequence[Buffer]]
"""complete(): the last byte of a frame has been dealt with. Returns buffers to insert behind it; may set `stopped`."""
Scrub = Callable[[memoryview], bytes]


class FrameWalker:
    """Framing state of one direction."""

    __slots__ = ("dropping", "held", "need", "scrub", "skip", "stopped")

    def __init__(self) -> None:
        self.skip = 0
        """Bytes of the current frame still to come that nobody judges."""
        self.dropping = False
        """Those bytes are thrown away instead of forwarded."""
        self.scrub: Scrub | None = None
        """Those bytes go through this function, which may hold some back until the frame's last piece."""
        self.held: bytearray | None = None
        """Head of a frame that was too short to be judged."""
        self.need = 0
        """Length of `held` at which to try again."""
        self.stopped = False
        """Set by `complete` or `judge`: go no further for now."""

    @property
    def at_boundary(self) -> bool:
        """True between two frames."""
        return self.skip == 0 and self.held is None

    @property
    def movable(self) -> int:
        """Bytes that may go from one socket to the other without passing through here."""
        return 0 if self.dropping or self.scrub is not None else self.skip

    def walk(self, view: memoryview, judge: Judge, complete: Complete) -> tuple[list[Buffer], int]:
        """Take a writable view of received bytes. Returns what to send on, in order, and how many bytes were taken.

        Fewer than all are taken only if `complete` or `judge` set `stopped`. (What `judge` looked at then may be in
        `held`, and comes before what was not taken.)
        """
        out: list[Buffer] = []
        end = len(view)
        position = run = 0  # view[run:position] goes on as it stands
        self.stopped = False
        while position < end:
            if self.skip:
                take = min(self.skip, end - position)
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
                used = judge(held, 0, len(held), out)
                if used == 0:
                    self.held = held
                    if self.stopped:
                        break
                    continue
                if used > 0 and not self.dropping:
                    out.append(held)
            else:
                before = len(out)
                used = judge(view, position, end, out)
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
                inserted = complete()
                if inserted:
                    if run < position:
                        out.append(view[run:position])
                        run = position
                    out.extend(inserted)
                if self.stopped:
                    break
        if run < position:
            out.append(view[run:position])
        return out, position
