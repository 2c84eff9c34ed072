"""Kafka's own performance tools: how they are called and what their summaries say."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from benchmarks.suites.plan import RECORD_BYTES
from tests.lab.kafka import run_tool

TOOL_HEAP = ("-Xms256m", "-Xmx512m")
LARGE_BATCHES = ("batch.size=131072", "linger.ms=5")
"""Producer settings for throughput; Kafka's own default is a batch of 16 384 bytes."""
NO_RECORDS_LIMIT_MS = 60_000
"""The consumer gives up after so long without a record. Its own 10 s are short for joining a group with a broker that
shares one core with it and with others."""
MIB = 1024 * 1024


class UnreadableOutputError(ValueError):
    """A tool printed something else than expected; the message carries it."""


@dataclass(frozen=True, slots=True)
class ProducerSummary:
    """Last line of ProducerPerformance."""

    records: int
    bytes_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    """The line of ConsumerPerformance."""

    records: int
    bytes_per_s: float
    """From start to end, joining the group included."""
    fetch_bytes_per_s: float
    """Without joining the group."""


_PRODUCED = re.compile(
    r"(?P<records>\d+) records sent, [\d.]+ records/sec \((?P<mib>[\d.]+) MB/sec\), "
    r"[\d.]+ ms avg latency, [\d.]+ ms max latency, (?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th"
)


def parse_producer(output: str) -> ProducerSummary:
    """Read the summary, the only line that has percentiles. "MB" there are 2^20 bytes (ProducerPerformance.Stats)."""
    found = None
    for found in _PRODUCED.finditer(output):  # noqa: B007 -- the last one is wanted
        pass
    if found is None:
        raise UnreadableOutputError(f"no summary of ProducerPerformance in: {output[-500:]!r}")
    return ProducerSummary(
        records=int(found["records"]),
        bytes_per_s=float(found["mib"]) * MIB,
        p50_ms=float(found["p50"]),
        p99_ms=float(found["p99"]),
    )


def parse_consumer(output: str) -> ConsumerSummary:
    """Read the table of one row: start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, ...

    Found by the names in the header, because Kafka has added columns over time. "MB" are 2^20 bytes.
    """
    header: list[str] = []
    for line in output.splitlines():
        words = [word.strip() for word in line.split(",")]
        if "MB.sec" in words:
            header = words
        elif header and len(words) == len(header) and words[0][:2].isdigit():
            row = dict(zip(header, words, strict=True))
            try:
                return ConsumerSummary(
                    records=int(row["data.consumed.in.nMsg"]),
                    bytes_per_s=float(row["MB.sec"]) * MIB,
                    fetch_bytes_per_s=float(row["fetch.MB.sec"]) * MIB,
                )
            except (KeyError, ValueError) as error:
                raise UnreadableOutputError(f"{error!r} in the row {line!r} of ConsumerPerformance") from error
    raise UnreadableOutputError(f"no result of ConsumerPerformance in: {output[-500:]!r}")


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    jvm: tuple[str, ...],
    settings: tuple[str, ...] = (),
    security: tuple[str, ...] = (),
    timeout_s: float = 120.0,
) -> ProducerSummary:
    """Produce as fast as it goes, acks=1. `security`: how to speak to the broker, where that is not plain."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)]
    arguments += ["--record-size", str(RECORD_BYTES), "--throughput", "-1"]
    arguments += ["--command-property", "acks=1", *settings, *security]
    done = run_tool(
        "org.apache.kafka.tools.ProducerPerformance", arguments, timeout_s=timeout_s, jvm=(*jvm, *TOOL_HEAP)
    )
    summary = parse_producer(done.stdout)
    if summary.records != records:
        raise UnreadableOutputError(f"{summary.records} of {records} records were sent: {done.stdout[-500:]}")
    return summary


def consume(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    jvm: tuple[str, ...],
    security: tuple[str, ...] = (),
    timeout_s: float = 120.0,
) -> ConsumerSummary:
    """Consume that many records from the beginning, in a group of its own."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)]
    # The tool draws its group from 100 000 names and commits what it has read: of a hundred consumers one may come upon
    # the group of an earlier one, begin at the end of the topic, and wait for records in silence.
    arguments += ["--group", f"bench-{uuid.uuid4().hex}", "--timeout", str(NO_RECORDS_LIMIT_MS)]
    arguments += [word for setting in security for word in ("--command-property", setting)]
    done = run_tool(
        "org.apache.kafka.tools.ConsumerPerformance", arguments, timeout_s=timeout_s, jvm=(*jvm, *TOOL_HEAP)
    )
    summary = parse_consumer(done.stdout)
    if summary.records < records:
        raise UnreadableOutputError(f"{summary.records} of {records} records came: {done.stdout} {done.stderr}")
    return summary
