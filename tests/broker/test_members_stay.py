"""Members of a group that heartbeat on the connection they fetch on, far above their limit."""

import pytest

from benchmarks.evasion.honest import finish, go_command
from benchmarks.evasion.run import start
from tests.lab.kafka import KafkaCluster
from tests.support.records import produce
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.long  # a minute, and `loopback/test_world` has such members

LIMIT = 20_000
RECORD_BYTES = 500_000
"""25 s of the limit. sarama's session lasts for 10 s."""
SECONDS = 60.0


def test_sarama_s_member_is_not_expelled(kafka: KafkaCluster, topic: str) -> None:
    values = (b"%012d" % number + b"r" * RECORD_BYTES for number in range(6))
    produce(kafka.bootstrap, topic, values, one_by_one=True)
    with sidecar(kafka.bootstrap, [{"client-id": topic, "consumer_byte_rate": LIMIT}]) as running:
        work = {"bootstrap": [running.bootstrap], "topic": topic, "client_id": topic, "reads": 6, "seconds": SECONDS}
        result = finish(start(go_command("sarama"), work))
        throttled_s = running.metric("kquota_throttle_seconds_total", cause="fetch", user="ANONYMOUS", client_id=topic)
    assert (result["joined"], result["errors"]) == (1, [])
    assert result["read"] == list(range(len(result["read"])))
    assert 3 <= len(result["read"]) <= 4, "at 0, 15, 30 and 50 s, as without heartbeats"
    assert throttled_s > 0.7 * SECONDS
