"""A polite producer on kafka-python: wants a steady rate, and waits when it is told a throttle time (KIP-219)."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import kafka

from tests.lab.demo.clients.reporter import Pace, Spec, Tally, payload, ready, report

# The library's own buffer is unbounded: a well-behaved program sets a limit.
BACKLOG_BYTES = 1 << 20


def throttle_max_ms(metrics: dict[str, dict[str, Any]]) -> float | None:
    """The longest throttle among the library's metrics (it looks back about a minute); None before the first."""
    found = [float(group["throttle-time-max"]) for group in metrics.values() if "throttle-time-max" in group]
    longest = max(found, default=0.0)
    return longest if longest > 0 else None  # "nothing yet" is -inf, or 0 for an answer without a throttle


def main() -> None:
    """Produce until stopped."""
    spec = Spec.from_argument()
    assert spec.wanted is not None
    logging.getLogger("kafka").setLevel(logging.ERROR)  # it logs every throttle as a warning
    producer = kafka.KafkaProducer(
        bootstrap_servers=spec.bootstrap, client_id=spec.client_id, linger_ms=20, batch_size=64 * 1024
    )
    producer.partitions_for(spec.topic)
    tally = Tally()

    def refresh(tally: Tally) -> None:
        longest = throttle_max_ms(producer.metrics())
        if longest is not None:
            tally.throttle_max_ms = max(tally.throttle_max_ms or 0.0, longest)

    ready(kafka.__version__)
    report(tally, refresh)
    value = payload()
    room = threading.Semaphore(BACKLOG_BYTES // len(value))

    def acknowledged(_metadata: object) -> None:
        room.release()
        tally.add(len(value))

    def given_up(problem: Exception) -> None:
        room.release()
        tally.fail(problem)

    pace = Pace(spec.wanted, time.monotonic())
    while True:
        room.acquire()
        time.sleep(pace.wait_s(len(value), time.monotonic()))
        producer.send(spec.topic, value).add_callback(acknowledged).add_errback(given_up)


if __name__ == "__main__":
    main()
