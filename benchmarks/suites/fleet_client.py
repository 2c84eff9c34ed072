"""Which Kafka client carries a fleet's records: how long a record takes to come back, and what waiting for it costs.

    python -m benchmarks.suites.fleet_client [--out FILE] [--seconds N]

Each client runs in a process of its own, alone on the machine but for the broker and seven writers of a record per
second (the rest of a fleet), writes a record per second and reads all of them: kafka-python as the sidecar has it
(proxy/app/fleet/member.py, a thread) and aiokafka in an event loop, with the same times between fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.rig.topics import create_topics
from tests.lab.kafka import KafkaCluster

TOPIC: Final = "kquota-fleet"
OTHERS: Final = 7
EVERY_S: Final = 1.0
RECORD: Final = b"x" * 500
CLIENTS: Final = ("kafka-python", "aiokafka")


def cpu_used_s() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def summary(round_trips_s: list[float], cpu_s: float, seconds: float) -> dict[str, Any]:
    """What one client is judged by."""
    found = sorted(round_trips_s)
    return {
        "records": len(found),
        "median_ms": round(statistics.median(found) * 1000),
        "p95_ms": round(found[int(len(found) * 0.95)] * 1000),
        "longest_ms": round(found[-1] * 1000),
        "cpu_percent": round(cpu_s / seconds * 100, 2),
    }


def with_kafka_python(bootstrap: str, seconds: float) -> dict[str, Any]:
    """As the sidecar does it; the event loop's side looks every 10 ms, so that its own times do not count."""
    from config.sections import FleetSection
    from proxy.app.fleet.member import Exchange

    exchange = Exchange(FleetSection(), [bootstrap])
    exchange.wanted = frozenset({0})
    exchange.start()
    while not exchange.state.connected:
        exchange.publish(0, b"warm-up")
        time.sleep(0.5)
        exchange.take()
    return _measure(lambda data: exchange.publish(0, data), lambda: [data for _, data in exchange.take()], seconds)


def _measure(publish: Callable[[bytes], None], take: Callable[[], list[bytes]], seconds: float) -> dict[str, Any]:
    sent: dict[bytes, float] = {}
    back: list[float] = []
    due = begin = time.monotonic()
    cpu_s = cpu_used_s()
    while (now := time.monotonic()) < begin + seconds:
        if now >= due:
            due += EVERY_S
            data = b"own %d " % len(sent) + RECORD
            sent[data] = now
            publish(data)
        back += [now - sent[data] for data in take() if data in sent]
        time.sleep(0.01)
    return summary(back, cpu_used_s() - cpu_s, seconds)


def with_aiokafka(bootstrap: str, seconds: float) -> dict[str, Any]:
    """The same in an event loop."""
    return asyncio.run(_with_aiokafka(bootstrap, seconds))


async def _with_aiokafka(bootstrap: str, seconds: float) -> dict[str, Any]:
    import aiokafka

    partition = aiokafka.TopicPartition(TOPIC, 0)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="latest", enable_auto_commit=False, fetch_max_wait_ms=200
    )
    await producer.start()
    await consumer.start()
    consumer.assign([partition])
    await consumer.seek_to_end(partition)
    received: list[bytes] = []

    async def read() -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=100, max_records=2000)).values():
                received.extend(record.value or b"" for record in records)
            await asyncio.sleep(0.1)

    reading = asyncio.create_task(read())
    await asyncio.sleep(2)
    received.clear()
    sent: dict[bytes, float] = {}
    back: list[float] = []
    due = begin = time.monotonic()
    cpu_s = cpu_used_s()
    while (now := time.monotonic()) < begin + seconds:
        if now >= due:
            due += EVERY_S
            data = b"own %d " % len(sent) + RECORD
            sent[data] = now
            await producer.send(TOPIC, data, partition=0)
        back += [now - sent[data] for data in received if data in sent]
        received.clear()
        await asyncio.sleep(0.01)
    result = summary(back, cpu_used_s() - cpu_s, seconds)
    reading.cancel()
    await consumer.stop()
    await producer.stop()
    return result


def others(bootstrap: str, done: threading.Event) -> None:
    """The rest of the fleet: as many records per second as it has instances."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    while not done.wait(EVERY_S / OTHERS):
        producer.produce(TOPIC, RECORD, partition=0)
        producer.poll(0)


def run(seconds: float) -> dict[str, Any]:
    """Each client for so long, twice, in turns."""
    with KafkaCluster.start(1, progress=print) as kafka:
        bootstrap = kafka.bootstrap[0]
        create_topics(kafka.bootstrap, {TOPIC: {}})
        done = threading.Event()
        threading.Thread(target=others, args=(bootstrap, done), daemon=True).start()
        results: dict[str, Any] = {name: [] for name in CLIENTS}
        for _ in range(2):
            for name in CLIENTS:
                command = [sys.executable, "-m", __spec__.name, "--client", name, "--bootstrap", bootstrap]
                done_here = subprocess.run(
                    [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=True
                )
                results[name].append(json.loads(done_here.stdout.splitlines()[-1]))
                print(name, results[name][-1], flush=True)
        done.set()
    return {"seconds": seconds, "other_writers": OTHERS, "clients": results}


def main() -> None:
    """Run all, or (as a child) one client."""
    parser = argparse.ArgumentParser(description="Kafka clients for a fleet's records.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--client", choices=CLIENTS)
    parser.add_argument("--bootstrap")
    wanted = parser.parse_args()
    if wanted.client is not None:
        one = with_kafka_python if wanted.client == "kafka-python" else with_aiokafka
        print(json.dumps(one(wanted.bootstrap, wanted.seconds)), flush=True)
        return
    result = run(wanted.seconds)
    if wanted.out is not None:
        wanted.out.write_text(stored.text(result))


if __name__ == "__main__":
    main()
