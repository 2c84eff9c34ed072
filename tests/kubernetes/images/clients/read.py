"""Reads a topic to its end: of each pod that has produced, partition, offset and number of each record."""

import argparse
import collections
import json

from confluent_kafka import Consumer, TopicPartition

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap", default="127.0.0.1:9092")
parser.add_argument("--topic", required=True)
options = parser.parse_args()

consumer = Consumer(
    {"bootstrap.servers": options.bootstrap, "group.id": "reader", "enable.auto.commit": False, "client.id": "reader"}
)
partitions = list(consumer.list_topics(options.topic, timeout=30).topics[options.topic].partitions)
ends = {one: consumer.get_watermark_offsets(TopicPartition(options.topic, one), timeout=30)[1] for one in partitions}
consumer.assign([TopicPartition(options.topic, one, 0) for one in partitions])
found: dict[str, list[tuple[int | None, int | None, int]]] = collections.defaultdict(list)
while any(
    place.offset < ends[place.partition] and ends[place.partition] > 0
    for place in consumer.position([TopicPartition(options.topic, one) for one in partitions])
):
    for message in consumer.consume(5000, timeout=1.0):
        if message.error():
            raise SystemExit(str(message.error()))
        host, number, _ = (message.value() or b"").split(b" ", 2)
        found[host.decode()].append((message.partition(), message.offset(), int(number)))
print(json.dumps(found))
