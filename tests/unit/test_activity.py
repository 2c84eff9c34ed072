"""Requests and libraries of a client are counted, and whether it waits when throttled."""

import math
import socket

import pytest

from proxy.net.io.compliance import ThrottleComplianceProbe
from tests.support.session_tools import API_VERSIONS, from_client, ledger, produce, request, session


def test_requests_and_the_library_are_noted_by_client() -> None:
    of = ledger()
    one = session(of)
    from_client(one, request(API_VERSIONS, 3, 1, bytes((18,)) + b"apache", "c"))
    assert of.account("ANONYMOUS", "c").software is None  # cut short: the broker judges it
    body = bytes((18,)) + b"apache-kafka-java" + bytes((6,)) + b"4.2.0" + b"\0"
    other = session(of)
    from_client(
        other, request(API_VERSIONS, 3, 1, body, "c") + produce(2, 100, client_id="b") + request(999, 0, 4, b"", "c")
    )
    assert of.account("ANONYMOUS", "b").counted.by_api() == {0: 1}
    assert of.account("ANONYMOUS", "c").counted.by_api() == {API_VERSIONS: 2, -1: 1}
    assert of.account("ANONYMOUS", "c").software == "apache-kafka-java/4.2.0"
    from_client(session(of), request(API_VERSIONS, 0, 1, b"", "c"))
    assert of.account("ANONYMOUS", "c").software == "apache-kafka-java/4.2.0", "an older library says nothing"


def look(probe: ThrottleComplianceProbe, now_s: float, took_s: float = 0.0) -> bool:
    return probe.poll(now_s, 0) and probe.in_time(now_s + took_s)


@pytest.mark.parametrize(
    ("before", "after", "now_s", "took_s", "ignored"),
    [
        (b"", b"", 101.8, 0.0, False),
        (b"x", b"", 101.8, 0.0, False),
        (b"x", b"y", 101.8, 0.0, True),
        (b"x", b"y", 101.99, 0.0, True),
        # A client that waited until 102.0 sends again then: it must not be taken for one that did not wait.
        (b"x", b"y", 102.0, 0.0, None),
        (b"x", b"y", 102.2, 0.0, None),
        (b"x", b"y", 101.8, 0.19, True),
        (b"x", b"y", 101.8, 0.25, None),
    ],
)
def test_a_mute_is_ignored_or_not_judged(
    before: bytes, after: bytes, now_s: float, took_s: float, ignored: bool | None
) -> None:
    ours, client = socket.socketpair()
    with ours, client:
        probe = ThrottleComplianceProbe(ours, 100.0, 102.0)
        assert probe.next_poll_s == 101.0
        assert not look(probe, 100.5)
        client.sendall(before)
        assert not look(probe, 101.0)
        client.sendall(after)
        assert probe.next_poll_s == 101.8
        assert look(probe, now_s, took_s) is (ignored is not None)
        assert ignored is None or probe.ignored is ignored
        assert probe.next_poll_s == math.inf
        assert not look(probe, 101.9), "judged once"
