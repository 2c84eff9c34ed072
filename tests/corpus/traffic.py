"""Producers and consumers of several kinds that work until they are told to stop, while the cluster changes.

A process of its own: `python -m tests.corpus.traffic`. To each line "count" on stdin it answers when every producer
has got ten more acknowledgements; after another line it stops, reads everything back and writes its findings as JSON:
the history of all, each topic as a partition of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from tests.corpus.job import Job, wait_for
from tests.lab.kafka import start_tool
from tests.support.fault_tools import read_log
from tests.support.history import Event, History, assert_clean

PAUSE_S = 0.02
ROOT = Path(__file__).parents[2]
Acknowledged = Callable[[], None]


def produce_confluent(
    job: Job, topic: str, stop: threading.Event, acknowledged: Acknowledged, history: History
) -> None:
    """librdkafka, idempotent: finds new leaders by the answers themselves (KIP-951) and by Metadata."""
    from confluent_kafka import Producer

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        history.append(Event("acknowledged", topic, message.value().decode(), topic, message.offset()))
        acknowledged()

    producer = Producer({"bootstrap.servers": job.bootstrap, "enable.idempotence": True})
    number = 0
    while not stop.wait(PAUSE_S):
        history.append(Event("sent", topic, f"{topic}-{number}"))
        producer.produce(topic, f"{topic}-{number}", partition=0, on_delivery=delivered)
        producer.poll(0)
        number += 1
    assert producer.flush(60) == 0, "records not delivered"
    job.learn("librdkafka", {(each.host, each.port) for each in producer.list_topics().brokers.values()})


def produce_aiokafka(job: Job, topic: str, stop: threading.Event, acknowledged: Acknowledged, history: History) -> None:
    """aiokafka, idempotent."""
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        number = 0
        async with AIOKafkaProducer(bootstrap_servers=job.bootstrap, enable_idempotence=True) as producer:
            while not stop.is_set():
                value = f"{topic}-{number}"
                history.append(Event("sent", topic, value))
                told = await producer.send_and_wait(topic, value.encode(), partition=0)
                history.append(Event("acknowledged", topic, value, topic, told.offset))
                acknowledged()
                number += 1
                await asyncio.sleep(PAUSE_S)

    asyncio.run(run())


def produce_java(job: Job, topic: str, stop: threading.Event, acknowledged: Acknowledged, history: History) -> None:
    """Kafka's ConsoleProducer, idempotent. Only its end tells that all was acknowledged: that of the log is watched."""
    from confluent_kafka import Consumer, TopicPartition

    options = ["--bootstrap-server", job.bootstrap, "--topic", topic]
    # The console tool's own defaults are three attempts of 1.5 s each, and a second of lingering.
    options += ["--message-send-max-retries", "1000", "--request-timeout-ms", "30000"]
    old = job.version.startswith("3.")
    option = "--producer-property" if old else "--command-property"
    for setting in ("enable.idempotence=true", "linger.ms=5"):
        options += [option, setting]
    watcher = Consumer({"bootstrap.servers": job.bootstrap, "group.id": job.name("watcher")})
    number = acknowledgements = 0
    tool = "kafka.tools.ConsoleProducer" if old else "org.apache.kafka.tools.ConsoleProducer"
    with start_tool(tool, options, job.version, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        while not stop.wait(PAUSE_S):
            history.append(Event("sent", topic, f"{topic}-{number}"))
            process.stdin.write(f"{topic}-{number}\n")
            process.stdin.flush()
            number += 1
            if number % 10 == 0:
                try:
                    _, end = watcher.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
                except KafkaException:  # no leader at the moment
                    continue
                while acknowledgements < end:
                    acknowledgements += 1
                    acknowledged()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert " ERROR " not in errors, errors
    history += [Event("acknowledged", topic, f"{topic}-{each}", topic) for each in range(number)]
    watcher.close()


PRODUCERS = {"confluent-kafka": produce_confluent, "aiokafka": produce_aiokafka, "java": produce_java}


def main() -> None:
    """Exit code 0 also after failures: they are in the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "prefix", "version"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--brokers", type=int, required=True)
    parser.add_argument("--topic", action="append", required=True, help="one for each producer, with one partition")
    options = parser.parse_args()
    job = Job(options.bootstrap, options.prefix, options.version, options.brokers)
    stop = threading.Event()
    counts = dict.fromkeys(PRODUCERS, 0)
    history: History = []
    failures: dict[str, str] = {}

    def run(name: str, topic: str) -> None:
        def acknowledged() -> None:
            counts[name] += 1

        try:
            PRODUCERS[name](job, topic, stop, acknowledged, history)
        except BaseException:
            failures[name] = traceback.format_exc()

    topics = dict(zip(PRODUCERS, options.topic, strict=True))
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in topics.items()]
    for thread in threads:
        thread.start()
    try:
        for line in sys.stdin:  # "count": answer as soon as every producer has got ten more acknowledgements
            if line.strip() != "count":
                break
            before = dict(counts)
            wait_for(
                f"progress of all after {before}",
                lambda before=before: failures or all(counts[name] >= before[name] + 10 for name in PRODUCERS),
            )
            print(json.dumps({"counts": counts, "failures": failures}), flush=True)
    except TimeoutError:
        failures["progress"] = traceback.format_exc()
    stop.set()
    for thread in threads:
        thread.join(60)
    if not failures:
        for topic in topics.values():
            history += [event._replace(partition=topic) for event in read_log(job.bootstrap, topic)]
    print(json.dumps({"history": history, "failures": failures, "learned": sorted(job.learned)}), flush=True)


class Traffic:
    def __init__(self, job: Job, topics: Sequence[str], **environment: str) -> None:
        command = [sys.executable, "-m", __name__, "--bootstrap", job.bootstrap, "--prefix", job.prefix]
        command += ["--version", job.version, "--brokers", str(job.brokers), *(f"--topic={topic}" for topic in topics)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment, cwd=ROOT
        )

    def _ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process with the clients has ended"
        found: dict[str, Any] = json.loads(answer)
        return found

    def wait_for_progress(self) -> None:
        """Return when every producer has got ten more acknowledgements."""
        answer = self._ask("count")
        assert answer.get("failures") == {}, answer

    def finish(self) -> dict[str, Any]:
        """Stop the clients, check their history, and return their findings."""
        found = self._ask("stop")
        assert found["failures"] == {}
        assert_clean([Event(*event) for event in found["history"]])
        return found

    def close(self) -> None:
        """End the process; not needed after `finish`, harmless then."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    main()
