"""A client beside attackers of another group that give the sidecar much to do: it waits little longer than elsewhere.

Both are asked in turn, on connections of their own, so that whatever else the machine does meets both alike.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from kafka.protocol.metadata import MetadataRequest

from tests.lab.kafka import KafkaCluster
from tests.support.attackers import WORK, Attackers, attackers, names
from tests.support.precedence import precedence
from tests.support.raw_client import RawClient
from tests.support.sidecars import Sidecar, get, sidecar
from tests.support.waiting import until

ATTACK_S, REST_S, ATTACKS = 0.6, 0.5, 4
"""From what has precedence and uses a core without pause, the kernel takes it for 50 ms of each second
(sched_rt_runtime_us): so a try is some short attacks, with rests between them."""
LONGER_REST_S = {"listed_counters": 2.0}
"""What was asked for last is finished."""
EVERY_S = 0.01
MORE_MS = 5.0
"""What a request may wait here beside twice what it waits at the broker."""
SHORT = ("altered_operations",)
"""The others are long: what runs with precedence takes the cores from all tests beside it."""
TRIES = 5
"""A core may be taken from the sidecar alone for some ms, and from the broker alone: the median of so many counts."""
NAMES = 20_000
QUOTAS = [
    {
        "client-id": "attacker",
        "producer_byte_rate": 100_000,
        "consumer_byte_rate": 1000,
        "request_percentage": 1000,
        "controller_mutation_rate": 1_000_000,
    },
    {"client-id": "neighbour", "producer_byte_rate": 100_000_000},
    {"client-id": "<default>", "request_percentage": 1000},
]
BY_A_HOSTILE_BROKER = ("created_configurations", "results_of_a_hostile_broker")
"""A real one takes minutes for such requests."""


class Waits(NamedTuple):
    """How long a neighbour's requests take, in ms."""

    here: list[float]
    there: list[float]
    """At the broker."""

    @property
    def excess_ms(self) -> float:
        """By how much the 99th percentile is above what it may be."""
        return _high(self.here) - 2 * _high(self.there) - MORE_MS

    def __str__(self) -> str:
        return (
            f"here {_high(self.here):.1f}, at most {max(self.here):.1f} ms, "
            f"there {_high(self.there):.1f}, {max(self.there):.1f} ms, {len(self.here)} requests"
        )


def _high(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attackers]:
    with attackers() as process:
        yield process


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap, QUOTAS, limits={"max_clients": NAMES + 1000}) as one:
        yield one


@pytest.fixture(scope="module")
def misled(kafka: KafkaCluster) -> Iterator[Sidecar]:
    """Its bootstrap listener leads to a hostile broker, the broker's own to the broker."""
    with attackers() as hostile, sidecar([hostile.broker(kafka.bootstrap[0])], QUOTAS) as one:
        yield one


@pytest.mark.parametrize(
    "kind", [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in WORK]
)
def test_neighbour_is_served_as_at_the_broker(
    request: pytest.FixtureRequest, kafka: KafkaCluster, attacker: Attackers, kind: str
) -> None:
    running: Sidecar = request.getfixturevalue("misled" if kind in BY_A_HOSTILE_BROKER else "running")
    target = running.bootstrap
    if kind == "listed_counters":
        _invent(running, NAMES)
        target = running.admin.removeprefix("http://")
    seen: list[Waits] = []
    while len(seen) < TRIES and sum(one.excess_ms <= 0 for one in seen) <= TRIES // 2:
        seen.append(beside(running, kafka, attacker, kind, target))
        print(f"{kind}: {seen[-1]}")
    assert statistics.median(one.excess_ms for one in seen) <= 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_neighbour_is_served_during_sweeps_of_many_groups(kafka: KafkaCluster, attacker: Attackers) -> None:
    """Half a million clients, each with a counter: what looks at all of them once a minute runs at least once."""
    many = 500_000
    with sidecar(kafka.bootstrap, QUOTAS, limits={"max_clients": many + 1000}) as running:
        _invent(running, many)
        seen = beside(running, kafka, attacker, "pipelined_versions", running.bootstrap, (0.6,) * 60)
        print(seen)
        assert seen.excess_ms <= 0


def _invent(running: Sidecar, count: int) -> None:
    """Have the sidecar count so many clients: it charges each for its answer."""
    with RawClient(running.bootstrap, "neighbour") as client, precedence(running.pid):
        data = names(count)
        for at in range(0, count, 1000):
            client.send(data[at * len(data) // count : (at + 1000) * len(data) // count])
            for _ in range(1000):
                client.read_frame()


def beside(
    running: Sidecar,
    kafka: KafkaCluster,
    attacker: Attackers,
    kind: str,
    target: str,
    attacks: tuple[float, ...] = (ATTACK_S,) * ATTACKS,
) -> Waits:
    """How long a neighbour waits, here and at the broker, during attacks; and the sidecar is alive throughout."""
    with RawClient(running.bootstrap, "neighbour") as asking:
        broker = until(lambda: asking.ask(MetadataRequest(version=1, topics=[])).message.brokers)[0]
    waits, done = Waits([], []), Counter[str]()
    with (
        RawClient((broker.host, broker.port), "neighbour") as client,
        RawClient(kafka.bootstrap[0], "neighbour") as direct,
        precedence(running.pid, *(node.pid for node in kafka.nodes)),
    ):
        for seconds in attacks:
            _asked_ms(client)
            _asked_ms(direct)
            attacker.begin(kind, target, seconds)
            while not attacker.is_over(EVERY_S):
                waits.there.append(_asked_ms(direct))
                waits.here.append(_asked_ms(client))
                if len(waits.here) % 20 == 0:
                    assert get(running.admin + "/healthz", timeout_s=5.0).text == "ok\n"
            done += attacker.done()
            time.sleep(LONGER_REST_S.get(kind, REST_S))
    assert done["bytes"] > 100_000 or done["whole"] >= len(attacks) * WORK[kind].connections, done
    return waits


def _asked_ms(client: RawClient) -> float:
    began = time.monotonic()
    client.ask(MetadataRequest(version=1, topics=[]))
    return (time.monotonic() - began) * 1000.0
