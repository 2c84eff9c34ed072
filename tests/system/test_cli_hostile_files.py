"""Hostile files in place of the configuration: a running sidecar goes on, and SIGTERM ends it in time."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.hostile_files import put, put_file
from tests.support.sidecars import Sidecar
from tests.support.waiting import until
from tests.system.test_cli_run import LIMIT_S, REFUSED, SUCCESSFUL, alone, limit

pytestmark = pytest.mark.long

END_S = 15.0
"""An idle sidecar ends within a tenth of a second after SIGTERM. Machines are busy."""


def ends_in_time(running: Sidecar) -> None:
    began_s = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(LIMIT_S) == 0
    running.killed = True
    assert time.monotonic() - began_s < END_S
    assert running.logged("stopped")


@pytest.mark.parametrize("kind", ["FIFO", "endless device", "36 MB", "directory"])
def test_a_running_sidecar_goes_on_and_ends_in_time(kind: str) -> None:
    with alone() as running:
        good = running.config.read_text()
        reason = f"{running.config}: cannot be read: {put(kind, running.config)}"
        until(lambda: running.logged(REFUSED))
        refused = running.logged(REFUSED)
        assert reason in refused[-1]["problems"][0]
        running.process.send_signal(signal.SIGHUP)
        until(lambda: len(running.logged(REFUSED)) > len(refused))
        assert limit(running) == 1_000_000
        put_file(running.config, good.replace("1000000", "2000000"))
        until(lambda: limit(running) == 2_000_000)
        until(lambda: running.metric(SUCCESSFUL) == 1)
        ends_in_time(running)


def test_sigterm_while_the_fullest_file_is_loaded() -> None:
    """A thread that computes is not waited for, and Python must not unwind it either: that was an end by SIGABRT."""
    entry = "- {client-id: client-%d, producer_byte_rate: 4X, request_percentage: 50.5, consumer_byte_rate: 1M}\n"
    text = "a: &a 1\nquotas:\n" + "".join(entry % number for number in range(27_000))
    with alone() as running:
        put_file(running.config, text)
        running.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)  # in the midst of it, most likely; what has to hold holds at all times
        ends_in_time(running)
