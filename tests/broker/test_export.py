"""Usage records of the real sidecar: they agree with what clients sent and with /metrics, whatever happens to disk,
topic, clock or process."""

import itertools
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from config.load import load_bytes
from proxy.app.export.exporter import Exporter, constants, new_exporter, partition_of
from quota import record
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.lab.kafka import KafkaCluster
from tests.support.fault_tools import create_topic
from tests.support.records import consume, produce, subscribed
from tests.support.sidecars import sidecar
from tests.support.usage_rows import from_line
from tests.support.waiting import LIMIT_S, until

RATE = 100_000
HOUR_S = 1_785_585_600
"""2026-08-01 12:00:00 UTC."""


def rows_of(directory: Path) -> list[record.Row]:
    """The records of all complete files, each one right."""
    lines = itertools.chain.from_iterable(path.read_bytes().splitlines() for path in directory.rglob("usage-*.jsonl"))
    return sorted(map(from_line, lines), key=lambda row: (row["instance"], row["sequence"]))


def send(bootstrap: str, client_id: str, topic: str, sizes: list[int]) -> None:
    """Records of these sizes, each a request of its own."""
    produce(bootstrap, topic, [b"x" * size for size in sizes], client_id=client_id, one_by_one=True)


def consume_once(bootstrap: str, topic: str, sequences: set[int]) -> dict[int, record.Row]:
    """Records by sequence, until all are there. At least once: a busy broker may confirm too late and get one again."""
    found: dict[int, record.Row] = {}
    with subscribed(bootstrap, topic, consumer_timeout_ms=int(LIMIT_S * 1000)) as consumer:
        for one in consumer:
            row = from_line(one.value)
            assert found.setdefault(row["sequence"], row) == row, "a repeat is the same again"
            if found.keys() >= sequences:
                break
    return found


def test_records_match_clients_metrics_and_topic(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KQUOTA_POD_NAMESPACE", "shop")
    export = {"directory": str(tmp_path), "interval_s": 1, "rotate_s": 2, "kafka_topic": f"{topic}-usage", "pod": "p-1"}
    quotas = [{"client-id": "slow", "producer_byte_rate": RATE}]
    sizes = [50_000] * 24  # 1.2 MB: the window of 10 s at 100 kB/s is full at 1 MB
    names = [(kind, client) for kind in ("produce", "fetch") for client in ("slow", "free", "reader")]
    with sidecar(kafka.bootstrap, quotas, export=export) as proxy:
        send(proxy.bootstrap, "slow", topic, sizes)
        send(proxy.bootstrap, "free", topic, sizes[:5])
        assert len(consume(proxy.bootstrap, topic, 29)) == 29
        until(lambda: proxy.metric("kquota_connections_open") == 0, "clients have gone")
        time.sleep(1.1)  # /metrics shares answers for a second
        moved = {(k, c): proxy.metric("kquota_bytes_total", kind=k, client_id=c) for k, c in names}
        requests = proxy.metric("kquota_requests_total")
        throttled = proxy.metric("kquota_throttled_requests_total", cause="produce", client_id="slow")
        waited_s = proxy.metric("kquota_throttle_seconds_total", cause="produce", client_id="slow")
        until(lambda: proxy.metric("kquota_export_records_total", sink="topic") > 0, "records on the topic")
        written_s = proxy.metric("kquota_export_last_success_timestamp_seconds", sink="files")
        assert written_s == pytest.approx(time.time(), abs=LIMIT_S)
    rows = rows_of(tmp_path)
    assert list(tmp_path.rglob(".*")) == []
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float):
                sums[row["client_id"], name] += value
    assert {(k, c): sums[c, f"{k}_bytes"] for k, c in names} == moved
    assert sum(sums[client, "requests"] for client in {row["client_id"] for row in rows}) == requests
    for client, sent in (("slow", sizes), ("free", sizes[:5])):
        assert sums[client, "requests_produce"] == len(sent)
        overhead = sums[client, "produce_bytes"] - sum(sent)
        assert 0 < overhead < 300 * len(sent)
        assert sums[client, "connections_opened"] >= 1
        assert sums[client, "requests_metadata"] >= 1
        assert sums[client, "request_seconds"] > 0
    assert sums["reader", "fetch_bytes"] > sum(sizes)
    assert sums["reader", "requests_fetch"] >= 1
    assert sums["slow", "throttle_produce_count"] == throttled >= 1
    assert sums["slow", "throttle_produce_seconds"] == pytest.approx(waited_s)
    slow = [row for row in rows if row["client_id"] == "slow" and row["produce_bytes"]]
    assert {row["produce_limit"] for row in slow} == {RATE}
    assert max(row["produce_group_utilisation_peak"] for row in slow) >= 1.0
    assert max(row["produce_rate_max"] for row in slow) > RATE
    assert {(row["client_library"], row["namespace"], row["pod"]) for row in rows} == {("kafka-python", "shop", "p-1")}
    for before, after in itertools.pairwise(sorted({(row["start_ms"], row["end_ms"]) for row in rows})):
        assert before[1] <= after[0], "intervals do not overlap"
    found = consume_once(",".join(kafka.bootstrap), f"{topic}-usage", {row["sequence"] for row in rows})
    assert found == {row["sequence"]: row for row in rows}
    (first,) = consume(",".join(kafka.bootstrap), f"{topic}-usage", 1)
    assert first.key == rows[0]["instance"].encode()


def test_kill_loses_at_most_one_interval_and_no_half_file(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    from kafka import KafkaProducer

    export = {"directory": str(tmp_path), "interval_s": 1, "rotate_s": 3}
    sent = []
    with sidecar(kafka.bootstrap, export=export) as proxy:
        producer = KafkaProducer(bootstrap_servers=proxy.bootstrap, client_id="c", batch_size=0)
        until_s = time.monotonic() + 6
        # Until some files are complete, and in the middle of another one.
        while time.monotonic() < until_s or not all(any(tmp_path.rglob(name)) for name in ("usage-*", ".usage-*.open")):
            producer.send(topic, b"x" * 1000).get(LIMIT_S)
            sent.append(time.time())
            time.sleep(0.01)
        killed_s = time.time()
        proxy.kill()
        producer.close(timeout=0)
    readable = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert readable, "some files were complete"
    for path in readable:
        assert path.read_bytes().endswith(b"\n")
        for line in path.read_bytes().splitlines():
            from_line(line)
    assert list(tmp_path.rglob(".*.open")), "it was killed over an open file"
    with sidecar(kafka.bootstrap, export=export) as proxy:
        send(proxy.bootstrap, "c", topic, [1000])
    assert list(tmp_path.rglob(".*")) == []
    rows = rows_of(tmp_path)
    assert len({(row["instance"], row["sequence"]) for row in rows}) == len(rows)
    by_instance: dict[str, list[record.Row]] = {}
    for row in sorted(rows, key=lambda row: row["end_ms"]):
        by_instance.setdefault(row["instance"], []).append(row)
    first, second = by_instance.values()
    assert [row["sequence"] for row in first] == list(range(1, len(first) + 1))
    assert sum(row["requests_produce"] for row in second) == 1
    # One interval of a second, and what a busy machine needs to write it down.
    last_s = first[-1]["end_ms"] / 1000
    assert killed_s - last_s < 1.0 + 2.0
    recorded = sum(row["requests_produce"] for row in first)
    assert sum(1 for at_s in sent if at_s < last_s - 0.5) <= recorded <= len(sent)


@pytest.mark.long
def test_blocked_export_topic_slows_no_client(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """The topic's limit on the size of messages refuses every record, until it is raised."""
    dead = f"{topic}-usage"
    create_topic(kafka.bootstrap[0], dead)
    alter(kafka, dead, "max.message.bytes", "500")
    export = {"directory": str(tmp_path), "interval_s": 1, "rotate_s": 2, "kafka_topic": dead}
    with sidecar(kafka.bootstrap, export=export) as proxy:
        send(proxy.bootstrap, "c", topic, [1000])
        until(lambda: proxy.metric("kquota_export_errors_total", sink="topic") > 0, "an error is counted")
        until(lambda: proxy.metric("kquota_export_lag_seconds", sink="topic") > 1, "the lag grows")
        began = time.monotonic()
        send(proxy.bootstrap, "c", topic, [1000] * 100)
        assert time.monotonic() - began < LIMIT_S / 2
        until(lambda: proxy.metric("kquota_export_records_total", sink="files") >= 2, "files go on")
        alter(kafka, dead, "max.message.bytes", "1000000")
        # By now the next try is up to 30 s away, and may take as long as brokers have to confirm it.
        until(lambda: proxy.metric("kquota_export_lag_seconds", sink="topic") == 0, "the lag is gone", 3 * LIMIT_S)
        assert proxy.metric("kquota_export_dropped_total") == 0
    rows = {row["sequence"]: row for row in rows_of(tmp_path)}
    assert consume_once(",".join(kafka.bootstrap), dead, set(rows)) == rows


def alter(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    from tests.lab.kafka import run_tool

    entity = ["--entity-type", "topics", "--entity-name", topic, "--alter", "--add-config", f"{name}={value}"]
    run_tool("kafka.admin.ConfigCommand", ["--bootstrap-server", cluster.bootstrap[0], *entity])


@pytest.mark.parametrize(
    ("wall_s", "left_s"), [(1_785_585_600.0, 10.0), (1_785_585_603.0, 7.0), (1_785_585_607.0, 13.0)]
)
async def test_intervals_end_on_the_wall_clock_s_raster(
    wall_s: float, left_s: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.app.export.exporter.wall_s", lambda: wall_s)
    exporter = Exporter(Ledger(QuotaTable()), [], 10.0, {"instance": "i", "kquota_version": "1"})
    assert exporter._end_of_interval() - trio.current_time() == pytest.approx(left_s)


def test_interval_just_before_the_hour_belongs_to_the_hour() -> None:
    assert partition_of(HOUR_S * 1000 - 1) == "date=2026-08-01/hour=11"
    assert partition_of(HOUR_S * 1000 + 3998) == "date=2026-08-01/hour=12"


def test_records_name_their_sidecar() -> None:
    config = load_bytes(
        "k.yaml", b'{upstream: {bootstrap: ["k:9092"]}, export: {directory: /tmp/u, cluster_id: prod, interval_s: 5}}'
    )
    assert config.export is not None
    environment = {"KQUOTA_CLUSTER_ID": "other", "KQUOTA_POD_NAME": "p", "KQUOTA_POD_NAMESPACE": ""}
    found = constants(config.export, "i", "1", environment)
    assert found == {"instance": "i", "kquota_version": "1", "cluster_id": "prod", "namespace": None, "pod": "p"}
    assert constants(config.export, "i", "1", {})["pod"]
    assert new_exporter(load_bytes("k.yaml", b'upstream: {bootstrap: ["k:9092"]}'), Ledger(QuotaTable()), "1") is None


def test_ends_in_time_while_the_broker_hangs(kafka: KafkaCluster, topic: str) -> None:
    """`sidecar` checks that it exits with 0 and logs no traceback."""
    with sidecar(kafka.bootstrap, export={"kafka_topic": f"{topic}-usage", "interval_s": 1}) as proxy:
        send(proxy.bootstrap, "c", topic, [1000])
        until(lambda: proxy.metric("kquota_export_records_total", sink="topic") > 0, "records on the topic")
        send(proxy.bootstrap, "c", topic, [1000])
        (broker,) = kafka.nodes
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            until(lambda: proxy.metric("kquota_export_pending_bytes", sink="topic") > 0)
            proxy.stop()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert proxy.logged("usage records were not all written in time")
