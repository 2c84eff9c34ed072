"""The streaming job: repeats, lateness, bad rows; from files, and from a real topic through a kill -9."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from analysis.errors import WrongUseError
from analysis.streaming import (
    StreamMetrics,
    StreamSettings,
    follow,
    lag_messages,
    late_rows,
    listen_address,
    read_properties,
    start,
)
from quota.record import to_line
from tests.lab.kafka.ports import free_ports
from tests.support.records import subscribed
from tests.support.secure_tools import PASSWORDS
from tests.support.spark_tools import QUICK, T0_MS, json_lines, record, write
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.lab.kafka import KafkaCluster
    from tests.support.certificates import Authority

pytestmark = [pytest.mark.long, pytest.mark.packages, pytest.mark.timeout(900)]  # several starts of Java each
ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S, STOP_LIMIT_S = 240.0, 120.0


def minutes(spark: SparkSession, directory: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """(client, minute after T0) -> (records, bytes) of the rollups that were committed; each must be there once."""
    rows = (
        spark.read.schema("client_id string, minute timestamp, records bigint, produce_bytes bigint")
        .parquet(str(directory / "rollups"))
        .select("client_id", "minute", "records", "produce_bytes")
        .collect()
    )
    zero = datetime.fromtimestamp(T0_MS / 1000)
    found = {
        (row["client_id"], (row["minute"] - zero) // timedelta(minutes=1)): (row["records"], row["produce_bytes"])
        for row in rows
    }
    assert len(found) == len(rows), "a minute was written twice"
    return found


def run_once(spark: SparkSession, source: Path, output: Path) -> tuple[int, int]:
    """Take what is there; (rows read, rows that came too late) of the rollups."""
    queries = start(spark, StreamSettings(str(source), str(output), delay="2 minutes", once=True))
    for query in queries:
        query.awaitTermination()
    progress = [one for query in queries if query.name == "rollups" for one in query.recentProgress]
    return sum(one["numInputRows"] for one in progress), sum(late_rows(one) for one in progress)


def test_drops_repeats_and_late_records_by_record_time(spark: SparkSession, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    with pytest.raises(WrongUseError, match=f"--input {source}: no directory there"):
        run_once(spark, source, output)
    first = [record(1, 0, produce_bytes=100), record(2, 50, produce_bytes=10), record(3, 58, produce_bytes=1)]
    write(source, [*first, first[0], b"foreign\n"], "a.jsonl")  # the third is of the second minute: middle at 63 s
    assert run_once(spark, source, output) == (5, 0)
    assert minutes(spark, output) == {}  # two minutes more may still bring records of the first
    write(
        source, [first[1], record(4, 40, produce_bytes=1000), record(5, 240)], "b.jsonl"
    )  # a repeat, and not too late
    run_once(spark, source, output)
    # The record of 245 s put the clock to 125 s: the first minute is over, and so is the second.
    assert minutes(spark, output) == {("c", 0): (3, 1110), ("c", 1): (1, 1)}
    write(source, [record(6, 30, produce_bytes=7), record(7, 600)], "c.jsonl")  # the first is too late now
    assert run_once(spark, source, output)[1] == 1
    assert minutes(spark, output) == {("c", 0): (3, 1110), ("c", 1): (1, 1), ("c", 4): (1, 0)}
    assert [row["reason"] for row in json_lines(output / "set-aside")] == ["not_a_record"]


def test_each_batch_has_its_own_time(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago the stream was started. A sidecar whose clock is ahead makes no others late."""
    source, output = tmp_path / "in", tmp_path / "out"
    monkeypatch.setattr("analysis.intake.time", SimpleNamespace(time=lambda: T0_MS / 1000))
    now_s = time.time() - T0_MS / 1000
    write(source, [record(1, now_s - 300), record(1, now_s + 3600, instance="ahead")], "a.jsonl")
    assert run_once(spark, source, output) == (2, 0)
    write(source, [record(2, now_s - 30)], "b.jsonl")
    assert run_once(spark, source, output) == (1, 0)
    assert json_lines(output / "set-aside") == []


def test_state_is_bounded_and_exported(spark: SparkSession, tmp_path: Path) -> None:
    """A month, five days to a batch: no more ids and minutes are kept at its end than after the first ones."""
    source, output, days, at_once = tmp_path / "in", tmp_path / "out", 30, 5
    for day in range(days):
        rows = [
            record(day * 24 + hour + 1, day * 86_400 + hour * 3600, client_id=f"c{hour % 3}", produce_bytes=1)
            for hour in range(24)
        ]
        write(source, [*rows, rows[0]], f"{day:02}.jsonl")
        os.utime(source / f"{day:02}.jsonl", (T0_MS / 1000 + day, T0_MS / 1000 + day))  # the order they are read in
    settings = StreamSettings(str(source), str(output), delay="1 hour", once=True, rows_per_batch=at_once)
    metrics, result = StreamMetrics(), []
    queries = start(spark, settings)
    follow(queries, result.append, metrics, every_s=0.1)
    port = metrics.serve(("127.0.0.1", 0))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as printed:
        text = printed.read().decode()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    rollups = next(query for query in queries if query.name == "rollups")
    kept = [sum(one["numRowsTotal"] for one in p["stateOperators"]) for p in rollups.recentProgress]
    assert len(kept) >= days / at_once
    # What came with the last batch is forgotten by the next one: ids and minutes of ten days at most, of thirty.
    assert max(kept[2:]) <= max(kept[:2]) <= 2 * 2 * at_once * 24
    assert values['kquota_stream_input_rows_total{query="rollups"}'] == days * 25
    assert values['kquota_stream_batches_total{query="rollups"}'] >= days / at_once
    assert values['kquota_stream_late_rows_total{query="rollups"}'] == 0
    assert values['kquota_stream_state_rows{query="rollups"}'] == kept[-1]
    last = (T0_MS + ((days - 1) * 24 + 23) * 3_600_000 + 5000) / 1000  # the middle of the last interval
    assert values['kquota_stream_watermark_timestamp_seconds{query="rollups"}'] == last - 3600
    assert not any("lag" in name for name in values)  # of a directory there is none
    found = minutes(spark, output)
    assert sum(count for count, _ in found.values()) == days * 24 - 2  # the last hours are still open


def test_lag_counts_unread_records() -> None:
    kafka = {"latestOffset": {"t": {"0": 900, "1": 40}}, "endOffset": {"t": {"0": 150, "1": 40}}}
    assert lag_messages({"sources": [kafka]}) == 750
    assert lag_messages({"sources": [{"latestOffset": None, "endOffset": {"logOffset": 3}}]}) is None
    assert listen_address("9405") == ("127.0.0.1", 9405)
    assert listen_address("[::]:9405") == ("::", 9405)
    for wrong in ("localhost", "\u00b2", "1:65536"):
        with pytest.raises(WrongUseError, match="expected PORT or HOST:PORT"):
            listen_address(wrong)


def test_signals_stop_the_stream_and_next_start_resumes(
    spark: SparkSession, tmp_path: Path, streams: list[Stream]
) -> None:
    source, output, log = tmp_path / "in", tmp_path / "out", tmp_path / "log"
    for ending in (signal.SIGTERM, signal.SIGINT):
        first = 1 if ending == signal.SIGTERM else 101
        rows = [record(number, number * 60, produce_bytes=number) for number in range(first, first + 20)]
        write(source, rows, f"{first}.jsonl")
        arguments = ["--input", str(source), "--output", str(output), "--delay", "1 minute"]
        stream = Stream(*arguments, "--trigger", "0 seconds", log=log, program=("proxy.app.cli.main", "report"))
        streams.append(stream)
        deadline = time.monotonic() + START_LIMIT_S
        while not committed(output / "rollups") or ("c", first + 15) not in minutes(spark, output):
            assert stream.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        if ending == signal.SIGTERM:  # as `docker stop` and Kubernetes do it: to the program that was started
            stream.process.terminate()
        else:  # as a terminal does it
            os.killpg(stream.process.pid, ending)
        assert stream.end() == 0, log.read_text()
        deadline = time.monotonic() + STOP_LIMIT_S  # the JVM ends when it sees that its Python has
        while stream.left():
            assert time.monotonic() < deadline, "processes are left"
            time.sleep(0.1)
        assert "Traceback" not in log.read_text()
        assert log.read_text().endswith("stopped; the next start resumes here\n")
    write(source, [record(500, 9000)], "last.jsonl")
    run_once(spark, source, output)
    expected = {number for first in (1, 101) for number in range(first, first + 20)}
    assert minutes(spark, output) == {("c", number): (1, number) for number in expected}
    (source / "cut.jsonl.gz").write_bytes(gzip.compress(b"x" * 999)[:20])
    streams.append(Stream(*arguments, "--once", log=tmp_path / "failed"))
    assert streams[-1].end() == 1
    (line,) = re.findall("(?m)^(?!WARNING: Using incub).+", (tmp_path / "failed").read_text())
    assert re.match("error: .+ failed: .+ reading file .+/cut.jsonl.gz", line)  # no stack trace of Java


def test_properties_of_kafka_clients_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text('# ours\n! too\n\n sasl.jaas.config = Module required password="a=b";\nclient.id=\n')
    assert read_properties(str(path)) == {"sasl.jaas.config": 'Module required password="a=b";', "client.id": ""}
    assert read_properties(None) == {}
    path.write_text("a=b\nsecret\n")
    with pytest.raises(WrongUseError, match="line 2: expected name=value") as caught:
        read_properties(str(path))
    assert "secret" not in str(caught.value)
    with pytest.raises(WrongUseError, match="cannot be read"):
        read_properties(str(tmp_path / "none"))


def committed(sink: Path) -> bool:
    """Whether a file sink's log names a file."""
    return any(".parquet" in path.read_text() for path in sink.glob("_spark_metadata/[0-9]*"))


class Stream:
    """`python -m analysis stream`, or another `program`, as a process in a group of its own, and its JVM."""

    def __init__(self, *arguments: str, log: Path, program: Sequence[str] = ("analysis",)) -> None:
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, "stream", *arguments, "--memory", "700m", *QUICK],
                stdout=out, stderr=out, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        self.log = log

    def kill(self) -> None:
        """kill -9 of the JVM, which does the work, and of the process that started it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_LIMIT_S)

    def left(self) -> list[int]:
        """Processes of the group that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def end(self) -> int:
        return self.process.wait(START_LIMIT_S)


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as printed:
        return str(printed.read().decode())


@pytest.fixture
def streams() -> Iterator[list[Stream]]:
    """Whatever is still running at the end is ended."""
    running: list[Stream] = []
    yield running
    for stream in running:
        if stream.process.poll() is None:
            stream.kill()


def consumed(bootstrap: Sequence[str], topic: str) -> list[dict[str, Any]]:
    with subscribed(list(bootstrap), topic, consumer_timeout_ms=4000) as consumer:
        return [json.loads(message.value) for message in consumer]


def test_a_kill_9_loses_nothing_and_repeats_nothing(
    spark: SparkSession,
    kafka_secure: KafkaCluster,
    authority: Authority,
    topic: str,
    tmp_path: Path,
    streams: list[Stream],
) -> None:
    """On a cluster that asks for a login and TLS, so that the properties of Kafka's clients show."""
    from kafka import KafkaProducer

    records = [
        record(
            number,
            number * 2,
            duration_s=2,
            client_id=f"c{number % 5}",
            produce_bytes=number,
            throttle_produce_count=1,
            throttle_produce_seconds=9.0 if number % 5 == 0 else 0.0,
            fetch_group_utilisation_peak={31: 0.95, 32: 0.949}.get(number),  # near its limit, and not quite
        )
        for number in range(1, 1501)
    ]
    expected: Counter[tuple[str, int]] = Counter()
    sums: Counter[tuple[str, int]] = Counter()
    for one in records:
        place = (one["client_id"], (one["start_ms"] + one["end_ms"] - 2 * T0_MS) // 2 // 60_000)
        expected[place] += 1
        sums[place] += one["produce_bytes"]
    closing = record(9999, 7200, client_id="closing")  # its minute stays open; all those before are over
    producer = KafkaProducer(bootstrap_servers=kafka_secure.bootstrap)
    for index, one in enumerate(records):
        producer.send(topic, to_line(one), partition=0)
        if index % 3 == 0:
            producer.send(topic, to_line(one), partition=0)  # at least once
    producer.send(topic, b"not a record", partition=0)
    producer.flush()
    login = {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{PASSWORDS["alice"]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    config = tmp_path / "kafka.properties"
    config.write_text("# alice's\n\n" + "".join(f"{name}={value}\n" for name, value in login.items()))
    server = ",".join(kafka_secure.bootstrap_of("SASL_SSL"))
    arguments = [
        "--input", f"kafka://{server}/{topic}", "--output", str(tmp_path / "out"), "--alerts", f"kafka://{server}/{topic}-alerts",
        "--kafka-config", str(config), "--kafka", "security.protocol=SASL_SSL", "--delay", "2 minutes",
    ]  # fmt: skip
    log = tmp_path / "log"
    (port,) = free_ports(1)
    more = ("--batch", "150", "--trigger", "100 milliseconds", "--metrics", str(port))
    first = Stream(*arguments, *more, log=log)
    streams.append(first)
    deadline = time.monotonic() + START_LIMIT_S
    while not committed(tmp_path / "out/rollups"):  # some of it is written, most of it is not
        assert first.process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    # The rest of the topic is reported as lag, and will be after the next batches. (2 001 messages in 14 batches.)
    lag = until(lambda: re.search(r'^kquota_stream_lag_messages{query="rollups"} (\S+)$', scraped(port), re.MULTILINE))
    assert 0 < float(lag[1]) < 2001
    first.kill()
    before = minutes(spark, tmp_path / "out")
    assert 0 < len(before) < len(expected), "killed too late to show anything"
    producer.send(topic, to_line(closing), partition=0)
    producer.flush()
    producer.close()
    second = Stream(*arguments, "--once", log=log)
    streams.append(second)
    assert second.end() == 0, log.read_text()
    found = minutes(spark, tmp_path / "out")
    assert found == {place: (count, sums[place]) for place, count in expected.items()}
    assert [row["raw"] for row in json_lines(tmp_path / "out/set-aside")] == ["not a record"]
    # c0 was delayed 6 times 9 s in every full minute. A topic may get an alert twice: the id says so.
    alerts = {one["id"]: one for one in consumed(kafka_secure.bootstrap, f"{topic}-alerts")}
    delayed = {place for place, count in expected.items() if place[0] == "c0" and count >= 2}
    assert Counter(one["alert"] for one in alerts.values()) == {"delayed": len(delayed), "near_limit": 1}
    assert {one["client_id"] for one in alerts.values() if one["alert"] == "delayed"} == {"c0"}
    (near,) = (one for one in alerts.values() if one["alert"] == "near_limit")
    assert (near["client_id"], near["utilisation_peak"], near["minute"]) == ("c1", 0.95, "2025-10-20T00:01:00Z")
    assert PASSWORDS["alice"] not in log.read_text()
