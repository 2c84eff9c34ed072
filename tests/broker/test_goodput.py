"""Real producers that wait longer for their turn than they wait for an answer."""

import pytest

from benchmarks.suites.goodput import Row, measure
from tests.lab.kafka import KafkaCluster

pytestmark = pytest.mark.long  # loopback/test_world has such producers, simulated


def test_no_producer_times_out_in_its_queue(kafka: KafkaCluster) -> None:
    """A round at the limit takes longer than a request may: librdkafka would give it up and reconnect."""
    row = Row("librdkafka", 6, 5, 10.0, 35.0, record_bytes=100_000)
    assert row.wait_s == 15.0
    seen = measure(row, kafka.bootstrap, kafka.nodes[0].log, 0, at_broker=False)
    assert seen.refused > 0
    # On a busy machine refusals may be late: the client sends those records again, and they are charged again.
    assert seen.timeouts <= seen.refused / 4
    assert seen.given_up == 0
    assert {one for _, one, _ in seen.acked} == set(range(row.producers))
    assert seen.stored == seen.distinct
    assert seen.charged_bytes <= (1.05 * seen.distinct + seen.timeouts) * row.record_bytes
    assert seen.goodput >= 0.7  # of 24 s, in requests of half a second
