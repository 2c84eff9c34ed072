"""Ports that are free now, in the range that this process is given."""

from __future__ import annotations

import socket
from collections import deque

import pytest

from deploy.kafka.ports import RANGE, free_port_run, free_ports, port_range
from tests.conftest import share_ports


def test_adjacent_ports_are_free_every_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port_run(5)
    monkeypatch.setenv(RANGE, f"{first}-{first + 4}")
    with socket.create_server(("127.0.0.1", first + 2)):
        assert free_port_run(2) in (first, first + 3)
        assert set(free_ports(4)) == {first, first + 1, first + 3, first + 4}
        assert free_ports(1, {first, first + 1, first + 3}) == [first + 4]
        with pytest.raises(OSError, match=f"no 3 adjacent free ports on 127.0.0.1 between {first} and {first + 4}"):
            free_port_run(3)
        with pytest.raises(OSError, match=f"no free port on 127.0.0.1 between {first} and {first + 4}"):
            free_ports(5)


def test_a_port_is_not_given_again_while_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port_run(12)
    monkeypatch.setattr("deploy.kafka.ports._given", deque[int](maxlen=500))
    monkeypatch.setenv(RANGE, f"{first}-{first + 11}")
    run = free_port_run(10)
    others = set(range(first, first + 12)) - set(range(run, run + 10))
    assert set(free_ports(2)) == others
    assert first <= free_ports(1)[0] <= first + 11, "all have been given: one of them again"


@pytest.mark.parametrize("text", ["20000", "20000-", "3-2", "0-9", "1-65536", "a-b"])
def test_what_is_no_range_of_ports(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANGE, text)
    with pytest.raises(ValueError, match=f"KQUOTA_PORTS: got '{text}', expected a range of ports such as 20000-22999"):
        free_ports(1)


def test_each_worker_has_ports_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    for worker in range(4):
        monkeypatch.setenv(RANGE, "20000-32000")
        share_ports(worker, 4)
        parts.append(port_range())
    assert parts == [(20000, 22999), (23000, 25999), (26000, 28999), (29000, 31999)]
