"""Faults of the system around the sidecar, with a real broker: names that do not resolve, and clocks that are set."""

import json
import shutil
import time
from glob import glob
from pathlib import Path

import pytest
import yaml

from tests.lab.kafka import KafkaCluster
from tests.support.fault_tools import create_topic
from tests.support.programs import program
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar
from tests.support.waiting import until

pytestmark = pytest.mark.long


def test_set_clock_changes_no_quota(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """A day forward, two days back: throttles last as long as announced, and no usage is lost or counted twice."""
    program("faketime", "faketime")
    (library,) = glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    clock, usage = tmp_path / "clock", tmp_path / "usage"
    clock.write_text("+0")
    faked = {"FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": 1, "FAKETIME_DONT_FAKE_MONOTONIC": 1}
    before = ["env", f"LD_PRELOAD={library}", *(f"{name}={value}" for name, value in faked.items())]
    create_topic(kafka.bootstrap[0], topic)
    began_s = time.monotonic()
    with sidecar(
        kafka.bootstrap,
        [{"client-id": "paced", "producer_byte_rate": 100_000}],
        before=before,
        export={"directory": str(usage), "interval_s": 1, "rotate_s": 1},
    ) as proxy:
        with RawClient(("127.0.0.1", proxy.port), "paced") as client:
            target = client.topic(topic)
            client.ask(produce_message(9, target, [b"x" * 990_000]))  # as much as the window of 10 s lets pass
            for step, dates in (("+1d", 2), ("-1d", 3), ("+0", 3)):
                set_clock(clock, step)
                with RawClient(("127.0.0.1", proxy.port), "passing"):
                    pass  # its end is a line in the log
                until(lambda: len(dates_of(proxy.log)) == dates, "a line of this day")  # noqa: B023
                # 50 000 B at 100 000 B/s: half a second more each time, however the clock is set. On a slow machine the
                # window has made room meanwhile.
                for _ in range(30):
                    answer = client.ask(produce_message(9, target, [b"x" * 50_000]))
                    told_ms = answer.message.throttle_time_ms
                    assert told_ms <= 5000, step
                    if told_ms >= 300:
                        break
                assert told_ms >= 300, step
                held_s = client.ask(produce_message(9, target, [b"y"])).first_byte_at - answer.last_byte_at
                assert held_s >= told_ms / 1000 - 0.05, step
                assert held_s < told_ms / 1000 + 10, step
            text = yaml.safe_load(proxy.config.read_text())
            text["quotas"][0]["producer_byte_rate"] = 50_000
            set_clock(clock, "-1d")
            proxy.config.write_text(yaml.safe_dump(text))  # noticed by its content, not by its time
            until(lambda: proxy.metric("kquota_quota_limit", client_id="paced") == 50_000, "the reload")
        total = proxy.metric("kquota_bytes_total", kind="produce", client_id="paced")
    took_s = time.monotonic() - began_s
    rows = [json.loads(line) for path in usage.rglob("*.jsonl") for line in path.read_text().splitlines()]
    mine = [row for row in rows if row["client_id"] == "paced"]
    assert sum(row["produce_bytes"] for row in mine) == total
    assert sum(row["duration_s"] for row in mine) <= took_s
    assert all(0 < row["duration_s"] < 30 for row in rows)
    assert len({row["sequence"] for row in rows}) == len(rows)


def dates_of(log: Path) -> set[str]:
    """Days that lines of the log bear; a line that is being written is left out."""
    return {json.loads(line)["timestamp"][:10] for line in log.read_text().split("\n")[:-1]}


def set_clock(file: Path, offset: str) -> None:
    """At once, also for a client that is just reading."""
    other = file.with_suffix(".new")
    other.write_text(offset)
    shutil.move(other, file)
