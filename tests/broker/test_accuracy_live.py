"""What quotas achieve over their limits: a short run against a real broker (its arithmetic: test_accuracy.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suites import accuracy
from tests.lab.kafka import KafkaCluster

pytestmark = pytest.mark.long


def test_short_accuracy_run_meets_the_limits(kafka: KafkaCluster, tmp_path: Path) -> None:
    result = accuracy.measure(accuracy.QUICK, kafka, tmp_path, lambda _: None)
    assert len(result.figures) == 4
    for one in result.figures:
        assert one.burst_windows <= 1.3, one
        # Six seconds, in which up to two that were lost to a busy machine may be made up for (ADR 0004).
        assert 0.6 < one.ratio < 1.4, one
        assert one.jain > 0.6, one
