"""What `make stream-kills` compares: a record that was lost, or written twice, is found."""

from __future__ import annotations

import json
import random
from pathlib import Path

import duckdb
import pytest

from tests.stream_kills import ExactlyOnceError, Place, Sent, Sums, compare, logged
from tests.support.spark_tools import T0_MS


class Topic:
    """In place of a producer."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def send(self, topic: str, line: bytes, partition: int) -> None:
        self.lines.append(line)

    def flush(self) -> None:
        pass


def logs(sink: Path, file: Path) -> None:
    (sink / "_spark_metadata").mkdir(parents=True)
    (sink / "_spark_metadata/0").write_text("v1\n" + json.dumps({"path": file.as_uri(), "action": "add"}) + "\n")


def write(output: Path, rows: list[tuple[Place, Sums]], aside: list[str]) -> None:
    """What a stream would have written."""
    logs(output / "rollups", output / "rollups/a.parquet")
    values = ", ".join(
        f"('{client}', make_timestamp({(T0_MS // 1000 + 60 * minute) * 1_000_000}), {count}, {amount})"
        for (client, minute), (count, amount) in rows
    )
    query = f"SELECT * FROM (VALUES {values}) AS t (client_id, minute, records, produce_bytes)"
    duckdb.connect().execute(f"COPY ({query}) TO '{output}/rollups/a.parquet'")
    logs(output / "set-aside", output / "set-aside/a.json")
    (output / "set-aside/a.json").write_text("".join(json.dumps({"raw": line}) + "\n" for line in aside))


@pytest.fixture
def sent() -> Sent:
    made = Sent(Topic(), random.Random(1))
    made.more(900)
    return made


def test_everything_is_sent_and_some_of_it_twice(sent: Sent) -> None:
    lines = sent.producer.lines
    assert (sent.records, sent.messages, len(sent.bad)) == (900, len(lines), 9)
    assert len(set(lines)) == 909
    assert 1100 < len(lines) < 1300
    assert sum(count for count, _ in sent.sums.values()) == 900
    assert sum(amount for _, amount in sent.sums.values()) == 900 * 901 // 2


def test_what_was_sent_is_what_was_written(sent: Sent, tmp_path: Path) -> None:
    write(tmp_path, list(sent.sums.items()), sent.bad)
    assert logged(tmp_path / "rollups") == (0, [str(tmp_path / "rollups/a.parquet")])
    compare(sent, tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows, aside: (rows[1:], aside), "1 of 151 minutes differ"),
        (lambda rows, aside: ([*rows, rows[0]], aside), "written twice"),
        (lambda rows, aside: ([*rows, (("closing", 900), (1, 0))], aside), "1 of 151 minutes differ"),
        (lambda rows, aside: ([(rows[0][0], (7, rows[0][1][1])), *rows[1:]], aside), "1 of 151 minutes differ"),
        (lambda rows, aside: ([(rows[0][0], (rows[0][1][0], 1)), *rows[1:]], aside), "1 of 151 minutes differ"),
        (lambda rows, aside: (rows, aside[1:]), "9 rows that are no records were sent, 8 set aside"),
        (lambda rows, aside: (rows, [*aside, aside[0]]), "9 rows that are no records were sent, 10 set aside"),
    ],
    ids=["lost", "written twice", "still open", "one more", "other bytes", "row lost", "row twice"],
)
def test_what_is_lost_or_there_twice_is_found(change, told: str, sent: Sent, tmp_path: Path) -> None:
    write(tmp_path, *change(list(sent.sums.items()), sent.bad))
    with pytest.raises(ExactlyOnceError, match=told):
        compare(sent, tmp_path)
