"""What an instance may use of one group: lowered at once, raised only after all others had two records to see it.

The partition puts all records into one order, and each reader sees a prefix of it. The rule:

- Each record says what its writer holds and claims; it never uses more than the greater of the two until its next one.
- Held is lowered before the record that says so is written.
- Held is raised when two successive records with the claim have come back to their writer, to the least that was
  claimed in them and after them, and to no more than the others' last records before the second one leave free.

If two instances claim the same capacity, the second record of one of them follows the other's: it has read both of the
other's, or one of them if one was lost, and finds it taken. So the sum of what is held never exceeds the capacity as
long as no reader loses two successive records of one member about the group.
"""

from collections import deque
from math import floor
from typing import Final

MAX_SENT: Final = 64
"""Records of a group that may be on their way. Further ones push out the oldest: while nothing comes back there is one
more for each interval."""
_STEPS: Final = 2**24
"""Fractions are multiples of 2^-24, which a 32-bit float holds exactly: others read the exact value."""


def exact(fraction: float) -> float:
    """`fraction`, rounded down to what a record can express, from 0 to 1."""
    return floor(min(max(fraction, 0.0), 1.0) * _STEPS) / _STEPS


class Claim:
    """One group's grant, as a fraction of the limit."""

    __slots__ = ("_back", "_sent", "held")

    def __init__(self) -> None:
        self.held = 0.0
        """In force."""
        self._sent: deque[tuple[int, float]] = deque(maxlen=MAX_SENT)
        self._back: float | None = None

    def lower(self, to: float) -> bool:
        """Hold at most `to` from now on. Returns whether that is less than before."""
        if self.held <= to:
            return False
        self.held = exact(to)
        return True

    def hold_alone(self, fraction: float) -> None:
        """No other instance can be heard: hold this, whatever the others do."""
        self.held = exact(fraction)
        self._back = None

    def sent(self, seq: int, claim: float) -> None:
        """A record with this claim was handed over to be published."""
        self._sent.append((seq, claim))

    def came_back(self, seq: int, capacity: float) -> None:
        """Our own record `seq` was read, where the others left `capacity`."""
        found = None
        while self._sent and self._sent[0][0] <= seq:
            its_seq, claim = self._sent.popleft()
            if its_seq == seq:
                found = claim
        if found is None:
            return
        before, self._back = self._back, found
        if before is not None:
            self.held = max(self.held, exact(min(before, found, capacity, *(claim for _, claim in self._sent))))
