"""Hot reload with real files: changes are applied, bad files refused, the last good one stays in force."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog.testing
import trio

from config.load import load
from config.model import Config
from config.parts import fingerprint
from proxy.app.sources import follow
from proxy.app.sources.watch import ReloadState, Watcher
from quota.entity import Kind
from quota.table import QuotaTable
from tests.support.scripted_broker import until

pytestmark = pytest.mark.usefixtures("quick_files")
LIMIT_S = 30.0
UPSTREAM = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def quota(limit: str | int) -> str:
    return UPSTREAM + f"quotas: [{{client-id: c, producer_byte_rate: {limit}}}]\n"


class Running:
    def __init__(self, path: Path) -> None:
        self.state = ReloadState()
        self.limits: list[float | None] = []
        self.tables: list[QuotaTable] = []
        now = fingerprint(path)
        self.watcher = Watcher(path, load(path), now, self.state, self._apply)

    async def _apply(self, config: Config, table: QuotaTable) -> None:
        self.tables.append(table)
        self.limits.append(table.resolve(Kind.PRODUCE, "u", "c").limit)


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Running]:
    running = Running(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.watcher.run)
        yield running
        with trio.fail_after(LIMIT_S):  # whatever its threads do
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


async def test_does_not_load_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SETTLE_S", 0.5)
    (path := tmp_path / "q.yaml").write_text(quota("1M"))
    running = Running(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.watcher.run)
        with path.open("w") as file:  # each prefix of this is a file that loads, with other limits
            file.write(UPSTREAM)
            for piece in ("quotas:\n", *(f"- {{client-id: {one}, producer_byte_rate: 7}}\n" for one in "ac")):
                file.flush()
                await trio.sleep(0.02)
                file.write(piece)
        await until(lambda: bool(running.limits))
        assert running.limits == [7]
        nursery.cancel_scope.cancel()


async def test_default_scope_takes_a_restart(tmp_path: Path) -> None:
    """The members go on sharing, so a limit must not become each instance's own before they restart."""
    (key := tmp_path / "key").write_text("k" * 32)
    fleet = f"fleet: {{key_file: {key}, default_scope: fleet}}\n"
    (path := tmp_path / "q.yaml").write_text(fleet + quota("1M"))
    async with watching(path) as running:
        for count, text in enumerate((fleet.replace("scope: fleet", "scope: instance"), ""), 1):
            path.write_text(text + quota(count))
            await until(lambda: len(running.limits) == count)  # noqa: B023 - it ends within this turn
            await until(lambda: bool(running.state.restart_settings))
            assert "fleet.default_scope" in running.state.restart_settings
        assert [table.default_scope for table in running.tables] == ["fleet", "fleet"]
        assert running.limits == [1, 2]


@pytest.mark.parametrize("source", ["file", "cluster"])
async def test_says_that_quotas_of_another_source_wait_for_a_restart(tmp_path: Path, source: str) -> None:
    texts = {"file": quota("1M"), "cluster": UPSTREAM + "quotas: {source: cluster}\n"}
    (path := tmp_path / "q.yaml").write_text(texts.pop(source))
    with structlog.testing.capture_logs() as logs:
        async with watching(path) as running:
            path.write_text(*texts.values())
            await until(lambda: bool(running.state.restart_settings))
    found = [line for line in logs if "restart" in line["event"]]
    assert [(line["event"], line["settings"]) for line in found] == [
        ("the file's quotas are not in force: changed settings need a restart", ["quotas.source"])
    ]
