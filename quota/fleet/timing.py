"""How often and how long: the times of a fleet, in one place. Milliseconds of the reader's own monotonic clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Times are multiples of the interval at which an instance publishes.

    That is `interval_ms`, and longer where many instances share a partition: together they write at most `budget`
    records per second into it, so a reader's work is bounded whatever the fleet's size.
    """

    interval_ms: int = 1000
    budget: int = 250
    """Records per second and partition, in a steady state."""
    urgent: int = 4
    """While shares move, up to so many records per interval."""
    hold: int = 5
    """Without its own records coming back, an instance keeps its last share for so many intervals, then it takes the
    limit / known instances."""
    start: int = 15
    """One that has not found the topic since it started waits so many intervals, at its floor, before it does the same:
    it knows of nobody, and a fleet that starts anew would use the limit several times."""
    forget: int = 10
    """An instance whose records stop is forgotten after so many of its intervals; more than `hold`."""
    presence: int = 10
    """Intervals between records that say nothing but that the instance is there (partition 0)."""
    window_ms: int = 10_000
    """What an instance had in its window counts as the fleet's for so long after it is gone, less and less: as long as
    the window of the quotas remembers it."""
    stay_ms: int = 60_000
    """A group that nobody uses here is no longer published after so long."""

    def interval_of(self, instances: int) -> int:
        """That of each of `instances` that write into one partition: 250 -> 1 s, 1 000 -> 4 s, 10 000 -> 40 s."""
        return max(self.interval_ms, instances * 1000 // self.budget)
