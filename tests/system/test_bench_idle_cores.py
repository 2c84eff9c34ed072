"""Idle cores of this machine do as the benchmarks ask them (`benchmarks.rig.idle`)."""

from __future__ import annotations

import os

import pytest

from benchmarks.rig import idle
from tests.corpus.job import wait_for


@pytest.mark.skipif(not os.access(idle.DEVICE, os.W_OK), reason="no process may ask for a latency here")
def test_idle_cores_poll_on_this_machine_while_they_are_asked_to() -> None:
    if idle.IdleTime.now() == idle.IdleTime(0, 0):
        pytest.skip("the kernel counts no idle states here")
    with idle.polling() as idling:
        # Other tests may keep all cores busy: the condition is a core that had nothing to do, not a time.
        wait_for("a core that polls", lambda: (idling.polling_share() or 0.0) > 0.0, 200.0)
        assert idling.refused is None
