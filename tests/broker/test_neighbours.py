"""A client beside attackers of another group that give the sidecar much to do: it waits little longer than elsewhere.

Both are asked in turn, on connections of their own, so that whatever else the machine does meets both alike.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from kafka.protocol.metadata import MetadataRequest

from tests.lab.kafka import KafkaCluster
from tests.support.attackers import WORK
from tests.support.precedence import precedence
from tests.support.raw_client import RawClient
from tests.support.sidecars import Sidecar, get, sidecar

ATTACK_S = 1.5
EVERY_S = 0.01
MORE_MS, LONGEST_MORE_MS = 5.0, 100.0
"""What a request may wait here beside twice what it waits at the broker: all but two of a hundred, and any of them."""
TRIES = 3
"""A core may be taken from the sidecar alone for some ms, and from the broker alone: one of three attacks is quiet."""
QUOTAS = [
    {"client-id": "attacker", "producer_byte_rate": 100_000, "request_percentage": 1000},
    {"client-id": "neighbour", "producer_byte_rate": 100_000_000},
]


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap, QUOTAS) as one:
        yield one


@pytest.fixture(scope="module")
def attacker(running: Sidecar) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.attackers", running.bootstrap]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def asked_ms(client: RawClient) -> float:
    began = time.monotonic()
    client.ask(MetadataRequest(version=1, topics=[]))
    return (time.monotonic() - began) * 1000.0


def high(times: list[float]) -> float:
    """The 98th percentile: of some hundred requests all but two or three."""
    return sorted(times)[len(times) * 98 // 100]


@pytest.mark.parametrize("kind", WORK)
def test_neighbour_is_served_as_at_the_broker(
    running: Sidecar, kafka: KafkaCluster, attacker: subprocess.Popen[str], kind: str
) -> None:
    for _ in range(TRIES):
        here, there = beside(running, kafka, attacker, kind)
        said = f"{kind}: here {high(here):.1f}, at most {max(here):.1f} ms, there {high(there):.1f}, {max(there):.1f}"
        print(said)
        if high(here) <= 2 * high(there) + MORE_MS and max(here) <= 2 * max(there) + LONGEST_MORE_MS:
            return
    turns = {sample.labels["what"]: sample.value for sample in running.samples() if "long_turns_total" in sample.name}
    pytest.fail(f"{said}; long turns: {turns}")


def beside(
    running: Sidecar, kafka: KafkaCluster, attacker: subprocess.Popen[str], kind: str
) -> tuple[list[float], list[float]]:
    """How long a neighbour's requests take, here and at the broker, during one attack."""
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    here: list[float] = []
    there: list[float] = []
    with (
        RawClient(running.bootstrap, "neighbour") as client,
        RawClient(kafka.bootstrap[0], "neighbour") as direct,
        precedence(running.pid, *(node.pid for node in kafka.nodes)),
    ):
        asked_ms(client)
        asked_ms(direct)
        attacker.stdin.write(f"{kind} {ATTACK_S}\n")
        attacker.stdin.flush()
        while not select.select([attacker.stdout], [], [], EVERY_S)[0]:
            there.append(asked_ms(direct))
            here.append(asked_ms(client))
            if len(here) % 20 == 0:
                assert get(running.admin + "/healthz", timeout_s=5.0).text == "ok\n"
    done = json.loads(attacker.stdout.readline())
    assert done["bytes"] > 100_000
    return here, there
