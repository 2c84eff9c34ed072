"""All periods and timeouts of a fleet. Milliseconds of the reader's own monotonic clock."""

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
    """While shares move, up to this many records per interval."""
    hold: int = 5
    """While its own records do not come back, an instance keeps its last share for this many intervals, and then takes
    the limit / known instances."""
    start: int = 15
    """An instance that has not found the topic since it started waits this many intervals, at its floor, before it does
    the same: it knows no others, and a fleet that restarts would use the limit several times."""
    forget: int = 10
    """An instance whose records stop is forgotten after this many of its intervals; more than `hold`."""
    presence: int = 10
    """Intervals between records that say only that the instance exists (partition 0)."""
    window_ms: int = 10_000
    """What was in an instance's window counts as the fleet's, less and less, for this long after it is gone: as long as
    the quotas' windows last."""
    stay_ms: int = 60_000
    """A group not used here is no longer published after this time."""

    far: int = 8
    """Another instance's interval is believed up to this many times what it would be here."""
    max_age_ms: int = 300_000
    """A record counts if it was written this long ago at most, or ahead, by the reader's clock: what was captured is
    worth nothing later. Clocks may differ by less than this."""

    def interval_of(self, instances: int) -> int:
        """The interval of each of `instances` that write to one partition: 250 -> 1 s, 1 000 -> 4 s, 10 000 -> 40 s."""
        return max(self.interval_ms, instances * 1000 // self.budget)
