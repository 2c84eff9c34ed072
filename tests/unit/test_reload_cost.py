"""A reload of many quota entries beside traffic: the same values by both ways of reading, and the loop goes on."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import config.source as source_module
from config.load import load
from config.model import Config
from config.parts import fingerprint
from config.problems import ConfigError
from config.source import parse, plain_values
from proxy.app.common.gc_tuning import beside_traffic, share_fairly, uncollected
from proxy.app.run import Sidecar
from proxy.app.sources import watch
from quota.table import QuotaTable

ENTRY = "  - {{client-id: client-{0}, producer_byte_rate: 4M, request_percentage: 50.5}}\n"


def text(entries: int) -> str:
    head = 'listen: {port: 0}\nupstream: {bootstrap: ["kafka:9092"]}\nadmin: null\nquotas:\n'
    return head + "".join(ENTRY.format(number) for number in range(entries))


def test_fast_path_keeps_places_of_problems() -> None:
    assert len(plain_values(text(100))["quotas"]) == 100, "without nodes, which take twice as long"
    with pytest.raises(ConfigError) as refused:
        watch._load("q.yaml", text(20).replace("client-13,", "client-13, usr: x,").encode())
    assert [str(problem) for problem in refused.value.problems] == [
        "q.yaml:18:28: quotas[13].usr: unknown key, did you mean user?"
    ]


SPECIAL = [
    "a: &x {b: 1}\nc: *x\n",
    "base: &x {b: 1}\nc: {<<: *x, d: 2}\n",
    "a: !!str 1\n",
    "a: !!binary aGVsbG8=\n",
    "? [a, b]\n: c\n",
    "a: 1\na: 2\n",
    "a: ~\n",
    "a: [1\n",
    "a: b\n---\nc: d\n",
    "a: *missing\n",
    '"<<": 1\n',
    "[" * 40 + "]" * 40,
]


def outcome(file: bytes) -> Any:
    try:
        return parse("q.yaml", file).values
    except ConfigError as error:
        return [str(problem) for problem in error.problems]


def _refuse(*_: object) -> None:
    raise ValueError


PIECES = [
    "", "quotas:", "  entries:", "a: |", "c: [", "]", "  - client-id: b", "  - {user: c, mode: ~}", "- user: b",
    '    - user: "b"', "      mode: '1'", "  -", "      more", "    : x", "  # comment", "'", "---", "...", "?",
    "  - &a", "  - *a", "  - !!str", "  <<: {}", "  mode: 1", "  - user: .5", "    mode: +5",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join) | st.sampled_from(SPECIAL))
def test_files_put_together_of_anything_are_read_as_from_nodes(written: str) -> None:
    found = outcome(written.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "plain_values", _refuse)
        assert repr(found) == repr(outcome(written.encode()))


async def test_collector_is_restored_after_reloads() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ConfigError):
        await beside_traffic(watch._load, "q.yaml", b"quotas: [{}]")
    assert (await beside_traffic(gc.get_threshold))[1] > usual[1]
    assert gc.get_threshold() == usual
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


async def test_a_reload_is_applied_in_the_loops_thread(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text(10))
    found = fingerprint(path)
    sidecar = Sidecar(path, load(path), found)
    threads: set[int] = set()

    async def apply(config: Config, table: QuotaTable) -> None:
        threads.add(threading.get_ident())
        await sidecar._apply(config, table)

    watcher = watch.Watcher(path, sidecar.config, found, sidecar.reloads, apply)
    path.write_text(text(20))
    await watcher._reload(fingerprint(path))
    assert (sidecar.reloads.reloads, len(sidecar.ledger.table.entries)) == (1, 20)
    assert threads == {threading.get_ident()}


async def test_the_event_loop_goes_on_while_a_file_is_read() -> None:
    turns = 0
    done = trio.Event()

    async def count_turns() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await trio.sleep(0.001)

    before = sys.getswitchinterval()
    share_fairly()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            await trio.to_thread.run_sync(watch._load, "q.yaml", text(5000).encode())
            done.set()
    finally:
        sys.setswitchinterval(before)
    assert turns >= 10  # it takes 50 ms on a quick machine; a loop that waits for the whole of it turns twice
