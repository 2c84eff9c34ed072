"""Exactly-once output of the stream: its driver and its executors are killed at random, and the output is added up."""

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyspark
from kafka import KafkaProducer

from quota.record import to_line
from tests.lab.kafka import KafkaCluster
from tests.support.spark_tools import T0_MS, record

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "usage"
CLIENTS = 5
INTERVAL_S = 2
MASTER = "local-cluster[1,2,700]"
EXECUTOR = "CoarseGrainedExecutorBackend"
PER_KILL = 900
"""Records that are produced for each kill: some batches' worth, half an hour of the records' time."""
BATCH = 150
BACK = 40
"""A repeat comes up to so many records later: 80 s by the records' clock, well within the stream's delay."""
BAD_EVERY = 100
STEP_LIMIT_S = 180.0
"""A stream that writes no batch for so long, its start included, has stopped working."""
END_LIMIT_S = 60.0

Place = tuple[str, int]
"""A client, and a minute since T0."""
Sums = tuple[int, int]
"""Records and bytes."""


class ExactlyOnceError(Exception):
    """The output is not what was sent, or the stream has stopped working."""


@dataclass
class Sent:
    producer: KafkaProducer
    dice: random.Random
    sums: dict[Place, Sums] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    records: int = 0
    messages: int = 0
    _last: list[bytes] = field(default_factory=list)

    def more(self, count: int) -> None:
        """Produce the next `count` records, a third of them twice."""
        for _ in range(count):
            self.records += 1
            number = self.records
            client = f"c{number % CLIENTS}"
            row = record(number, number * INTERVAL_S, duration_s=INTERVAL_S, client_id=client, produce_bytes=number)
            self._send(to_line(row))
            self._last = [*self._last[-BACK + 1 :], to_line(row)]
            if self.dice.random() < 1 / 3:  # delivery is at least once
                self._send(self.dice.choice(self._last))
            if number % BAD_EVERY == 0:
                self.bad.append(f"no record {number}")
                self._send(self.bad[-1].encode())
            place = (client, (number * INTERVAL_S + INTERVAL_S // 2) // 60)
            before = self.sums.get(place, (0, 0))
            self.sums[place] = (before[0] + 1, before[1] + number)
        self.producer.flush()

    def close(self) -> None:
        """A record two hours later: its minute stays open, all those before it are over."""
        self._send(to_line(record(self.records + 1, self.records * INTERVAL_S + 7200, client_id="closing")))
        self.producer.flush()
        self.producer.close()

    def _send(self, line: bytes) -> None:
        self.producer.send(TOPIC, line, partition=0)
        self.messages += 1


class Driver:
    """The stream's program with all that it starts, in a process group."""

    def __init__(self, arguments: list[str], log: Path, spark_home: Path) -> None:
        command = [
            sys.executable, "-m", "analysis", "stream", *arguments, "--master", MASTER, "--memory", "700m",
            "--conf", "spark.executor.memory=600m", "--conf", "spark.sql.shuffle.partitions=2",
            "--conf", "spark.deploy.maxExecutorRetries=-1", "--conf", "spark.task.maxFailures=20",
        ]  # fmt: skip
        env = os.environ | {"SPARK_HOME": str(spark_home)}
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, start_new_session=True, env=env)

    def executors(self) -> list[int]:
        return [pid for pid, command in self._group() if EXECUTOR in command]

    def kill(self) -> None:
        """kill -9 of everything; returns when none of its processes is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_LIMIT_S)
        deadline = time.monotonic() + END_LIMIT_S
        while any(self._group()):
            if time.monotonic() > deadline:
                raise ExactlyOnceError(f"processes do not end after kill -9: {list(self._group())}")
            time.sleep(0.02)

    def _group(self) -> Iterator[tuple[int, str]]:
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):  # it has ended
                state, _, group = (path / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state != "Z":
                    yield int(path.name), (path / "cmdline").read_text()


def spark_home(directory: Path) -> Path:
    """pyspark's own Spark by links: a worker keeps what its executors need and say in a directory `work` of it."""
    home = directory / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return home


def logged(sink: Path) -> tuple[int, list[str]]:
    """The last batch in the log of a file sink, -1 for none, and the files that the log names: those that count."""
    batch, files = -1, set()
    for path in sink.glob("_spark_metadata/[0-9]*"):
        with suppress(FileNotFoundError):  # compacted away at this moment
            batch = max(batch, int(path.name.split(".")[0]))
            files |= {json.loads(line)["path"].removeprefix("file://") for line in path.read_text().splitlines()[1:]}
    return batch, sorted(files)


def rolled(sink: Path) -> dict[Place, Sums]:
    """What was rolled up. Raises ExactlyOnceError where a client's minute occurs twice."""
    files = logged(sink)[1]
    if not files:
        return {}
    query = "SELECT client_id, epoch(minute)::bigint, records, produce_bytes FROM read_parquet($1)"
    found: dict[Place, Sums] = {}
    for client, second, count, amount in duckdb.connect().execute(query, [files]).fetchall():
        place = (client, (second - T0_MS // 1000) // 60)
        if place in found:
            raise ExactlyOnceError(f"written twice: {place}")
        found[place] = (count, amount)
    return found


def compare(sent: Sent, output: Path) -> None:
    """Raises ExactlyOnceError where what was written is not what was sent."""
    found = rolled(output / "rollups")
    differ = sorted(place for place in sent.sums.keys() | found.keys() if found.get(place) != sent.sums.get(place))
    if differ:
        few = {place: {"sent": sent.sums.get(place), "written": found.get(place)} for place in differ[:3]}
        raise ExactlyOnceError(f"{len(differ)} of {len(sent.sums)} minutes differ, such as {few}")
    lines = [line for file in logged(output / "set-aside")[1] for line in Path(file).read_text().splitlines()]
    aside = Counter(json.loads(line)["raw"] for line in lines)
    if aside != Counter(sent.bad):
        raise ExactlyOnceError(f"{len(sent.bad)} rows that are no records were sent, {aside.total()} set aside")


def run(kills: int, seed: int, limit_s: float, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Produce, kill, add up. Returns what happened; raises ExactlyOnceError."""
    dice = random.Random(seed)
    order = ["driver" if number % 2 == 0 else "executor" for number in range(kills)]
    dice.shuffle(order)
    done: Counter[str] = Counter()
    began = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="kquota-kills-")))
        kafka = stack.enter_context(KafkaCluster.start(1, progress=say))
        sent = Sent(KafkaProducer(bootstrap_servers=kafka.bootstrap), dice)
        home, log, output = spark_home(directory), directory / "log", directory / "out"
        rollups = output / "rollups"

        def beyond(batch: int) -> Callable[[], bool]:
            return lambda: logged(rollups)[0] > batch

        def wait(until: Callable[[], object], driver: Driver, what: str) -> None:
            deadline = min(time.monotonic() + STEP_LIMIT_S, began + limit_s)
            while not until():
                if driver.process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-3000:]
                    after_s = time.monotonic() - began
                    raise ExactlyOnceError(f"{what} after {after_s:.0f} s, {dict(done)} killed: {tail}")
                time.sleep(0.02)

        source = f"kafka://{','.join(kafka.bootstrap)}/{TOPIC}"
        arguments = ["--input", source, "--output", str(output), "--delay", "2 minutes"]
        killed = [*arguments, "--batch", str(BATCH), "--trigger", "100 milliseconds"]
        sent.more(PER_KILL)
        driver = Driver(killed, log, home)
        stack.callback(lambda: driver.kill())  # the one that runs at that time
        for victim in order:
            sent.more(PER_KILL)
            after = logged(rollups)[0]
            wait(beyond(after), driver, "no further batch")
            time.sleep(dice.random() * 2)  # anywhere in a batch
            if victim == "executor":
                wait(driver.executors, driver, "no executor")
                for pid in driver.executors():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            else:
                driver.kill()
                driver = Driver(killed, log, home)
            done[victim] += 1
            say(f"{time.monotonic() - began:4.0f} s: {done.total()} of {kills}, {victim}, after batch {after}")
        after = logged(rollups)[0]
        wait(beyond(after), driver, "no further batch")
        driver.kill()
        early = len(rolled(rollups))
        if not 0 < early < len(sent.sums):
            raise ExactlyOnceError(f"{early} of {len(sent.sums)} minutes at the last kill: it showed nothing")
        sent.close()
        driver = Driver([*arguments, "--once"], log, home)
        with suppress(subprocess.TimeoutExpired):
            driver.process.wait(max(began + limit_s - time.monotonic(), 1))
        if driver.process.poll() != 0:
            raise ExactlyOnceError(f"the last run did not end well: {log.read_text(errors='replace')[-3000:]}")
        compare(sent, output)
        batches = logged(rollups)[0] + 1
    return {
        "seed": seed,
        "kills": dict(done),
        "messages": sent.messages,
        "records": sent.records,
        "bytes": sum(amount for _, amount in sent.sums.values()),
        "minutes_compared": len(sent.sums),
        "minutes_before_the_last_run": early,
        "set_aside": len(sent.bad),
        "batches": batches,
        "seconds": round(time.monotonic() - began),
        "load": round(os.getloadavg()[2], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Exactly-once output of the stream, with kills at random.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="(another one with each run)")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="S", help="it has failed after so long (1800)")
    parser.add_argument("--json", type=Path, help="where the result goes")
    options = parser.parse_args()
    # As Ctrl-C does it: what was started is ended.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    print(f"seed {options.seed}", flush=True)
    try:
        result = run(options.kills, options.seed, options.limit, lambda text: print(text, flush=True))
    except ExactlyOnceError as error:
        print(f"FAILED (seed {options.seed}): {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print("nothing was lost, nothing occurs twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
