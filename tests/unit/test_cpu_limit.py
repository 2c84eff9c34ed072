"""The limit of CPU time interrupts a regular expression, and leaves the process's timer and handler as they were."""

from __future__ import annotations

import re
import signal
import time

import pytest

from proxy.net.tls.cpu_limit import CpuLimitError, cpu_limit


def test_a_regular_expression_is_interrupted() -> None:
    before = time.thread_time()
    with pytest.raises(CpuLimitError), cpu_limit(0.002):
        re.fullmatch("(a*)*b", "a" * 100)  # without a limit: for longer than there are computers
    assert time.thread_time() - before < 0.2  # some 2 ms


def test_nothing_is_raised_after_the_block() -> None:
    before = signal.getsignal(signal.SIGALRM)
    for _ in range(200):
        try:
            with cpu_limit(0.0):
                pass
        except CpuLimitError:
            pass
        assert signal.getsignal(signal.SIGALRM) is before
        sum(range(2000))


def test_another_timer_goes_on() -> None:
    """Such as pytest-timeout's."""
    before = signal.getsignal(signal.SIGALRM)
    handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    timer = signal.setitimer(signal.ITIMER_REAL, 30.0, 7.0)
    try:
        with cpu_limit(1.0):
            time.sleep(0.005)
        left_s, each_s = signal.getitimer(signal.ITIMER_REAL)
        assert (29.0 < left_s <= 30.0, each_s) == (True, 7.0)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert signal.getsignal(signal.SIGALRM) is before
