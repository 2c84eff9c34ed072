"""Many connections at once, for a short time (what judges them: test_load.py)."""

from __future__ import annotations

import pytest

from benchmarks.suites.load import QUICK, run, table

pytestmark = pytest.mark.long


@pytest.mark.timeout(300)
def test_300_connections_are_held_and_share_fairly() -> None:
    result = run(QUICK)
    print(table(result))
    for one in result.rounds:
        assert (one.connected, one.dropped) == (300, 0)
        assert one.held_by_sidecar >= 300
        assert one.probe_throttled == 0
        # Three or four requests each in so short a time: one more or less is a quarter. `make load` measures longer.
        assert one.jain_writers > 0.8
        assert one.jain_readers > 0.5
        assert one.least_writes > 0, "no connection starves"
        # What they used is what they may: a little more where the window's edge lies, less where the machine is busy.
        assert one.written_bytes_per_s < 1.3 * QUICK.write_bytes_per_s
        assert one.read_bytes_per_s < 1.3 * QUICK.read_bytes_per_s
        # Who is not throttled does not wait for the others: a writer waits 150 KB / 150 kB/s, a second and more.
        # Where many other programs want the processors the probes wait for these, alone as well as beside the crowd.
        assert one.loaded_p50_ms < max(500, 60 * one.idle_p50_ms)
