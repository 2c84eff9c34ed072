"""Follows the files next to the configuration: certificates, keys, the static user. A changed one is loaded off the
event loop; an invalid one changes nothing and is reported, by the log and a metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from config.parts import Fingerprint, fingerprint
from proxy.app.sources.reading import ANSWER_TIMEOUT_S, Aside, StuckError

log = structlog.get_logger("kquota.files")

POLL_S: Final = 1.0
"""As for the configuration file; a renewed certificate's two files are nearly always found together."""
MAX_UNSETTLED: Final = 20
"""Checks in a row at which the files had changed while they were loaded, before that counts as an error."""
_KEEP_CHANGING: Final = f"the files keep changing: they changed during each of {MAX_UNSETTLED} loads in a row"


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
    unsettled: int = 0
    last_error: str | None = None


class Follower:
    """Follows files until cancelled."""

    def __init__(
        self, followed: Iterable[Followed], poll_s: float = POLL_S, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """What is in force was loaded from the files as they are now. `timeout_s`: for an answer of the file system."""
        self.followed = list(followed)
        self._poll_s = poll_s
        self._timeout_s = timeout_s
        for one in self.followed:
            one.seen = _looks(one.paths)

    async def run(self) -> None:
        """Check periodically, with one task for the files of each section."""
        async with trio.open_nursery() as nursery:
            for one in self.followed:
                nursery.start_soon(self._follow, one)

    async def _follow(self, one: Followed) -> None:
        aside = Aside(self._timeout_s)
        while True:
            await trio.sleep(self._poll_s)
            try:
                await self._look(one, aside)
            except StuckError as error:
                one.seen = None  # whatever is there when it answers again is loaded
                _refused(one, f"{one.setting} {', '.join(map(str, one.paths))}: {error}")

    async def _look(self, one: Followed, aside: Aside) -> None:
        found = await aside.run(_looks, one.paths)
        if found == one.seen:
            return
        failure = None
        try:
            await aside.run(one.load)
        except StuckError:
            raise
        except OSError as error:
            failure = str(error)
        except Exception as error:  # an internal error must not end the traffic
            log.exception("files cannot be loaded")
            failure = f"{one.setting}: {error!r}"
        if found != await aside.run(_looks, one.paths):
            # They are being written, or one of them is older than the other: check again next time.
            one.unsettled += 1
            if one.unsettled >= MAX_UNSETTLED:
                _refused(one, f"{one.setting} {', '.join(map(str, one.paths))}: {_KEEP_CHANGING}")
            return
        one.unsettled = 0
        one.seen = found
        if failure is not None:
            one.last_error = None
            _refused(one, failure)
            return
        one.reloads += 1
        one.successful = True
        one.last_error = None
        log.info("files reloaded", setting=one.setting)


def _refused(one: Followed, error: str) -> None:
    """Count and log the error, once while it lasts."""
    one.successful = False
    if error != one.last_error:
        one.last_error = error
        one.failures += 1
        log.error("files refused, the last good ones stay in force", setting=one.setting, error=error)


def _looks(paths: Iterable[Path]) -> list[Fingerprint]:
    return [Fingerprint(found.digest, found.error) for found in map(fingerprint, paths)]
