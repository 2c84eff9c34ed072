"""Before a real broker: limits on trial delay no client and are measured; invented names do not fill the sidecar."""

from collections.abc import Iterator

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient, fetch_message, fetched_values, produce_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

LIVE = 10_000_000
TRIED = 20_000
"""Bytes/s. The window holds 200 000 B of it: 230 000 B are (23 000 - 20 000) / 20 000 * 10 s = 1.5 s over."""
BOTH = ("producer_byte_rate", "consumer_byte_rate")
QUOTAS = [
    {"client-id": "candidate", **dict.fromkeys(BOTH, LIVE), "candidate": dict.fromkeys(BOTH, TRIED)},
    {"client-id": "shadow", **dict.fromkeys(BOTH, TRIED), "mode": "shadow"},
]
LIMIT_S = 20


@pytest.fixture(scope="module")
def trying(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap, QUOTAS) as running:
        yield running


def would_throttle_s(running: Sidecar, kind: str, limit: str, *, least: float) -> float:
    """The metric, once it has come up to `least`: an exposition is up to a second old."""
    labels = {"kind": kind, "client_id": limit, "limit": limit}
    until(lambda: running.metric("kquota_would_throttle_seconds_total", **labels) >= least)
    return running.metric("kquota_would_throttle_seconds_total", **labels)


@pytest.mark.parametrize("limit", ["candidate", "shadow"])
def test_candidates_and_shadow_limits_delay_nothing(trying: Sidecar, topic: str, limit: str) -> None:
    with RawClient(trying.bootstrap, limit) as client:
        where = client.topic(topic)
        for number in range(4):
            answer = client.ask(produce_message(9, where, [b"%d" % number * 230_000]))
            assert answer.message.throttle_time_ms == 0
            assert answer.message.responses[0].partition_responses[0].error_code == 0
        # 230 kB: 1.5 s; 460 kB: 13 s; 690 kB: 24.5 s; 920 kB: 36 s, all of them from within a few seconds of each other
        assert 36 <= would_throttle_s(trying, "produce", limit, least=36) < 36 + LIMIT_S
        read: list[bytes] = []
        while len(read) < 4:
            answer = client.ask(fetch_message(12, where, offset=len(read)))
            assert answer.message.throttle_time_ms == 0
            read += fetched_values(answer.message)
        assert [len(value) for value in read] == [230_000] * 4
        assert 36 <= would_throttle_s(trying, "fetch", limit, least=36) < 37 + LIMIT_S
    assert trying.metric("kquota_throttled_requests_total", client_id=limit) == 0
    assert trying.metric("kquota_would_throttle_requests_total", client_id=limit, limit=limit) >= 5
    rows = {row["kind"]: row[limit] for row in trying.get("/quotas")["groups"] if row["client_id"] == limit}
    assert rows["produce"]["limit"] == rows["fetch"]["limit"] == TRIED
    assert rows["produce"]["throttle_ms"] >= 36_000
    explained = trying.get(f"/explain?user=ANONYMOUS&client_id={limit}")["kinds"]
    assert {kind["kind"]: kind["throttle_ms"] for kind in explained}["produce"] == 0
