"""Records the connections of real client libraries to a real broker, as hex in recorded/clients.json: seeds of fuzzing.

    python -m tests.fuzz.record

A sidecar in this process stands in between, so that also the connections that clients are sent to are seen; what it
was told by either side is what is kept, the first bytes of each connection.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import trio

from proxy.core.session.session import Session
from proxy.net.listen import connections as listen_connections
from proxy.net.listen import server
from proxy.net.settings import ProxySettings
from quota.ledger import Ledger
from quota.table import QuotaTable
from tests.fuzz.seeds import RECORDED
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_ports
from tests.support.records import subscribed

MAX_BYTES = 3000
TOPIC = "recorded"


class Recorded(Session):
    """A session that keeps the begin of what it is given."""

    all: list[Recorded]
    __slots__ = ("from_broker", "from_client")

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.from_client, self.from_broker = bytearray(), bytearray()
        self.client_bytes = _kept(self.client_bytes, self.from_client)
        self.broker_bytes = _kept(self.broker_bytes, self.from_broker)
        Recorded.all.append(self)


Recorded.all = []


def _kept(take: Callable[..., Any], kept: bytearray) -> Callable[..., Any]:
    def taken(view: memoryview, *more: Any) -> Any:
        if len(kept) < MAX_BYTES:
            kept.extend(view)
        return take(view, *more)

    return taken


def kafka_python(bootstrap: str) -> None:
    """Admin, producer, and a consumer in a group."""
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="kafka-python")
    admin.create_topics([NewTopic(TOPIC, 2, 1)])
    admin.describe_cluster()
    admin.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="kafka-python")
    producer.send(TOPIC, b"value" * 10, key=b"key").get(30)
    producer.close()
    consumer = subscribed(bootstrap, TOPIC, client_id="kafka-python", group_id="g1")
    while not consumer.poll(1000):
        pass
    consumer.close()


def librdkafka(bootstrap: str) -> None:
    """Producer and consumer of confluent-kafka."""
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "librdkafka"})
    producer.produce(TOPIC, b"value" * 10)
    producer.flush(30)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "client.id": "librdkafka", "group.id": "g2", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    while consumer.poll(1.0) is None:
        pass
    consumer.close()


def aiokafka(bootstrap: str) -> None:
    """A producer, and a consumer without a group."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def work() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="aiokafka")
        await producer.start()
        await producer.send_and_wait(TOPIC, b"value" * 10)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, client_id="aiokafka", auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getone()
        await consumer.stop()

    asyncio.run(work())


def main() -> None:
    """A broker, a sidecar, each library once."""
    listen_connections.Session = Recorded  # type: ignore[attr-defined,misc]
    port, first = free_ports(2)
    bootstrap = f"127.0.0.1:{port}"
    with KafkaCluster.start(1, "4.2.0", progress=print) as cluster:
        host, _, upstream = cluster.bootstrap[0].rpartition(":")
        settings = ProxySettings(
            "127.0.0.1", port, range(first, first + 4), ((host, int(upstream)),), splice_min_bytes=0
        )
        proxy = server.Proxy(settings, Ledger(QuotaTable([])))

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                while not proxy.cluster_reached:  # noqa: ASYNC110 - it sets no event
                    await trio.sleep(0.1)
                for client in (kafka_python, librdkafka, aiokafka):
                    await trio.to_thread.run_sync(client, bootstrap)
                proxy.drain()

        trio.run(run)
    connections = [
        {
            "client": (one.client_ids or ["?"])[0],
            "from_client": bytes(one.from_client[:MAX_BYTES]).hex(),
            "from_broker": bytes(one.from_broker[:MAX_BYTES]).hex(),
        }
        for one in Recorded.all
        if one.from_client
    ]
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / "clients.json").write_text(json.dumps({"kafka": "4.2.0", "connections": connections}, indent=1) + "\n")
    print(f"{len(connections)} connections, {threading.active_count()} threads left")


if __name__ == "__main__":
    main()
