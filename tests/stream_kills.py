"""Exactly once, shown by force: a stream on a real topic whose driver and executors are killed at random.

    python -m tests.stream_kills --kills 20 --json benchmarks/results/stream-kills.json

The stream runs on a small cluster in processes of their own (`local-cluster`: the driver's JVM starts a worker, which
starts executors). Each time either an executor is killed, and Spark starts another one, or the driver with all that it
has started, and the stream is started again; never at the same point of a batch. In the end every minute of every
client is compared with what was produced.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import duckdb
from kafka import KafkaProducer

from deploy.kafka import KafkaCluster
from quota.record import to_line
from tests.support.spark_tools import T0_MS, record

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "usage"
CLIENTS = 5
MASTER = "local-cluster[1,2,700]"
EXECUTOR = "CoarseGrainedExecutorBackend"
PER_KILL = 900
"""Records that are produced for each kill: some batches' worth."""
BATCH = 150
LIMIT_S = 600.0


class Driver:
    """The stream's program with all that it starts, in a process group."""

    def __init__(self, arguments: list[str], log: IO[bytes]) -> None:
        command = [
            sys.executable, "-m", "analysis", "stream", *arguments, "--master", MASTER, "--memory", "700m",
            "--conf", "spark.executor.memory=600m", "--conf", "spark.sql.shuffle.partitions=2",
            "--conf", "spark.deploy.maxExecutorRetries=-1", "--conf", "spark.task.maxFailures=20",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)

    def executors(self) -> list[int]:
        """Executors of the group that run."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                group = int((path / "stat").read_text().rpartition(")")[2].split()[2])
                if group == self.process.pid and EXECUTOR in (path / "cmdline").read_text():
                    found.append(int(path.name))
            except (OSError, ValueError):
                continue  # it has ended
        return found

    def kill(self) -> None:
        """kill -9 of everything."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def committed(output: Path) -> int:
    """How many batches the sink's log has."""
    return max((int(path.name.split(".")[0]) for path in output.glob("rollups/_spark_metadata/[0-9]*")), default=-1)


def rolled(output: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """(client, minute) -> (records, bytes), of files that the sink's log names; each may be there only once."""
    files: set[str] = set()
    for path in output.glob("rollups/_spark_metadata/[0-9]*"):
        for line in path.read_text().splitlines()[1:]:
            files.add(json.loads(line)["path"].removeprefix("file://"))
    if not files:
        return {}
    rows = duckdb.connect().execute(
        "SELECT client_id, epoch(minute)::bigint, records, produce_bytes FROM read_parquet($1)", [sorted(files)]
    )
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for client, second, count, amount in rows.fetchall():
        place = (client, (second - T0_MS // 1000) // 60)
        if place in found:
            raise AssertionError(f"{place} was written twice")
        found[place] = (count, amount)
    return found


def run(kills: int, seed: int) -> dict[str, Any]:
    """Produce, kill, add up. Returns what happened; raises AssertionError where sums differ."""
    dice = random.Random(seed)
    done: Counter[str] = Counter()
    expected: dict[tuple[str, int], tuple[int, int]] = {}
    number = sent = 0
    began = time.monotonic()
    with (
        KafkaCluster.start(1, "4.2.0", progress=print) as kafka,
        TemporaryDirectory(prefix="kquota-kills-") as directory,
        Path(directory, "log").open("ab") as log,
    ):
        output = Path(directory, "out")
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)

        def produce(count: int) -> None:
            nonlocal number, sent
            for _ in range(count):
                number += 1
                one = record(number, number * 2, duration_s=2, client_id=f"c{number % CLIENTS}", produce_bytes=number)
                for _ in range(dice.choice((1, 1, 2))):  # delivery is at least once
                    producer.send(TOPIC, to_line(one), partition=0)
                    sent += 1
                place = (one["client_id"], (number * 2 + 1) // 60)
                before = expected.get(place, (0, 0))
                expected[place] = (before[0] + 1, before[1] + number)
            producer.flush()

        arguments = [
            "--input", f"kafka://{','.join(kafka.bootstrap)}/{TOPIC}", "--output", str(output),
            "--delay", "2 minutes",
        ]  # fmt: skip
        killed = [*arguments, "--batch", str(BATCH), "--trigger", "100 milliseconds"]
        produce(PER_KILL)
        driver = Driver(killed, log)
        try:
            while sum(done.values()) < kills:
                produce(PER_KILL)
                after, deadline = committed(output), time.monotonic() + LIMIT_S
                while committed(output) <= after:  # it has gone on since the last kill
                    if driver.process.poll() is not None or time.monotonic() > deadline:
                        raise AssertionError("the stream does not go on: " + Path(directory, "log").read_text()[-3000:])
                    time.sleep(0.02)
                time.sleep(dice.random() * 2)  # anywhere in a batch
                running = driver.executors()
                if running and dice.random() < 0.5:
                    os.kill(dice.choice(running), signal.SIGKILL)
                    done["executor"] += 1
                else:
                    driver.kill()
                    done["driver"] += 1
                    driver = Driver(killed, log)
                print(f"{sum(done.values())} of {kills}: {dict(done)}, batch {committed(output)}", flush=True)
        finally:
            driver.kill()
        early = len(rolled(output))
        producer.send(TOPIC, to_line(record(number + 1, number * 2 + 7200, client_id="closing")), partition=0)
        producer.flush()
        producer.close()
        last = Driver([*arguments, "--once"], log)
        try:
            if last.process.wait(LIMIT_S) != 0:
                raise AssertionError(Path(directory, "log").read_text()[-3000:])
        finally:
            if last.process.poll() is None:
                last.kill()
        found = rolled(output)
        lost = {place for place, values in expected.items() if found.get(place) != values}
        if lost or found.keys() - expected.keys():
            raise AssertionError(f"{len(lost)} minutes differ, such as {sorted(lost)[:3]}")
        if not 0 < early < len(expected):
            raise AssertionError("all was done before the last kill: it showed nothing")
        batches = committed(output) + 1
    return {
        "kills": dict(done), "seed": seed, "records": number, "messages": sent, "minutes_compared": len(expected),
        "batches": batches, "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Exactly-once output of the stream, with kills at random.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the result goes")
    options = parser.parse_args()
    result = run(options.kills, options.seed)
    print(json.dumps(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
