"""Reports from and to an object store: `kquota report` over s3a paths, on an S3 server on loopback."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from quota.record import to_line
from tests.lab.kafka.ports import free_ports
from tests.spark.test_analysis_cli import ROOT, kquota
from tests.support.spark_tools import QUICK, record
from tests.support.waiting import listens, until

SERVER = ROOT / ".venv/s3/bin/moto_server"
BUCKET = "usage"


class Store:
    def __init__(self, url: str) -> None:
        self.url = url
        # The server checks no signature, but without any it shows public objects only.
        unchecked = {"Authorization": "AWS a-user:unchecked"}
        self.client = httpx.Client(base_url=url, timeout=30.0, headers=unchecked)
        self.client.put(f"/{BUCKET}").raise_for_status()

    def put(self, key: str, body: bytes) -> None:
        self.client.put(f"/{BUCKET}/{key}", content=body).raise_for_status()

    def get(self, key: str) -> str:
        return self.client.get(f"/{BUCKET}/{key}").raise_for_status().text

    def keys(self, prefix: str) -> list[str]:
        text = self.client.get(f"/{BUCKET}", params={"list-type": "2", "prefix": prefix}).raise_for_status().text
        return re.findall(r"<Key>([^<]*)</Key>", text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An S3 server of its own with an empty bucket."""
    (port,) = free_ports(1)
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "server.log").open("wb"))
        command = [str(SERVER), "-H", "127.0.0.1", "-p", str(port)]
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(process.terminate)
        until(lambda: listens("127.0.0.1", port) or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        made = Store(f"http://127.0.0.1:{port}")
        stack.enter_context(made.client)
        yield made


def options(store: Store) -> list[str]:
    """The settings with which Spark reaches it, as in docs/analysis.md."""
    conf = {
        **documented(),
        "spark.hadoop.fs.s3a.endpoint": store.url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "a-user",
        "spark.hadoop.fs.s3a.secret.key": "secret",
    }
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]


def documented() -> dict[str, str]:
    """The packages that docs/analysis.md names."""
    text = (ROOT / "docs/analysis.md").read_text()
    found = dict(line.split(None, 1) for line in text.splitlines() if line.startswith("spark.jars."))
    assert set(found) == {"spark.jars.packages", "spark.jars.excludes"}
    return found


def test_reports_from_and_to_an_object_store(store: Store) -> None:
    conf = options(store)
    for hour in range(3):
        rows = [record(3 * hour + n, 3600 * hour + 10 * n, produce_bytes=1000) for n in (1, 2, 3)]
        lines = b"".join(map(to_line, rows)) + b"foreign\n"
        store.put(f"in/date=2025-10-20/hour={hour:02}/usage-i-1.jsonl", lines)
    for attempt in range(2):  # the second takes the place of the first
        result = kquota("report", "usage", "--input", "s3a://usage/in", "--output", "s3a://usage/out", *conf, *QUICK)
        assert result.returncode == 0, result.stderr[-3000:]
        assert "Used: 9 records of 1 instance, of 12 rows read." in result.stdout, attempt
    (row,) = csv.DictReader(io.StringIO(store.get("out/usage/clients.csv")))
    assert (row["user"], row["produce_bytes"], row["records"]) == ("u", "9000", "9")
    assert "Set aside: 3 rows" in store.get("out/usage/report.html")
    aside = [store.get(key) for key in store.keys("out/usage/set-aside/") if key.endswith(".json")]
    assert [json.loads(line)["raw"] for text in aside for line in text.splitlines()] == ["foreign"] * 3
    assert any(key.endswith(".parquet") for key in store.keys("out/usage/clients.parquet/"))
    assert not [key for key in store.keys("out/usage/") if "_staging" in key or ".parts" in key]

    # The stream as well: its checkpoint and the log of what it wrote live in the store.
    places = ["--input", "s3a://usage/in", "--output", "s3a://usage/rolled"]
    stream = ["report", "stream", "--once", *places, *conf, *QUICK]
    result = kquota(*stream)
    assert result.returncode == 0, result.stderr[-3000:]
    # Two hours are over by the records' clock, two full minutes of them: each record is in its minute once.
    assert [key for key in store.keys("rolled/rollups/date=2025-10-20/") if key.endswith(".parquet")]
    before = store.keys("rolled/rollups/")
    assert kquota(*stream).returncode == 0
    again = [key for key in store.keys("rolled/rollups/") if key.endswith(".parquet")]
    assert again == [key for key in before if key.endswith(".parquet")], "nothing new, nothing repeated"
    wrong = kquota("report", "usage", "--input", "s3a://usage/none", "--output", "s3a://usage/out", *conf, *QUICK)
    assert wrong.returncode == 2
    assert "s3a://usage/none: no files there" in wrong.stderr


def rounded(table: str) -> str:
    """A table with ten digits of each number: Spark adds up in any order."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.10g}", table)


@pytest.mark.parametrize("form", ["files", "iceberg"])
def test_a_compacted_store_in_an_object_store(store: Store, form: str) -> None:
    """Two days come, then late and repeated records of the first; a report of the store says what one of all the
    records says."""
    quick = [*options(store), *QUICK]
    for name, start_s in (("2025-10-20", 0), ("2025-10-21", 86_400)):
        rows = [record(start_s + n, start_s + 600 * n, produce_bytes=1000) for n in range(1, 9)]
        store.put(f"in/date={name}/hour=00/usage-i-1.jsonl", b"".join(map(to_line, rows)))
    compact = ["report", "compact", "--input", "s3a://usage/in", "--output", "s3a://usage/store"]
    done = kquota(*compact, "--format", form, *quick)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2025-10-20: 1 file of" in done.stdout, done.stdout
    assert "2025-10-21: 1 file of" in done.stdout

    late = [record(n, 600 * n, produce_bytes=1000) for n in (8, 101, 102)]  # the first is there already
    store.put("in/date=2025-10-20/hour=01/late.jsonl", b"".join(map(to_line, late)))
    done = kquota(*compact, "--format", form, *quick)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "10 records" in done.stdout, done.stdout
    done = kquota(*compact, "--format", form, *quick)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing new" in done.stdout
    assert bool(store.keys("store/records/metadata/version-hint.text")) == (form == "iceberg")
    assert not [key for key in store.keys("store/") if key.endswith("_compacted/lock") or "_staging" in key]

    # `usage` takes the rollups of the store; `capacity` its records.
    for report, tables in (("usage", ["clients"]), ("capacity", ["clusters"])):
        for source in ("in", "store"):
            places = ["--input", f"s3a://usage/{source}", "--output", f"s3a://usage/of-{source}"]
            made = kquota("report", report, *places, *(["--format", form] if source == "store" else []), *quick)
            assert made.returncode == 0, made.stderr[-3000:]
        for table in tables:
            texts = [rounded(store.get(f"of-{source}/{report}/{table}.csv")) for source in ("in", "store")]
            assert texts[0] == texts[1], (report, table)
            assert len(texts[0].splitlines()) > 1
