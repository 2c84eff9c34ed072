"""Hot reload: a changed file is loaded off the event loop; an invalid one changes nothing, and is reported."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from config.load import load_bytes, warnings_of
from config.model import Config
from config.parts import Fingerprint
from config.problems import ConfigError
from config.table import default_scope, to_table
from proxy.app.common.gc_tuning import beside_traffic
from proxy.app.sources import follow
from quota.table import QuotaTable, Scope

log = structlog.get_logger("kquota.config")

MAX_LOGGED = 10


@dataclass(slots=True)
class ReloadState:
    """What metrics and /readyz say about the configuration."""

    reloads: int = 0
    failures: int = 0
    successful: bool = True
    success_at_s: float = field(default_factory=time.time)
    restart_settings: tuple[str, ...] = ()
    """Settings that differ from the running ones and need a restart."""


Apply = Callable[[Config, QuotaTable], Awaitable[None]]


class Watcher:
    """Watches one file and applies its changes."""

    def __init__(self, path: Path, config: Config, seen: Fingerprint, state: ReloadState, apply: Apply) -> None:
        """`config` is what runs, read when the file had the fingerprint `seen`; `apply` puts another one in force."""
        self._path, self._reader = path, follow.FileReader(path, seen)
        self._running, self._scope = config.restart_settings(), default_scope(config)
        self._state, self._apply = state, apply
        self._forced = trio.Event()

    def force(self) -> None:
        """Load the file now, changed or not (SIGHUP)."""
        self._forced.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            with trio.move_on_after(follow.POLL_S):
                await self._forced.wait()
            forced = self._forced.is_set()
            self._forced = trio.Event()
            found = await self._reader.changed(forced=forced)
            if found is not None:  # a file that keeps changing is reported once
                await self._reload(found)

    async def _reload(self, found: Fingerprint) -> None:
        unchanged = found.digest is not None and found.digest == self._reader.seen.digest
        self._reader.seen = Fingerprint(found.digest, found.error)
        if found.data is None:
            self._refused([f"{self._path}: cannot be read: {found.error}"])
            return
        began_s = time.monotonic()
        try:
            config, table, warnings = await beside_traffic(_load, str(self._path), found.data, self._scope)
        except ConfigError as error:
            self._refused([str(problem) for problem in error.problems])
            return
        except Exception as error:  # an internal error must not end the traffic either
            log.exception("configuration not loaded: internal error", file=str(self._path))
            self._refused([f"{self._path}: cannot be loaded: {error!r}"])
            return
        await self._apply(config, table)
        state = self._state
        state.reloads += 1
        state.successful = True
        state.success_at_s = time.time()
        log.info(
            "configuration reloaded",
            file=str(self._path),
            quotas=len(table.entries),
            changed=not unchanged,
            took_ms=round((time.monotonic() - began_s) * 1000, 1),
        )
        for warning in warnings:
            log.warning("configuration warning", warning=warning)
        wanted = config.restart_settings()
        changed = tuple(sorted(name for name in wanted | self._running if wanted.get(name) != self._running.get(name)))
        state.restart_settings = changed
        if "quotas.source" in changed:
            log.warning("the file's quotas are not in force: changed settings need a restart", settings=list(changed))
        elif changed:
            log.warning(
                "these settings changed but need a restart; changed quotas are already in force", settings=list(changed)
            )

    def _refused(self, problems: list[str]) -> None:
        self._state.failures += 1
        self._state.successful = False
        more = {"more": len(problems) - MAX_LOGGED} if len(problems) > MAX_LOGGED else {}
        log.error(
            "configuration refused, the last good one stays in force",
            file=str(self._path),
            problems=problems[:MAX_LOGGED],
            **more,
        )


def _load(file: str, data: bytes, scope: Scope) -> tuple[Config, QuotaTable, list[str]]:
    """A file's configuration, its limits, and warnings; in a thread, as the work grows with the number of entries.
    `scope`: the running `fleet.default_scope`, which takes a restart."""
    config = load_bytes(file, data)
    table = to_table(config, scope)
    warnings = [str(warning) for warning in warnings_of(config)]
    config.forget_file()
    return config, table, warnings
