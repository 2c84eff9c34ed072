"""A byte stream cut into frames, of which only the heads are looked at.

The owner of a `FrameReader` asks it for the `next` event, and says by a `Verdict` what becomes of each head:

                    NEED: more arrives                            STOP, or the owner's `stop_here`
                   +-----------------+                          +---------------------------+
                   v                 |                          |                           v
    feed --> next: HEAD --> follow(verdict) --> (bytes left) --> next: END --> next: HEAD    the rest is kept,
                                    FORWARD, REPLACE, DROP, FILTER                          `go_on` continues

Bytes that are forwarded unchanged are not copied: `out` gets ranges of the caller's view, as few and as long as
possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from proxy.core.session.outgoing import NOTHING_READ, Buffer, Outgoing
from proxy.core.wire import integers
from proxy.core.wire.stream import StreamWalk

FRAMES_PER_TURN: Final = 48
"""Frames that are taken in one direction before others are served. A frame takes 5 to 30 µs in pure Python, so a turn
takes about a millisecond. A frame that takes longer counts as several (`FrameReader.frames_left`)."""

Filter = Callable[[memoryview], bytes]

# Events, and kinds of verdicts: C numbers in compiled code (see the .pxd).
_NOTHING: Final = 0
"""All that was fed has been used, or the reader is stopped."""
HEAD: Final = 1
"""The frame in `buf[start:stop]` waits for a verdict; `total` is its whole length."""
_END: Final = 2
"""The last byte of a frame has been used."""
_PREFIX_BYTES: Final = 4
_LITTLE_BYTES: Final = 14
"""Of a frame that is looked at again: a request's header up to the client-id."""
_HEAD: Final = HEAD
NEED: Final = 0
_NEED: Final = NEED
_FORWARD: Final = 1
_REPLACE: Final = 2
_DROP: Final = 3
_FILTER: Final = 4
_STOP: Final = 5


class Verdict:
    """What becomes of a frame."""

    def __init__(self, kind: int, count: int = 0, data: Any = None) -> None:
        self.kind = kind
        self.count = count
        self.data = data


FORWARD: Final = Verdict(_FORWARD)
"""Send it on, all of it."""
DROP: Final = Verdict(_DROP)
"""Send none of it on."""
STOP: Final = Verdict(_STOP)
"""Not now: it is a HEAD again after `go_on`."""


def need(count: int) -> Verdict:
    """`count` bytes of it have to arrive before it is a HEAD again."""
    return Verdict(_NEED, count)


def replace(count: int, data: Buffer) -> Verdict:
    """Send `data` in place of its first `count` bytes, and the rest unchanged."""
    return Verdict(_REPLACE, count, data)


def filtered(by: Filter) -> Verdict:
    """Send what `by` makes of it. `by` may keep some bytes back until the frame's last piece."""
    return Verdict(_FILTER, 0, by)


class FrameReader:
    """One direction's frames. Decides nothing."""

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self._view = NOTHING_READ
        self._at = self._end = 0
        """`_view[_at:_end]` has not been used yet."""
        self._owned = False
        """`_view` is the reader's own, not its caller's receive buffer."""
        self._partial: bytearray | None = None
        """A head of which too little has arrived,"""
        self._need = 0
        """and the length at which it is looked at again."""
        self._in_frame = False
        self._dropping = False
        """What is left of the current frame is not forwarded."""
        self._filter: Filter | None = None
        """What is left of the current frame passes through this function."""
        self._looker: StreamWalk | None = None
        """It is looked at by this one, which may raise WireError and SessionError."""
        self.left = 0
        """Bytes of the current frame that are still to come and are not looked at."""
        self.frames_left = 0
        """How many more frames this turn may take: its owner sets it, and lowers it for one that takes as long as
        several. Then the reader stops."""
        self.stopped = False
        self.buf: bytearray | memoryview = NOTHING_READ
        self.start = self.stop = self.total = 0

    def at_boundary(self) -> bool:
        """Whether no frame has begun and not ended. Frames that are kept have not begun."""
        return not self._in_frame and self._partial is None

    def is_idle(self) -> bool:
        """Whether the next byte begins a frame, and the frame may be taken."""
        return not (self._in_frame or self.stopped) and self._partial is None and self._at == self._end

    def forwarded(self, left: int) -> None:
        """Its owner has forwarded a part of a frame, and `left` bytes of it are to come; 0: the frame has ended."""
        self.left = left
        self._in_frame = left > 0

    def is_whole(self) -> bool:
        """Whether all of the frame at HEAD has arrived."""
        return self.stop - self.start == self.total

    def more(self) -> Verdict:
        """Twice as much of it has to arrive before it is a HEAD again: one that trickles in is not looked at for every
        byte."""
        return need(min(self.total, max(2 * (self.stop - self.start), _LITTLE_BYTES)))

    def keeps(self) -> bool:
        """Whether something was fed that has not been used yet."""
        return self._at < self._end

    def kept_bytes(self) -> int:
        """How much was fed and has not been used."""
        return self._end - self._at + (0 if self._partial is None else len(self._partial))

    def movable(self) -> int:
        """How many of the next bytes may go from one side to the other unseen."""
        if self._dropping or self._filter is not None or self._at < self._end:
            return 0
        return self.left if self._looker is None else min(self.left, self._looker.unseen())

    def feed(self, view: memoryview, end: int) -> None:
        """The first `end` bytes of a writable view come next. Ask for events until there are none."""
        assert self._at == self._end, "what is kept comes first"
        self.stopped = False
        self._view = view
        self._at, self._end, self._owned = 0, end, False
        self._out.use(view)

    def keep(self, view: memoryview, end: int) -> None:
        """The first `end` bytes of a view come after what is kept, and are not used before `go_on`. Not in a frame."""
        self.stop_here()
        kept = bytearray(self._view[self._at : self._end])
        kept += view[:end]
        self._keep(kept)

    def moved(self, count: int) -> None:
        """`count` of the `movable` bytes went to the other side unseen. Ask for events if none are left."""
        self.left -= count
        if self._looker is not None:
            self._looker.skip(count)

    def next(self) -> int:
        """The next event."""
        if self._in_frame:
            if self.left:
                self._pass_on()
                if self.left:
                    return _NOTHING
            self._in_frame = self._dropping = False
            self._filter = self._looker = None
            self.frames_left -= 1
            return _END
        at, end, partial = self._at, self._end, self._partial
        if at == end or self.stopped:
            return _NOTHING
        if partial is None:
            if self.frames_left <= 0:
                self.stop_here()
                return _NOTHING
            self.buf, self.start = self._view, at
        else:
            at = min(end, at + self._need - len(partial))
            partial += self._view[self._at : at]
            self._at = at
            end = len(partial)
            if end < self._need:
                return _NOTHING
            self.buf, self.start, at = partial, 0, 0
        if end - at < _PREFIX_BYTES:
            self._wait_for(_PREFIX_BYTES)
            return _NOTHING
        total = _PREFIX_BYTES + integers.int32(self.buf, at)
        self.total = total
        self.stop = at + total if _PREFIX_BYTES <= total < end - at else end
        return _HEAD

    def follow(self, verdict: Verdict) -> None:
        """What becomes of the frame at HEAD."""
        kind = verdict.kind
        if kind == _NEED:
            self._wait_for(verdict.count)
            return
        if kind == _STOP:
            self.frames_left -= 1
            self.stop_here()
            return
        start, stop = self.start, self.stop
        self._in_frame = True
        self.left = self.total - (stop - start)
        partial, self._partial = self._partial, None
        if partial is None:
            self._at = stop
            if kind == _FORWARD:
                self._out.forward(start, stop)
                return
        head = memoryview(self.buf)[start:stop]
        self.buf = NOTHING_READ  # it may be secret
        if kind == _DROP:
            self._dropping = True
        elif kind == _FILTER:
            self._filter = verdict.data
            self._out.insert(verdict.data(head))
        else:
            if kind == _REPLACE:
                self._out.insert(verdict.data)
                start += verdict.count
            if start < stop and partial is not None:
                self._out.insert(head[verdict.count :])
            elif start < stop:
                self._out.forward(start, stop)

    def look(self, looker: StreamWalk) -> None:
        """`looker` sees what is left of the frame whose HEAD has just been followed."""
        self._looker = looker

    def stop_here(self) -> None:
        """Go no further for now: keep what was fed and has not been used."""
        self.stopped = True
        partial, self._partial = self._partial, None
        if partial is not None or not (self._owned or self._at == self._end):
            self._keep((partial or bytearray()) + self._view[self._at : self._end])

    def go_on(self) -> None:
        """Go on with what was kept: ask for events until there are none."""
        self.stopped = False
        self._out.use(self._view)

    def _keep(self, kept: bytearray) -> None:
        self._view, self._at, self._end, self._owned = memoryview(kept), 0, len(kept), True

    def _pass_on(self) -> None:
        """Use what has arrived of the current frame's rest."""
        at = self._at
        count = min(self.left, self._end - at)
        if not count:
            return
        if self._filter is not None:
            self._out.insert(self._filter(self._view[at : at + count]))
        else:
            if self._looker is not None:
                self._looker.see(self._view[at : at + count])
            if not self._dropping:
                self._out.forward(at, at + count)
        self._at = at + count
        self.left -= count

    def _wait_for(self, count: int) -> None:
        self._need = count
        if self._partial is None:
            self._partial = bytearray(self._view[self._at : self._end])
            self._at = self._end
