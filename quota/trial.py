"""Limits on trial: measured on the real traffic, never applied. Shadow entries, and candidates next to a live limit."""

from dataclasses import dataclass


@dataclass(slots=True)
class Trial:
    """What one limit would have done to one counter's traffic.

    Each charge is put to Kafka's delay formula (no cap, no pacing). A client would wait for only one delay at a time,
    so the time is counted that at least one of the intervals [now, now + delay) covers. The traffic was not delayed, so
    this is what the limit would do to clients that go on asking for as much.
    """

    limit: float | None = None
    """None: no longer on trial; what it has counted stays."""
    throttled: int = 0
    """Charges that would have been delayed or refused."""
    throttle_ms: int = 0
    """Milliseconds covered by the delays, counted when a delay would have been imposed, as real ones are."""
    until_ms: int = 0
    """Where the delays counted so far end."""
    reported: tuple[int, int] = (0, 0)
    """For the exporter: `throttled` and `throttle_ms` as usage records have them."""

    def put_to(self, limit: float | None) -> None:
        """Continue with this limit. Delays of another one say nothing about it, so its time is counted from now on."""
        if limit != self.limit:
            self.limit = limit
            self.until_ms = 0

    def note(self, delay_ms: int, now: int) -> None:
        """A charge at `now` would have been delayed by `delay_ms` (<= 0: not at all)."""
        if delay_ms <= 0:
            return
        self.throttled += 1
        end = now + delay_ms
        if end > self.until_ms:
            self.throttle_ms += end - max(now, self.until_ms)
            self.until_ms = end
