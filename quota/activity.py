"""What a client did besides using its quotas: requests by API, connections, its library, how it takes throttles.

Write-only for the data path, which adds to plain integers; read by the exporter of usage records.
"""

from __future__ import annotations

from typing import Any


class Activity:
    """Running totals of one client; never reset while the object lives, except where it says so."""

    __slots__ = (
        "connections",
        "connections_opened",
        "connections_peak",
        "mutes",
        "mutes_ignored",
        "requests",
        "sampled",
        "software",
        "touched",
    )

    def __init__(self) -> None:
        self.touched = False
        """It has been active since somebody looked; that one sets it back (`Ledger.wake`)."""
        self.requests: dict[int, int] = {}
        """Requests by API key; -1 for the keys that we do not know."""
        self.connections = 0
        """Open now."""
        self.connections_opened = 0
        self.connections_peak = 0
        """Most open at once; its reader sets it back to those open now."""
        self.software: str | None = None
        """Library and version that a connection gave last (KIP-511), as `name/version`."""
        self.mutes = 0
        """Mutes long enough to see whether the client waits."""
        self.mutes_ignored = 0
        """Those in whose second half it went on sending."""
        self.sampled: Any = None
        """A place for the exporter: what it saw when it looked last. It goes when the client is forgotten."""

    def join(self) -> None:
        """A connection has begun to be this client's."""
        self.connections_opened += 1
        self.connections += 1
        self.connections_peak = max(self.connections_peak, self.connections)

    def leave(self) -> None:
        """A connection that had joined has ended."""
        self.connections -= 1

    def note_mute(self, *, ignored: bool) -> None:
        """A mute is over during which it was watched whether the client waits."""
        self.mutes += 1
        self.mutes_ignored += ignored
