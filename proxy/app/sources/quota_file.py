"""Limits from the configuration file, with the overlay that AlterClientQuotas writes (`quotas.source: file`)."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import trio

from config.model import Config
from config.overlay import overlay_bytes, parse_overlay
from config.parts import Fingerprint, fingerprint
from config.problems import ConfigError, refused
from config.table import to_table
from config.units import as_written
from proxy.app.common.gc_tuning import beside_traffic
from proxy.app.sources import follow
from proxy.app.sources.follow import Aside, FileReader, StuckError, replace_file
from proxy.app.sources.quota_source import MAX_LOGGED, QuotaSource
from quota.admin import Changes, Entity, entity_text
from quota.overlay import Overlay, altered, laid_over
from quota.table import QuotaTable

log = structlog.get_logger("kquota.quotas")

MAX_WAITING: Final = 100
"""Alterations queued behind the one being written; further ones are refused."""
_ABSENT: Final = os.strerror(errno.ENOENT)


class _Job(NamedTuple):
    user: str
    changes: Changes
    done: Callable[[str | None], None]


class FileSource(QuotaSource):
    """The file's limits, overridden by the overlay's. A task carries out alterations one after the other, and waits for
    the disk in a thread. Raises ConfigError for an invalid overlay."""

    def __init__(self, path: Path, config: Config) -> None:
        self._file = path
        self._path = None if config.quota_settings.overlay is None else Path(config.quota_settings.overlay)
        self._seen = Fingerprint(None) if self._path is None else fingerprint(self._path)
        self._overlay: Overlay = {} if self._path is None else _parsed(self._path, self._seen)
        self._in_file = to_table(config)
        self._writing = Aside()
        self._changing = trio.Lock()
        self._jobs, self._next_job = trio.open_memory_channel[_Job](MAX_WAITING)
        super().__init__(config, laid_over(self._in_file, self._overlay))
        self.state.overlay_entities = len(self._overlay)

    async def run(self) -> None:
        """Carry out alterations, and detect edits of the overlay file, until cancelled."""
        if self._path is None:
            await trio.sleep_forever()
        reader = FileReader(self._path, self._seen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, reader)
            if self.rule == "apply":
                nursery.start_soon(self._try_directory, self._path)
            async for job in self._next_job:
                reason: str | None = "internal error of the sidecar, see its log"
                try:
                    async with self._changing:
                        reason = await self._alter(reader, job)
                except Exception:  # an internal error must not end the traffic
                    log.exception("quotas not altered: internal error")
                finally:
                    job.done(reason)

    async def _reload(self, table: QuotaTable) -> None:
        async with self._changing:
            self._in_file = table
            await self._use(self._overlay)

    # ---- QuotaAuthority ---------------------------------------------------------------------------------------------

    @property
    def managed(self) -> str:
        """In a file, which is named."""
        return f"in the file {self._file}"

    def origin(self, entity: Entity, key: str) -> str:
        """In the file, or in the overlay, which takes precedence."""
        if self._overlay.get(entity, {}).get(key) is None:
            return self.managed
        return f"in the overlay {self._path}, by AlterClientQuotas"

    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        """Queue it; see :meth:`QuotaAuthority.apply`."""
        if self._path is None:
            done("quotas.overlay applies only after a restart of the sidecar")
            return
        try:
            self._jobs.send_nowait(_Job(user, changes, done))
        except trio.WouldBlock:
            done(f"{MAX_WAITING} alterations are waiting already")

    def altered_at_the_broker(self) -> None:
        """The broker's quotas are not ours."""

    # ---- overlay ----------------------------------------------------------------------------------------------------

    async def _alter(self, reader: FileReader, job: _Job) -> str | None:
        """Carry out one alteration; returns why it failed, if it did."""
        path = reader.path
        mistakes = await self._look(reader)
        if mistakes is not None:
            return f"{path} is invalid after an edit: {mistakes}"
        overlay = altered(self._overlay, self._in_file, job.changes)
        if overlay != self._overlay:
            try:
                data = await trio.to_thread.run_sync(overlay_bytes, overlay)
            except ValueError as error:
                return f"{path} {error}"
            try:
                # An abandoned writer (no answer, or shutdown) leaves the old file or the new one, whole. If it is the
                # new one after all, the next check finds it.
                await self._writing.run(replace_file, path, data)
            except OSError as error:
                log.error("quotas not altered, the overlay cannot be written", file=str(path), error=str(error))
                return f"{path} cannot be written: {error.strerror or error}"
            reader.seen = Fingerprint(hashlib.sha256(data).hexdigest())
            await self._use(overlay)
        changes = []
        for entity, values in list(job.changes.items())[:MAX_LOGGED]:
            written = {key: "removed" if one is None else as_written(one) for key, one in values.items()}
            changes.append(f"{entity_text(entity)}: " + ", ".join(f"{key} {one}" for key, one in written.items()))
        log.info("quotas altered", user=job.user, entities=len(job.changes), changes=changes)
        return None

    async def _try_directory(self, path: Path) -> None:
        with suppress(StuckError):  # which everything else will report
            if not await self._writing.run(_replaceable, path):
                log.warning("overlay directory not writable: quotas cannot be altered", file=str(path))

    async def _watch(self, reader: FileReader) -> None:
        while True:
            await trio.sleep(follow.POLL_S)
            async with self._changing:
                await self._look(reader)

    async def _look(self, reader: FileReader) -> str | None:
        """Read the overlay file if another program has changed it. Returns what is wrong with it."""
        path = reader.path
        found = await reader.changed()
        if found is None:  # perhaps a file that keeps changing, which has been reported once
            return None if self.state.overlay_successful else "see the log"
        reader.seen = found
        try:
            overlay = await beside_traffic(_parsed, path, found)
        except ConfigError as error:
            self.state.overlay_successful = False
            problems = [str(problem) for problem in error.problems[:MAX_LOGGED]]
            log.error("overlay refused, the last good one stays in force", file=str(path), problems=problems)
            return problems[0]
        if found.error == _ABSENT:
            log.warning("overlay file deleted; its quotas no longer apply", file=str(path))
        self.state.overlay_successful = True
        if overlay != self._overlay:
            await self._use(overlay)
            log.info("overlay read", file=str(path), entities=len(overlay))
        return None

    async def _use(self, overlay: Overlay) -> None:
        """Put the file's limits in force with this overlay; building a table of 10 000 takes 0.1 s, so in a thread."""
        table = await beside_traffic(laid_over, self._in_file, overlay)
        self._overlay = overlay
        self.state.overlay_entities = len(overlay)
        self._put_in_force(table)


def _parsed(path: Path, found: Fingerprint) -> Overlay:
    if found.data is not None:
        return parse_overlay(str(path), found.data)
    if found.error == _ABSENT:
        return {}
    raise refused(str(path), f"cannot be read: {found.error or 'no reason is known'}")


def _replaceable(path: Path) -> bool:
    """Whether :func:`replace_file` may write next to the file, or to the target of a link."""
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK | os.X_OK)
