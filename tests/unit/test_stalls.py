"""Deadlines for slow peers: the arithmetic, on a clock that the test sets."""

from dataclasses import fields, replace

import pytest

from proxy.core.errors import CloseReason
from proxy.net.listen.stalls import Stalls, TrafficSample
from proxy.net.settings import StallLimits

LIMITS = StallLimits(pre_auth_timeout_s=30.0, stall_timeout_s=60.0, min_bytes_per_s=500.0)
QUIET = TrafficSample(**{field.name: field.name == "under_way" for field in fields(TrafficSample)})


def ended_after_s(step: dict[str, float], most_s: int, **more: bool) -> tuple[float, CloseReason] | None:
    """Look every second; `step` is what the byte counts grow by each time. When, and why, it ended."""
    stalls = Stalls(LIMITS)
    for second in range(1, most_s + 1):
        counts = {name: int(second * each) for name, each in step.items()}
        reason = stalls.look(1.0, replace(QUIET, **more, **counts))
        if reason is not None:
            return second, reason
    return None


@pytest.mark.parametrize(
    ("begun", "counted", "reason"),
    [
        ("request_begun", "client_bytes", CloseReason.SLOW_REQUEST),
        ("unsent", "acked_bytes", CloseReason.SLOW_READER),
        ("response_begun", "broker_bytes", CloseReason.SLOW_BROKER),
    ],
)
def test_half_sent_request_must_move_at_least_rate(begun: str, counted: str, reason: CloseReason) -> None:
    # Nothing moves: 1 s is waited in each look, so that the 61st is over 60.
    assert ended_after_s({counted: 0}, 1000, **{begun: True}) == (61.0, reason)
    # One byte a second earns 1/500 s of it: 60 / (1 - 1/500) = 60.12 s.
    assert ended_after_s({counted: 1}, 1000, **{begun: True}) == (61.0, reason)
    # Half the rate: every second costs half a second, 60 / 0.5 = 120 s.
    assert ended_after_s({counted: 250}, 1000, **{begun: True}) == (121.0, reason)
    assert ended_after_s({counted: 500}, 10_000, **{begun: True}) is None
    assert ended_after_s({}, 10_000) is None, "idle"


def test_fast_bytes_earn_no_later_time() -> None:
    stalls = Stalls(LIMITS)
    seen = replace(QUIET, unsent=True, acked_bytes=1_000_000_000)
    assert stalls.look(1.0, seen) is None
    assert [stalls.look(1.0, seen) for _ in range(61)] == [None] * 60 + [CloseReason.SLOW_READER]
    assert stalls.waited_s == 61.0


def test_our_own_time_does_not_count_as_stall() -> None:
    for mine in ("muted", "unread_requests"):
        assert ended_after_s({"client_bytes": 0}, 1000, request_begun=True, **{mine: True}) is None
    for mine in ("unsent", "unread_responses"):
        found = ended_after_s({"broker_bytes": 0, "acked_bytes": 1000}, 1000, response_begun=True, **{mine: True})
        assert found is None


def test_finished_request_is_forgotten() -> None:
    stalls = Stalls(LIMITS)
    for _ in range(10):
        for _ in range(59):
            assert stalls.look(1.0, replace(QUIET, request_begun=True)) is None
        assert stalls.look(1.0, QUIET) is None


def test_time_before_first_request_counts() -> None:
    assert ended_after_s({}, 100, under_way=False) == (31.0, CloseReason.PRE_AUTH_TIMEOUT)
    assert ended_after_s({"client_bytes": 1000}, 100, under_way=False) == (31.0, CloseReason.PRE_AUTH_TIMEOUT)
    assert ended_after_s({}, 1000, under_way=False, owed=True) is None
    assert ended_after_s({}, 1000, under_way=False, muted=True) is None
    stalls = Stalls(LIMITS)  # not from the beginning again after each answer
    for _ in range(30):
        assert stalls.look(1.0, replace(QUIET, under_way=False)) is None
        assert stalls.look(1.0, replace(QUIET, under_way=False, owed=True)) is None
    assert stalls.look(1.0, replace(QUIET, under_way=False)) is CloseReason.PRE_AUTH_TIMEOUT


def test_closed_socket_is_no_slow_reader() -> None:
    """`tcp_info` says 0 of one. 100 000 bytes fewer at 500 bytes/s would have been 200 s of waiting."""
    stalls = Stalls(LIMITS)
    assert stalls.look(5.0, replace(QUIET, unsent=True, acked_bytes=100_000)) is None
    assert stalls.look(5.0, replace(QUIET, acked_bytes=0)) is None
    assert stalls.look(59.0, replace(QUIET, unsent=True, acked_bytes=0)) is None, "counted from the beginning"
    assert stalls.look(2.0, replace(QUIET, unsent=True, acked_bytes=0)) is CloseReason.SLOW_READER
