"""`kquota top`: rows from what the admin port answers, and tables that keep their figures."""

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from proxy.app.cli import top
from proxy.app.cli.main import app


def group(client_id: str, use: float, *, limit: float | None = 1e6, throttle_ms: int = 0, **more: Any) -> Any:
    who = {"kind": "produce", "user": "u", "client_id": client_id, "level": "user+client-id", "mode": "enforce"}
    used = {"limit": limit, "observed": use * (limit or 0), "utilisation": use, "throttled_for_ms": 0, "owed_ms": 0}
    return who | used | {"totals": {"throttle_ms": throttle_ms}} | more


def text_of(found: list[top.Row], width: int, most: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(top.table(found, most, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_top_names_the_worst_state_first() -> None:
    groups = [
        group("a", 0.2),
        group("b", 0.95),
        group("c", 1.2, throttled_for_ms=1234),
        group("d", 1.2, throttled_for_ms=1234, owed_ms=200_000),
        group("e", 4.0, mode="shadow", throttled_for_ms=9),
        group("f", 0.5, limit=None),
    ]
    found = top.rows(groups, {}, 1.0)
    states = ["ok", "near", "throttled 1.2 s", "owes 3 min 20 s", "shadow"]
    assert [(row.client_id, row.state) for row in found] == list(zip("abcde", states, strict=True))


def test_delay_is_shown_per_second_since_the_last_look() -> None:
    first = [group("a", 1.0, throttle_ms=5000)]
    assert top.rows(first, {}, 2.0)[0].delayed is None
    before = top.imposed(first)
    # 1 500 ms more in 2 s: 0.75 s of delay each second
    assert top.rows([group("a", 1.0, throttle_ms=6500)], before, 2.0)[0].delayed == 0.75
    assert top.rows([group("a", 1.0, throttle_ms=0)], before, 2.0)[0].delayed == 0  # the counter is new: no negative


def test_rows_are_filtered_and_sorted() -> None:
    etl = [group("etl", 0.5, throttled_for_ms=10), group("ETL-2", 0.1, user=None, limit=90_000_000.0)]
    found = top.rows([*etl, group("web", 0.9), group("web", 0.3, kind="fetch")], {}, 1.0)

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
        assert all(figure in line for figure in ("1 MB/s", "1.04 MB/s", "104%", "throttled 560 ms")), line
    assert re.search(r"^u +a-client-\S*… .* user\+cl\S*…$", narrow[1]), "all columns, at 80 characters"
    assert all(len(line) <= 80 for line in narrow)
    assert "\x1b" not in "".join(wide)
    assert r"bad\x1b[31m" in wide[2]
    assert len(text_of(found, 80, most=1)) == 2


def test_prints_one_look_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group("a", 0.5), group("b", 1.5), group("free", 0, limit=None)]
    monkeypatch.setattr("proxy.app.cli.top.get_json", lambda *_: {"groups": groups, "total": 3})
    shown = json.loads(CliRunner().invoke(app, ["top", "--json", "--sort", "use"]).stdout)
    assert (shown["admin"], shown["total"]) == ("http://127.0.0.1:9404", 3)
    assert [(row["client_id"], row["use"]) for row in shown["counters"]] == [("b", 1.5), ("a", 0.5)]
