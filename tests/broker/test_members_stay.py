"""Members of a group that heartbeat on the connection they fetch on, far above their limit."""

from __future__ import annotations

import datetime
import time
import uuid

import pytest
from kafka import KafkaProducer
from kio.schema.errors import ErrorCode

from benchmarks.evasion.honest import finish, go_command, start
from proxy.core.wire.primitives import string
from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient, fetch_message
from tests.support.session_tools import decode, encode, kio_message, request
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long  # a minute, and `loopback/test_world` has such members

LIMIT = 20_000
RECORD_BYTES = 500_000
"""25 s of the limit. sarama's session lasts for 10 s."""
SECONDS = 60.0


def test_sarama_s_member_is_not_expelled(kafka: KafkaCluster, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap, batch_size=0) as producer:
        for number in range(6):
            producer.send(topic, b"%012d" % number + b"r" * RECORD_BYTES)
    with sidecar(kafka.bootstrap, [{"client-id": topic, "consumer_byte_rate": LIMIT}]) as running:
        work = {"bootstrap": [running.bootstrap], "topic": topic, "client_id": topic, "reads": 6, "seconds": SECONDS}
        result = finish(start(go_command("sarama"), work))
        throttled_s = running.metric("kquota_throttle_seconds_total", cause="fetch", user="ANONYMOUS", client_id=topic)
    assert (result["joined"], result["errors"]) == (1, [])
    assert result["read"] == list(range(len(result["read"])))
    assert 3 <= len(result["read"]) <= 4, "at 0, 15, 30 and 50 s, as without heartbeats"
    assert throttled_s > 0.7 * SECONDS


FIND_COORDINATOR, CONSUMER_HEARTBEAT = 10, 68
SLICE_MS = 1500
"""A quarter of the session that is assumed, 6 s."""


def epoch_after(client: RawClient, group: str, member: str, epoch: int) -> int:
    """The epoch that the broker answers to a ConsumerGroupHeartbeat (KIP-848) with this one."""
    kio = kio_message("consumer_group_heartbeat", 1, "request")
    joins = {"rebalance_timeout": datetime.timedelta(minutes=1), "subscribed_topic_names": (group,)}
    body = kio.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        topic_partitions=None if epoch else (),
        **({} if epoch else joins),
    )
    until_s = time.monotonic() + client.timeout_s
    while True:
        answer = client.exchange(request(CONSUMER_HEARTBEAT, 1, 1, encode(body), client_id=group))
        result = decode(
            kio_message("consumer_group_heartbeat", 1, "response").ConsumerGroupHeartbeatResponse, answer[9:]
        )
        if result.error_code not in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
            assert result.error_code == ErrorCode.none
            return int(result.member_epoch)
        assert time.monotonic() < until_s, f"no coordinator of {group}"
        client.exchange(request(FIND_COORDINATOR, 0, 1, string(group), client_id=group))
        time.sleep(0.1)


def test_a_member_that_left_is_throttled_for_as_long_as_others(kafka: KafkaCluster, topic: str) -> None:
    """KIP-848: a heartbeat with epoch -1 leaves the group."""
    with KafkaProducer(bootstrap_servers=kafka.bootstrap, batch_size=0) as producer:
        for _ in range(3):
            producer.send(topic, b"r" * RECORD_BYTES)
    member = str(uuid.uuid4())
    with (
        sidecar(kafka.bootstrap, [{"client-id": topic, "consumer_byte_rate": LIMIT}]) as running,
        RawClient(running.bootstrap, client_id=topic) as client,
    ):
        named = client.topic(topic)

        def throttled_ms() -> int:
            return int(client.ask(fetch_message(12, named)).message.throttle_time_ms)

        joined = epoch_after(client, topic, member, 0)
        assert joined > 0
        throttled_ms()
        assert epoch_after(client, topic, member, joined) == joined, "it is a member still"
        assert 0 < throttled_ms() <= SLICE_MS
        assert epoch_after(client, topic, member, -1) == -1
        time.sleep(4 * SLICE_MS / 1000)
        assert throttled_ms() > 2 * SLICE_MS
