"""What one direction of a session sends on: nearly always a range of the caller's buffer, which is not copied."""

from __future__ import annotations

from typing import Final

Buffer = bytes | bytearray | memoryview

NOTHING_READ: Final = memoryview(b"")


class Outgoing:
    """Bytes in order: `buffers`, then `view[start:end]`. They hold until more is read."""

    def __init__(self) -> None:
        self.view = NOTHING_READ
        self.start = self.end = 0
        self.buffers: list[Buffer] | None = None

    def begin(self) -> None:
        """Forget what was sent before."""
        self.start = self.end = 0
        self.buffers = None

    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return self.start == self.end and self.buffers is None

    def use(self, view: memoryview) -> None:
        """What is forwarded next is in this view."""
        if self.start < self.end:
            self._close_range()
        self.view = view

    def forward(self, start: int, end: int) -> None:
        """Add `view[start:end]`."""
        if self.start == self.end:
            self.start, self.end = start, end
        elif self.end == start:
            self.end = end
        else:
            self._close_range()
            self.start, self.end = start, end

    def insert(self, data: Buffer) -> None:
        """Add bytes that are not in `view`."""
        self._close_range().append(data)

    def parts(self) -> list[Buffer]:
        """All of it, as buffers."""
        return [] if self.empty() else self._close_range()

    def copy(self) -> None:
        """Replace views by copies: the buffers that they look into are about to be overwritten."""
        if not self.empty():
            self.buffers = [bytes(one) for one in self._close_range()]

    def _close_range(self) -> list[Buffer]:
        if self.buffers is None:
            self.buffers = []
        if self.start < self.end:
            self.buffers.append(self.view[self.start : self.end])
        self.start = self.end = 0
        return self.buffers
