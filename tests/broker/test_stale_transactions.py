"""A transaction's end that waits here must not end the transaction after it (a producer without KIP-890's epochs)."""

import time
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar

RATE = 100_000
AGAIN = (14, 15, 16, 51)
"""Errors: the coordinator is loading, not available, another one, or still completes the transaction before."""


def error_of(answer: Any) -> int:
    if not hasattr(answer, "results_by_topic_v3_and_below"):
        return int(answer.error_code)
    (topic,) = answer.results_by_topic_v3_and_below
    (partition,) = topic.results_by_partition
    return int(partition.partition_error_code)


def done(client: RawClient, message: Any) -> Any:
    """The answer, once the coordinator is there; it has no error."""
    until_s = time.monotonic() + client.timeout_s
    while (error := error_of(answer := client.ask(message).message)) in AGAIN and time.monotonic() < until_s:
        time.sleep(0.1)
    assert error == 0
    return answer


def test_an_abort_that_waited_does_not_end_the_next_transaction(kafka: KafkaCluster, topic: str) -> None:
    """The client gave the muted connection up, committed on another one, and is in its next transaction."""
    with (
        sidecar(kafka.bootstrap, [{"client-id": topic, "producer_byte_rate": RATE}]) as running,
        RawClient(running.bootstrap, client_id="other") as client,
    ):
        named = client.topic(topic)
        client.ask(FindCoordinatorRequest(version=1, key=topic, key_type=1))
        own = done(client, InitProducerIdRequest(version=1, transactional_id=topic, transaction_timeout_ms=60_000))
        begin = AddPartitionsToTxnRequest(
            version=1,
            v3_and_below_transactional_id=topic,
            v3_and_below_producer_id=own.producer_id,
            v3_and_below_producer_epoch=own.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )

        def end(committed: bool) -> Any:
            ids = {"producer_id": own.producer_id, "producer_epoch": own.producer_epoch}
            return EndTxnRequest(version=1, transactional_id=topic, committed=committed, **ids)

        done(client, begin)
        with RawClient(running.bootstrap, client_id=topic) as muted:
            muted.ask(produce_message(7, named, [b"r" * (12 * RATE)]))
            muted.send(muted.frame(end(committed=False)))
            time.sleep(0.1)
        done(client, end(committed=True))
        done(client, begin)
        time.sleep(3)  # the mute is over
        done(client, end(committed=True))
