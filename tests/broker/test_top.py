"""`kquota top`: rows from what the admin port answers, tables that keep their figures, and the command itself."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from proxy.app.cli import top
from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar
from tests.support.web_server import web_server


def group(client_id: str | None, use: float, *, kind: str = "produce", user: str | None = "u", **more: Any) -> Any:
    """A row of /quotas."""
    limit = more.pop("limit", 1_000_000.0)
    totals = {"throttle_ms": more.pop("throttle_ms", 0)}
    return {
        "kind": kind,
        "user": user,
        "client_id": client_id,
        "limit": limit,
        "level": "user+client-id",
        "mode": "enforce",
        "observed": use * (limit or 0),
        "utilisation": use,
        "throttled_for_ms": 0,
        "owed_ms": 0,
        "totals": totals,
    } | more


def text_of(found: list[top.Row], width: int, most: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(top.table(found, most, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_top_names_the_worst_state_first() -> None:
    found = top.rows(
        [
            group("a", 0.2),
            group("b", 0.95),
            group("c", 1.2, throttled_for_ms=1234),
            group("d", 1.2, throttled_for_ms=1234, owed_ms=200_000),
            group("e", 4.0, mode="shadow", throttled_for_ms=9),
            group("f", 0.5, limit=None),
        ],
        {},
        1.0,
    )
    assert [(row.client_id, row.state) for row in found] == [
        ("a", "ok"),
        ("b", "near"),
        ("c", "throttled 1.2 s"),
        ("d", "owes 3 min"),
        ("e", "shadow"),
    ]


def test_delay_is_shown_per_second_since_the_last_look() -> None:
    first = [group("a", 1.0, throttle_ms=5000)]
    assert top.rows(first, {}, 2.0)[0].delayed is None
    before = top.imposed(first)
    # 1 500 ms more in 2 s: 0.75 s of delay each second
    assert top.rows([group("a", 1.0, throttle_ms=6500)], before, 2.0)[0].delayed == 0.75
    assert top.rows([group("a", 1.0, throttle_ms=0)], before, 2.0)[0].delayed == 0  # the counter is new: no negative


def test_rows_are_filtered_and_sorted() -> None:
    found = top.rows(
        [
            group("etl", 0.5, throttled_for_ms=10),
            group("web", 0.9),
            group("ETL-2", 0.1, user=None, limit=90_000_000.0),
            group("web", 0.3, kind="fetch"),
        ],
        {},
        1.0,
    )

    def names(text: str, sort: str) -> list[str | None]:
        return [f"{row.client_id}/{row.kind}" for row in top.chosen(found, text, sort)]

    assert names("", "use") == ["web/produce", "etl/produce", "web/fetch", "ETL-2/produce"]
    assert names("etl", "use") == ["etl/produce", "ETL-2/produce"]
    assert names("", "throttled")[0] == "etl/produce"
    assert names("", "rate")[0] == "ETL-2/produce"
    assert names("", "name") == ["ETL-2/produce", "etl/produce", "web/fetch", "web/produce"]
    assert names("fetch", "use") == ["web/fetch"]


def test_narrow_terminal_cuts_names_not_figures() -> None:
    long = "a-client-id-that-goes-on-and-on-without-an-end-in-sight"
    found = top.rows([group(long, 1.04, throttled_for_ms=560), group("bad\x1b[31m", 0.1)], {}, 1.0)
    wide, narrow = text_of(found, 200), text_of(found, 80)
    assert long in wide[1]
    for line in (wide[1], narrow[1]):
        assert "1 MB/s" in line
        assert "1.04 MB/s" in line
        assert "104%" in line
        assert "throttled 560 ms" in line
    assert re.search(r"^u +a-client-\S*… .* user\+cl\S*…$", narrow[1]), "all columns, at 80 characters"
    assert all(len(line) <= 80 for line in narrow)
    assert "\x1b" not in "".join(wide)
    assert r"bad\x1b[31m" in wide[2]
    assert len(text_of(found, 80, most=1)) == 2


Answer = tuple[int, Any]


@pytest.fixture
def admin() -> Iterator[tuple[str, dict[str, Answer]]]:
    """An admin port that answers what the test puts into the dictionary (path -> status, JSON)."""
    said: dict[str, Answer] = {}

    def answer(path: str) -> tuple[int, bytes]:
        status, body = said.get(path, (404, {}))
        return status, json.dumps(body).encode()

    with web_server(answer) as port:
        yield f"http://127.0.0.1:{port}", said


def test_page_shows_totals_and_omitted_rows(admin: tuple[str, dict[str, Answer]]) -> None:
    url, said = admin
    groups = [group(f"c{number}", 0.1 * number, throttled_for_ms=number > 8) for number in range(10)]
    said["/quotas"] = 200, {"groups": groups, "total": 12}
    said["/connections"] = 200, {"connections": [{"muted_for_ms": 5.0}, {"muted_for_ms": 0.0}], "total": 40}
    ticks = itertools.count(1.0)
    look = top.Look(url, "", "use", clock=lambda: next(ticks))
    console = Console(file=io.StringIO(), width=120)
    console.print(look.page(8, 120))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == f"kquota {url}   connections 40 (1 muted)   counters 12 (1 throttled)"
    assert [line.split()[1] for line in lines[2:6]] == ["c9", "c8", "c7", "c6"]
    assert lines[6] == "… and 6 more"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy.app.cli.main", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_throttled_client_of_a_real_cluster_is_seen(kafka: KafkaCluster, topic: str) -> None:
    quotas = [{"client-id": "greedy", "producer_byte_rate": 20_000}]
    with sidecar(kafka.bootstrap, quotas) as running, RawClient(f"127.0.0.1:{running.port}", "greedy") as client:
        empty = run("--admin", running.admin)
        assert "No traffic on a quota yet." in empty.stdout
        # 1 200 000 B in 10 s are 120 000 B/s, (120 000 - 20 000) / 20 000 * 10 s = 50 s, less what has passed
        client.ask(produce_message(9, client.topic(topic), [b"x" * 1_200_000]))
        shown = run("--admin", running.admin)  # no terminal: once
        assert (shown.returncode, shown.stderr) == (0, "")
        (line,) = [line for line in shown.stdout.splitlines() if "greedy" in line]
        assert re.search(r"\(all\) +greedy +produce +20 kB/s +\d\S* kB/s +█{10} +\d\d\d% +- +throttled \d+\.\d s", line)
        assert line.rstrip().endswith("client-id")
