"""A client's activity besides quota usage: requests by API, connections, its library, its throttle compliance.

Write-only for the data path, which adds to plain integers; read by the exporter of usage records.
"""

from __future__ import annotations

from typing import Any, Final

# Kafka's keys of the two APIs that make up nearly all traffic: each has its own integer.
_PRODUCE: Final = 0
_FETCH: Final = 1


class RequestCounts:
    """Number of requests by API."""

    __slots__ = ("_fetch", "_others", "_produce")

    def __init__(self) -> None:
        self._produce = self._fetch = 0
        self._others: dict[int, int] = {}

    def add(self, api_key: int) -> None:
        """Count a request of this API; -1 for unknown ones."""
        if api_key == _PRODUCE:
            self._produce += 1
        elif api_key == _FETCH:
            self._fetch += 1
        else:
            self._others[api_key] = self._others.get(api_key, 0) + 1

    def by_api(self) -> dict[int, int]:
        """The nonzero counts, by API key."""
        both = ((_PRODUCE, self._produce), (_FETCH, self._fetch))
        return {key: count for key, count in both if count} | self._others


class Activity:
    """Running totals of one client; never reset while the object lives, except where noted."""

    __slots__ = (
        "connections",
        "connections_opened",
        "connections_peak",
        "counted",
        "mutes",
        "mutes_ignored",
        "sampled",
        "software",
        "touched",
    )

    def __init__(self) -> None:
        self.touched = False
        """Active since the reader last reset this flag (`Ledger.wake`)."""
        self.counted = RequestCounts()
        """Its requests."""
        self.connections = 0
        """Open now."""
        self.connections_opened = 0
        self.connections_peak = 0
        """Most connections open at once; the reader resets it to those open now."""
        self.software: str | None = None
        """Library and version that a connection gave last (KIP-511), as `name/version`."""
        self.mutes = 0
        """Mutes long enough to see whether the client waits."""
        self.mutes_ignored = 0
        """Those in whose second half the client went on sending."""
        self.sampled: Any = None
        """For the exporter: its previous sample. It goes when the client is evicted."""

    @property
    def requests(self) -> dict[int, int]:
        """Requests by API key; -1 for unknown ones."""
        return self.counted.by_api()

    def join(self) -> None:
        """A connection has become this client's."""
        self.connections_opened += 1
        self.connections += 1
        self.connections_peak = max(self.connections_peak, self.connections)

    def leave(self) -> None:
        """A connection that had joined has ended."""
        self.connections -= 1

    def note_mute(self, *, ignored: bool) -> None:
        """A mute has ended during which throttle compliance was watched."""
        self.mutes += 1
        self.mutes_ignored += ignored
