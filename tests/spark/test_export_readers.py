"""What a sidecar wrote of real clients, read by plain Spark, DuckDB and pandas: none of our code, one result."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.lab.kafka import KafkaCluster

LIMIT_S = 60.0
NUMBERS = ("records", "produce_bytes", "fetch_bytes", "requests", "request_seconds")


@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def bytes_in(directory: Path) -> dict[str, list[float]]:
    """client-id -> bytes produced and fetched, in the files that are complete."""
    moved: dict[str, list[float]] = {}
    for file in directory.glob("date=*/hour=*/*.jsonl"):
        for record in map(json.loads, file.read_text().splitlines()):
            sums = moved.setdefault(record["client_id"], [0.0, 0.0])
            for at, name in enumerate(("produce_bytes", "fetch_bytes")):
                sums[at] += record[name]
    return moved


def test_three_readers_agree_on_the_files_of_a_running_sidecar(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """While it runs: files under their names are complete, what is being written is hidden from all three."""
    import duckdb
    import pandas
    from confluent_kafka import Consumer, Producer

    export = {"directory": str(tmp_path), "interval_s": 1, "rotate_s": 2}
    with sidecar(kafka.bootstrap, [{"client-id": "writer", "producer_byte_rate": 10_000_000}], export=export) as proxy:
        bootstrap = {"bootstrap.servers": proxy.bootstrap}
        producer = Producer(bootstrap | {"client.id": "writer"})
        for _ in range(40):
            producer.produce(topic, b"x" * 20_000)
        assert producer.flush(LIMIT_S) == 0
        del producer
        reader = Consumer(bootstrap | {"client.id": "reader", "group.id": topic, "auto.offset.reset": "earliest"})
        reader.subscribe([topic])
        assert len(reader.consume(40, LIMIT_S)) == 40
        reader.close()
        del reader
        deadline = time.monotonic() + LIMIT_S
        while proxy.metric("kquota_connections_open") > 0:
            assert time.monotonic() < deadline, "the clients have gone"
            time.sleep(0.2)
        moved = {
            client: [proxy.metric("kquota_bytes_total", kind=kind, client_id=client) for kind in ("produce", "fetch")]
            for client in ("writer", "reader")
        }
        # The record of the last second is written after it, and its file gets its name two seconds later.
        while bytes_in(tmp_path) != moved or list(tmp_path.rglob(".usage-*")):
            assert time.monotonic() < deadline, "all that clients did is in complete files"
            time.sleep(0.2)

        files = f"{tmp_path}/date=*/hour=*/*.jsonl"
        query = (
            "SELECT client_id, count(*) AS records, sum(produce_bytes), sum(fetch_bytes), sum(requests), "
            "sum(request_seconds) FROM {} GROUP BY client_id ORDER BY client_id"
        )
        with duckdb.connect() as database:
            by_duckdb = database.execute(query.format(f"read_json('{files}')")).fetchall()
        spark.read.json(str(tmp_path)).createOrReplaceTempView("seen_by_spark")
        by_spark = [tuple(row) for row in spark.sql(query.format("seen_by_spark")).collect()]
        spark.catalog.dropTempView("seen_by_spark")
        frame = pandas.concat(pandas.read_json(path, lines=True) for path in tmp_path.glob("date=*/hour=*/*.jsonl"))
        sums = frame.assign(records=1).groupby("client_id")[list(NUMBERS)].sum().sort_index()
        by_pandas = [tuple(row) for row in sums.reset_index().itertuples(index=False)]

    assert len(frame) == sum(row[1] for row in by_spark) >= 2
    assert [row[:5] for row in by_spark] == [row[:5] for row in by_duckdb] == [row[:5] for row in by_pandas]
    busy_s = [row[5] for row in by_spark]
    assert busy_s == pytest.approx([row[5] for row in by_duckdb])
    assert busy_s == pytest.approx([row[5] for row in by_pandas])
    assert {row[0]: list(row[2:4]) for row in by_spark if row[0] in moved} == moved
    assert moved["writer"][0] > 40 * 20_000 < moved["reader"][1]
