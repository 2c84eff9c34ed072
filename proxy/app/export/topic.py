"""Usage records on a Kafka topic, keyed by instance: kafka-python's producer in the exporter's own thread (ADR 0013),
connected to the brokers directly, as exporting usage is not usage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from proxy.app.export.worker import Batch

CLIENT_ID: Final = "kquota-export"
DELIVERY_S: Final = 15.0
"""How long the brokers may take to confirm records before they count as not delivered."""
PORTION: Final = 20
"""Records passed on before the event loop's thread gets the GIL (about 0.5 ms)."""
_PAUSE_S: Final = 0.0005


class TopicSink:
    """Produces records to `topic`. At least once: what is not confirmed in time is sent again."""

    def __init__(
        self, topic: str, instance: str, bootstrap: Sequence[str], security: Callable[[], Mapping[str, Any]]
    ) -> None:
        """`security()`: what a producer needs to connect. Imports kafka-python now (0.3 s)."""
        from kafka import KafkaProducer

        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters of it comes back as an exception
        self._topic = topic
        self._key = instance.encode()
        self._connect = partial(
            KafkaProducer,
            bootstrap_servers=list(bootstrap),
            client_id=CLIENT_ID,
            acks="all",
            enable_idempotence=False,  # needs a permission that producers usually lack; duplicates have their id
            retries=3,
            linger_ms=50,
            batch_size=262_144,
            request_timeout_ms=10_000,
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            max_block_ms=5_000,
            bootstrap_timeout_ms=5_000,
            reconnect_backoff_max_ms=5_000,
            metrics_enabled=False,
        )
        self._security = security
        self._producer: Any = None

    def write(self, batch: Batch) -> None:
        """See :class:`proxy.app.export.worker.Sink`."""
        sent: list[tuple[bytes, Any]] = []
        failure: BaseException | None = None
        try:
            if self._producer is None:
                self._producer = self._connect(**self._security())
            for count, line in enumerate(batch.lines, 1):
                sent.append((line, self._producer.send(self._topic, value=line[:-1], key=self._key)))
                if count % PORTION == 0:
                    time.sleep(_PAUSE_S)
        except Exception as error:  # mostly KafkaError; no error of the library may end the export
            failure = error
        delivered: set[bytes] = set()
        end_s = time.monotonic() + DELIVERY_S
        for line, future in sent:
            try:
                future.get(timeout=max(end_s - time.monotonic(), 0.0))
                delivered.add(line)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            batch.lines = [line for line in batch.lines if line not in delivered]
            self.close()
            raise OSError(f"topic {self._topic}: {type(failure).__name__}: {failure}") from failure

    def tick(self) -> None:
        """Nothing to do: the producer sends on its own."""

    def close(self) -> None:
        """Close the connection. A producer that failed is not reused: its queue would still hold the records."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                producer.close(timeout=0.5)
