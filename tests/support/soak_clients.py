"""Clients that come, do a little and go, over and over, with four libraries; and some that do it wrong."""

from __future__ import annotations

import logging
import random
import socket
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from confluent_kafka import KafkaException

from tests.support.clients import (
    Client,
    Load,
    consume_confluent,
    consume_kafka_python,
    produce_aiokafka,
    produce_confluent,
    produce_kafka_python,
)
from tests.support.fault_tools import IMPATIENT

NAMES = [f"churn-{number}" for number in range(20)]
"""A fixed set: what the sidecar remembers of clients must not grow because there are ever more of them."""
TOPICS = ["soak-a", "soak-b"]
WORK_LIMIT_S = 5
"""What one visit may take before its client gives up: faults strike while it lasts."""


@dataclass
class Churn:
    bootstrap: str
    seed: int
    visits: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Visits that ended in an error of the client: they are allowed to, faults strike all the time."""
    stop: threading.Event = field(default_factory=threading.Event)
    broken: list[str] = field(default_factory=list)


Visit = Callable[[Churn, random.Random], None]


def loaded(client: Client, **settings: Any) -> Visit:
    def visit(churn: Churn, dice: random.Random) -> None:
        records, size = dice.choice([1, 10, 300]), dice.choice([50, 2000])
        load = Load([churn.bootstrap], dice.choice(TOPICS), dice.choice(NAMES), records, size, WORK_LIMIT_S, settings)
        if client(load).errors:
            churn.failures[client.__name__] += 1

    visit.__name__ = client.__name__
    return visit


def librdkafka_admin(churn: Churn, dice: random.Random) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": churn.bootstrap, "client.id": dice.choice(NAMES)} | IMPATIENT)
    name = f"soak-{uuid.uuid4().hex[:8]}"
    for future in admin.create_topics([NewTopic(name, 1, 1)], request_timeout=WORK_LIMIT_S).values():
        future.result(WORK_LIMIT_S)
    admin.list_topics(timeout=WORK_LIMIT_S)
    for future in admin.delete_topics([name], request_timeout=WORK_LIMIT_S).values():
        future.result(WORK_LIMIT_S)


def no_client_at_all(churn: Churn, dice: random.Random) -> None:
    """Connections that say nothing, half a request, a TLS hello, HTTP, or nonsense; ended in order or by a reset."""
    host, _, port = churn.bootstrap.rpartition(":")
    said = dice.choice(
        [b"", b"\0\0\0\x20\0\x12", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n", b"\x7f" * 64]
    )
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(said)
        if dice.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        else:
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                connection.recv(100)


TIMES = {"request_timeout_ms": 5000, "bootstrap_timeout_ms": 10_000}
VISITS: Sequence[Visit] = (
    loaded(produce_confluent, **IMPATIENT, **{"message.timeout.ms": 10_000}),
    loaded(produce_confluent, **IMPATIENT, **{"message.timeout.ms": 10_000, "acks": 0}),
    loaded(consume_confluent, **IMPATIENT),
    loaded(consume_confluent, **IMPATIENT, **{"group.id": "soak", "auto.offset.reset": "latest"}),
    librdkafka_admin,
    loaded(produce_kafka_python, **TIMES, delivery_timeout_ms=10_000, max_block_ms=10_000),
    loaded(consume_kafka_python, **TIMES, group_id=None),
    loaded(produce_aiokafka, request_timeout_ms=5000),
    no_client_at_all,
)


def _come_and_go(churn: Churn, visit: Visit, number: int) -> None:
    dice = random.Random(churn.seed + number)
    while not churn.stop.is_set():
        try:
            visit(churn, dice)
        except (KafkaException, OSError, TimeoutError) as error:
            churn.failures[f"{visit.__name__}: {type(error).__name__}"] += 1
        except Exception:
            churn.broken.append(traceback.format_exc())
            return
        churn.visits[visit.__name__] += 1
        churn.stop.wait(dice.uniform(0.1, 1.0))


@contextmanager
def churning(bootstrap: str, seed: int) -> Iterator[Churn]:
    for name in ("kafka", "aiokafka", "confluent_kafka.admin"):
        import_module(name)  # by one thread: kafka-python deadlocks when several import it at once
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # each visit that a fault strikes would be in the log
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    churn = Churn(bootstrap, seed)
    threads = [
        threading.Thread(target=_come_and_go, args=(churn, visit, number), name=f"churn {number}", daemon=True)
        for number, visit in enumerate(VISITS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield churn
    finally:
        churn.stop.set()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), f"{thread.name} hangs"
