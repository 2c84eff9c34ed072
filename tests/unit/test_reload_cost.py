"""A reload of many quota entries under traffic: the values that nodes give, and a loop that goes on."""

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.load import load
from config.model import Config
from config.parts import fingerprint
from config.problems import ConfigError
from config.source import PLAIN, Loader, is_merge, parse, unquoted
from proxy.app.common.gc_tuning import beside_traffic, in_steps, is_computing, share_fairly
from proxy.app.run import Sidecar
from proxy.app.sources import watch
from quota.table import QuotaTable

HEAD = 'listen: {port: 0}\nupstream: {bootstrap: ["kafka:9092"]}\nadmin: null\nquotas:\n'
ENTRY = "  - {{client-id: client-{0}, producer_byte_rate: 4M, request_percentage: 50.5}}\n"
PIECES = [
    "", "quotas:", "  entries:", "a: |", "c: [", "]", "  - client-id: b", "  - {user: c, mode: ~}", "- user: b",
    '    - user: "b"', "      mode: '1'", "  -", "      more", "    : x", "  # comment", "'", "---", "...", "?",
    "  - &a", "  - *a", "  - !!str", "  <<: {}", "  mode: 1", "  - user: .5", "    mode: +5",
]  # fmt: skip
SPECIAL = [
    "a: &x {b: 1}\nc: *x\n",
    "base: &x {b: 1}\nc: {d: 2, <<: *x}\n",
    "c: {<<: [{a: 1, b: 1}, {b: 2, c: 2}], c: 3}\n",
    "&k a: 1\n*k : 2\n",
    "a: !!str 1\n",
    "a: ! 1\n",
    '"<<": 1\n',
    "- &a [1, &b [2]]\n- [*a, *b]\n",
]


def text(entries: int) -> str:
    return HEAD + "".join(ENTRY.format(number) for number in range(entries))


def of_nodes(node: yaml.Node | None) -> Any:
    """What the values of a file are by PyYAML's nodes."""
    if isinstance(node, yaml.SequenceNode):
        return [of_nodes(one) for one in node.value]
    if not isinstance(node, yaml.MappingNode):
        return unquoted(node.value) if node is not None and node.tag == PLAIN else None if node is None else node.value
    merged: dict[str, Any] = {}
    for key, value in node.value:
        if is_merge(key):
            parts = of_nodes(value)
            for part in parts if isinstance(parts, list) else [parts]:
                merged = part | merged
    return merged | {key.value: of_nodes(value) for key, value in reversed(node.value) if not is_merge(key)}


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("\n".join) | st.sampled_from(SPECIAL))
def test_files_put_together_of_anything_are_read_as_from_nodes(written: str) -> None:
    try:
        source = parse("q.yaml", written.encode())
    except ConfigError:
        return
    if not source.problems:
        assert source.values == of_nodes(Loader(written).get_single_node())


async def test_collector_is_restored_after_reloads() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ConfigError):
        await beside_traffic(watch._load, "q.yaml", b"quotas: [{}]", "instance")
    assert (await beside_traffic(gc.get_threshold))[1] > usual[1]
    assert gc.get_threshold() == usual
    assert not is_computing()
    with in_steps():
        with in_steps():
            assert gc.get_threshold()[1] > usual[1]
        assert gc.get_threshold()[1] > usual[1]
        assert is_computing()
    assert gc.get_threshold() == usual
    assert not is_computing()


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
            await trio.to_thread.run_sync(watch._load, "q.yaml", text(5000).encode(), "instance")
            done.set()
    finally:
        sys.setswitchinterval(before)
    assert turns >= 10  # it takes 50 ms on a quick machine; a loop that waits for the whole of it turns twice
