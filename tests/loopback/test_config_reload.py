"""Hot reload with real files: changes are applied, bad files refused, the last good one stays in force."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from config.load import load
from config.model import Config
from config.parts import fingerprint
from proxy.app.sources.watch import ReloadState, Watcher
from quota.entity import Kind
from quota.table import QuotaTable
from tests.support.scripted_broker import until

LIMIT_S = 30.0
UPSTREAM = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def quota(limit: str | int) -> str:
    return UPSTREAM + f"quotas: [{{client-id: c, producer_byte_rate: {limit}}}]\n"


class Running:
    def __init__(self, path: Path, timeout_s: float = LIMIT_S) -> None:
        self.state = ReloadState()
        self.limits: list[float | None] = []
        now = fingerprint(path)
        self.watcher = Watcher(
            path, load(path), now, self.state, self._apply, poll_s=0.01, settle_s=0.005, timeout_s=timeout_s
        )

    async def _apply(self, config: Config, table: QuotaTable) -> None:
        self.limits.append(table.resolve(Kind.PRODUCE, "u", "c").limit)


@asynccontextmanager
async def watching(path: Path, timeout_s: float = LIMIT_S) -> AsyncIterator[Running]:
    running = Running(path, timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.watcher.run)
        yield running
        with trio.fail_after(LIMIT_S):  # whatever its threads do
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


async def test_does_not_load_half_written_file(tmp_path: Path) -> None:
    (path := tmp_path / "q.yaml").write_text(quota("1M"))
    running = Running(path)
    running.watcher._settle_s = 0.5
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
