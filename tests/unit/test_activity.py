"""Requests and libraries of a client are counted, and whether it waits when told to."""

import math
import socket
from collections.abc import Iterator

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
    assert of.account("ANONYMOUS", "b").requests == {0: 1}
    assert of.account("ANONYMOUS", "c").requests == {API_VERSIONS: 2, -1: 1}
    assert of.account("ANONYMOUS", "c").software == "apache-kafka-java/4.2.0"
    from_client(session(of), request(API_VERSIONS, 0, 1, b"", "c"))
    assert of.account("ANONYMOUS", "c").software == "apache-kafka-java/4.2.0", "an older library says nothing"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def look(probe: ThrottleComplianceProbe, now_s: float, took_s: float = 0.0) -> bool:
    return probe.poll(now_s, 0) and probe.in_time(now_s + took_s)


@pytest.mark.parametrize(("before", "after", "ignored"), [(b"", b"", False), (b"x", b"", False), (b"x", b"y", True)])
def test_mute_is_ignored(pair: tuple[socket.socket, socket.socket], before: bytes, after: bytes, ignored: bool) -> None:
    ours, client = pair
    probe = ThrottleComplianceProbe(ours, 100.0, 102.0)
    assert probe.next_poll_s == 101.0
    assert not look(probe, 100.5)
    client.sendall(before)
    assert not look(probe, 101.0)
    client.sendall(after)
    assert probe.next_poll_s == 101.8
    assert look(probe, 101.8)
    assert probe.ignored is ignored
    assert not look(probe, 101.9), "judged once"


@pytest.mark.parametrize(
    ("now_s", "took_s", "judged"),
    [(101.99, 0.0, True), (102.0, 0.0, False), (102.2, 0.0, False), (101.8, 0.19, True), (101.8, 0.25, False)],
)
def test_a_second_look_after_the_mute_finds_nothing(
    pair: tuple[socket.socket, socket.socket], now_s: float, took_s: float, judged: bool
) -> None:
    """A client that waited until 102.0 sends again then: it must not be taken for one that did not wait."""
    ours, client = pair
    probe = ThrottleComplianceProbe(ours, 100.0, 102.0)
    assert not look(probe, 101.0)
    client.sendall(b"x")
    assert look(probe, now_s, took_s) is judged
    assert probe.next_poll_s == math.inf
