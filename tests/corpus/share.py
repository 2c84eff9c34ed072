"""Share groups (KIP-932): records are handed out one by one, acknowledged, released and handed out again."""

from typing import Any

from tests.corpus.job import Job, item
from tests.corpus.records import Record, send_confluent
from tests.corpus.tools import create_topic, read_from_the_start
from tests.support.waiting import until


@item(ShareGroupHeartbeat=1, ShareFetch=1, ShareAcknowledge=1)
def acknowledgements(job: Job) -> Any:
    """Accepted records are done, rejected ones too, released ones come again with a higher delivery count."""
    from confluent_kafka import AcknowledgeType, ShareConsumer

    topic, group = create_topic(job, "share-ack"), job.name("share-ack")
    read_from_the_start(job, group)
    send_confluent(job, topic, [Record(b"%d" % (number % 3), b"%03d" % number) for number in range(30)])
    kinds = {b"0": AcknowledgeType.ACCEPT, b"1": AcknowledgeType.RELEASE, b"2": AcknowledgeType.REJECT}
    deliveries: dict[bytes, int] = {}

    own = {"bootstrap.servers": job.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer(own)
    consumer.subscribe([topic])

    def look() -> bool:
        for message in consumer.poll(0.2) or []:
            assert message.error() is None, message.error()
            value = message.value()
            deliveries[value] = deliveries.get(value, 0) + 1
            again = deliveries[value] > 1
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if again else kinds[message.key()])
        consumer.commit_sync()
        return sum(deliveries.values()) >= 40  # 30, and the ten released ones once more

    until(look, "records")
    consumer.close()
    return sorted(deliveries.items())
