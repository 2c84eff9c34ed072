"""Files that are followed beside the configuration: certificates, keys, the static user.

Each is loaded beside the traffic when its content has changed. What cannot be used changes nothing, and is said to be
bad: in the log, with the place and the reason, and by a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from config.fingerprint import fingerprint

log = structlog.get_logger("kquota.files")

POLL_S: Final = 1.0
"""As the configuration file; a renewed certificate's two files are nearly always found together."""


@dataclass(slots=True)
class Followed:
    """Files of one section of the configuration."""

    setting: str
    paths: list[Path]
    load: Callable[[], Any]
    """Puts the files in force. Raises OSError whose text names file and reason; blocking, called in a thread."""
    seen: object = None
    reloads: int = 0
    failures: int = 0
    successful: bool = True


class Follower:
    """Follows files until cancelled."""

    def __init__(self, followed: Iterable[Followed], poll_s: float = POLL_S) -> None:
        """What is in force now was loaded from the files as they are now."""
        self.followed = list(followed)
        self._poll_s = poll_s
        for one in self.followed:
            one.seen = _looks(one.paths)

    async def run(self) -> None:
        """Look again and again."""
        while self.followed:
            await trio.sleep(self._poll_s)
            for one in self.followed:
                await self._look(one)

    async def _look(self, one: Followed) -> None:
        found = await trio.to_thread.run_sync(_looks, one.paths)
        if found == one.seen:
            return
        try:
            await trio.to_thread.run_sync(one.load)
        except OSError as error:
            if found != await trio.to_thread.run_sync(_looks, one.paths):
                return  # somebody is writing them: what they have become is looked at next time
            one.seen = found
            one.failures += 1
            one.successful = False
            log.error("files refused, the last good ones stay in force", setting=one.setting, error=str(error))
            return
        if found != await trio.to_thread.run_sync(_looks, one.paths):
            return  # loaded, perhaps, from files of two kinds: they are loaded again next time
        one.seen = found
        one.reloads += 1
        one.successful = True
        log.info("files reloaded", setting=one.setting)


def _looks(paths: Iterable[Path]) -> list[tuple[str | None, str | None]]:
    return [(found.digest, found.error) for found in map(fingerprint, paths)]
