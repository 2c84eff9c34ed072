"""The load clients of `tests.support.clients` against a broker without quotas: what they report is so."""

from __future__ import annotations

import pytest

from deploy.kafka import KafkaCluster
from tests.support.clients import CONSUMERS, PRODUCERS, Load, Timeline, check_record, in_background, record


@pytest.mark.parametrize("size", [22, 23, 1_000, 3_000_000])
def test_records_have_their_size_and_tell_damage(size: int) -> None:
    value = record(12_345, size)
    assert len(value) == size
    assert check_record(value) == 12_345
    if size == 1_000:
        assert record(12_346, size)[22:] != value[22:]
    with pytest.raises(ValueError, match="record 12346 is damaged"):
        check_record(b"000000012346" + value[12:])


def test_steady_rate_leaves_the_first_window_out() -> None:
    # 11 MB at once, then 500 bytes every 10 ms from 11 s to 20 s: 50 000 bytes a second.
    steps = [(11.0 + step / 100, 11_000_000 + 500 * step) for step in range(901)]
    timeline = Timeline("c", began=0.0, points=[(0.0, 11_000_000), *steps])
    assert timeline.total_bytes == 11_450_000
    assert timeline.steady_rate() == pytest.approx(50_000, rel=0.001)
    assert timeline.rate(0.0, 10.0) == 0.0
    assert timeline.rate(10.0, 20.0) == 45_000.0  # 9 s of 50 000 in 10 s
    assert timeline.bytes_until(-1.0) == 0


@pytest.mark.parametrize("offset_s", [0.0, 0.2, 0.5, 0.9])
def test_steady_rate_of_large_batches(offset_s: float) -> None:
    # 1 MB every second, each batch as ten acknowledgements within a millisecond. Between the first point past 11 s and
    # the last one a mean would count up to 0.9 MB too many: 10 % of 9 MB.
    points = [
        (second + offset_s + part / 10_000, second * 1_000_000 + (part + 1) * 100_000)
        for second in range(21)
        for part in range(10)
    ]
    assert Timeline("c", began=0.0, points=points).steady_rate() == pytest.approx(1_000_000, rel=0.02)


def test_a_load_too_short_for_a_steady_rate_is_told() -> None:
    timeline = Timeline("short", began=0.0, points=[(0.0, 1), (10.0, 2)])
    with pytest.raises(AssertionError, match=r"short was done 10\.0 s after its first byte"):
        timeline.steady_rate()


@pytest.mark.parametrize("name", sorted(PRODUCERS))
def test_producers_and_consumers_tell_what_they_did(name: str, kafka: KafkaCluster, topic: str) -> None:
    load = Load(kafka.bootstrap, topic, f"client-{name}", records=300, limit_s=60)
    made = PRODUCERS[name](load)
    made.assert_complete(load)
    assert made.began < made.points[0][0] <= made.points[-1][0] <= made.ended

    comparable = name != "java-perf"  # it writes random contents
    consumer = in_background(CONSUMERS[name], load)
    read = consumer.result(timeout=70)
    read.assert_complete(load)
    assert len(read.numbers) == (load.records if comparable else 0)
    if name in ("kafka-python", "java-perf"):
        assert all(value in (0, 0.0) or value != value for value in (*made.throttle.values(), *read.throttle.values()))
        assert any("throttle-time-max" in key for key in made.throttle)
        assert any("throttle-time-max" in key for key in read.throttle)


def test_a_client_that_cannot_finish_is_stopped_and_says_so(kafka: KafkaCluster, topic: str) -> None:
    PRODUCERS["confluent-kafka"](Load(kafka.bootstrap, topic, "half", records=10))
    waiting = {
        name: in_background(consume, Load(kafka.bootstrap, topic, f"waits-{name}", records=20, limit_s=5))
        for name, consume in CONSUMERS.items()
    }
    for name, future in waiting.items():
        read = future.result(timeout=60)
        assert read.total_bytes <= 100_000, name  # Java's tools write their last lines only when they end in peace
        assert read.errors, name
