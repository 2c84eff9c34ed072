"""Hostile files and the processes that read them: `kquota` says what is wrong and exits with 2, a running sidecar goes
on with what it has, and SIGTERM ends it in time whatever its threads wait for."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.broker.test_cli_run import LIMIT_S, Run, running, text_of, until
from tests.support.hostile_files import KINDS, put, put_file

pytestmark = pytest.mark.long

END_S = 15.0
"""An idle sidecar ends within a tenth of a second after SIGTERM. Machines are busy."""
SUCCESS = "kquota_config_last_reload_successful"


BRACKETS = "[" * 100_000
DIGITS = f"upstream: {{bootstrap: ['k:1']}}\nquotas:\n- {{user: u, producer_byte_rate: {'9' * 310}}}\n"


def ends_in_time(run: Run, code: int = 0) -> None:
    began_s = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(LIMIT_S) == code
    assert time.monotonic() - began_s < END_S
    assert run.logged("stopped")


@pytest.mark.parametrize("kind", ["FIFO", "endless device", "36 MB", "directory", "brackets", "310 digits"])
def test_a_running_sidecar_goes_on_and_ends_in_time(kind: str, tmp_path: Path) -> None:
    with running(tmp_path) as run:
        if kind in KINDS:
            reason = f"{run.config}: cannot be read: {put(kind, run.config)}"
        else:
            put_file(run.config, BRACKETS if kind == "brackets" else DIGITS)
            reason = "expected at most 32 levels" if kind == "brackets" else "producer_byte_rate: got 99999"
        until(lambda: run.metric(SUCCESS) == 0)
        refused = run.logged("configuration refused, the last good one stays in force")
        assert reason in refused[-1]["problems"][0]
        run.process.send_signal(signal.SIGHUP)
        until(lambda: len(run.logged("configuration refused, the last good one stays in force")) > len(refused))
        assert b'"limit":1000000' in run.get("/explain?client_id=c")[1].replace(b" ", b"")
        put_file(run.config, text_of(run.ports, "2M"))
        until(lambda: run.metric(SUCCESS) == 1)
        assert b'"limit":2000000' in run.get("/explain?client_id=c")[1].replace(b" ", b"")
        ends_in_time(run)


def test_sigterm_while_the_fullest_file_is_loaded(tmp_path: Path) -> None:
    """A thread that computes is not waited for, and Python must not unwind it either: that was an end by SIGABRT."""
    entry = "- {client-id: client-%d, producer_byte_rate: 4X, request_percentage: 50.5, consumer_byte_rate: 1M}\n"
    text = "a: &a 1\nquotas:\n" + "".join(entry % number for number in range(27_000))
    with running(tmp_path) as run:
        put_file(run.config, text)
        run.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)  # in the midst of it, most likely; what has to hold holds at all times
        ends_in_time(run)
