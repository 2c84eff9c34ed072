"""A few records, written and read by kafka-python: for tests that need records on a topic, not a load on a client."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

LIMIT_S = 60.0
LARGEST_BYTES = 32 << 20


def produce(
    bootstrap: str | Sequence[str],
    topic: str,
    values: Iterable[bytes],
    *,
    client_id: str = "writer",
    one_by_one: bool = False,
) -> None:
    """Write these values and wait until the broker has confirmed all of them."""
    from kafka import KafkaProducer

    with KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        max_request_size=LARGEST_BYTES,
        **({"batch_size": 0} if one_by_one else {}),
    ) as producer:
        sent = []
        for value in values:
            sent.append(producer.send(topic, value))
            if one_by_one:
                sent.pop().get(LIMIT_S)
        producer.flush(LIMIT_S)
        for one in sent:
            one.get(0)


def subscribed(bootstrap: str | Sequence[str], topic: str, **settings: Any) -> Any:
    """kafka-python's consumer of a topic, from its beginning; to be closed, or a context manager."""
    from kafka import KafkaConsumer

    usual = {"auto_offset_reset": "earliest", "metadata_max_age_ms": 1_000}
    return KafkaConsumer(topic, **{"bootstrap_servers": bootstrap, **usual, **settings})


def consume(bootstrap: str | Sequence[str], topic: str, count: int) -> list[Any]:
    """The first `count` records of a topic, or as many as came until none had come for a minute."""
    with subscribed(
        bootstrap,
        topic,
        client_id="reader",
        group_id=None,
        max_partition_fetch_bytes=LARGEST_BYTES,
        consumer_timeout_ms=int(LIMIT_S * 1000),
    ) as consumer:
        return list(itertools.islice(consumer, count))
