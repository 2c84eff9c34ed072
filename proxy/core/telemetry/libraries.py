"""Throttle compliance by client library and version: mutes that were watched, and those that were ignored.

Clients choose their own names (KIP-511), so the number of names is bounded: beyond `MAX_LIBRARIES`, the one that was
muted longest ago is evicted, after `on_forget` has been called with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = "unknown"
"""For clients that gave no name: their ApiVersions was older than version 3, or there was none."""
MAX_LIBRARIES: Final = 1000


@dataclass(slots=True)
class LibraryMutes:
    """Running totals of one library and version; a mute counts when it was long enough to be watched."""

    library: str
    version: str
    mutes: int = 0
    mute_ms: float = 0.0
    ignored: int = 0
    """Mutes in whose second half the client went on sending."""
    ignored_ms: float = 0.0
    """Total duration of these."""


class Libraries:
    """All libraries whose clients were muted, at most `MAX_LIBRARIES` of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], LibraryMutes] = OrderedDict()
        self.on_forget: list[Callable[[LibraryMutes], None]] = []

    def note(self, software: str | None, mute_ms: float, *, ignored: bool) -> None:
        """A mute of `mute_ms` was watched; `software` is `name/version` as the connection's client gave it."""
        library, _, version = (software or UNKNOWN).partition("/")
        found = self._known.get((library, version))
        if found is None:
            if len(self._known) >= MAX_LIBRARIES:
                _, gone = self._known.popitem(last=False)
                for listener in self.on_forget:
                    listener(gone)
            found = self._known[library, version] = LibraryMutes(library, version)
        self._known.move_to_end((library, version))
        found.mutes += 1
        found.mute_ms += mute_ms
        if ignored:
            found.ignored += 1
            found.ignored_ms += mute_ms

    def __iter__(self) -> Iterator[LibraryMutes]:
        """The libraries known now; the set may change during the iteration."""
        for name, found in list(self._known.items()):
            if self._known.get(name) is found:
                yield found
