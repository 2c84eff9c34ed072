"""A minute of `make world`: whole worlds of clients, instances and brokers, each drawn from a seed."""

from __future__ import annotations

import pytest

from quota.entity import Kind
from tests.world.__main__ import Tally, play
from tests.world.script import Fault, Habits, Script, crowd, draw, members
from tests.world.shrinker import shrink
from tests.world.world import World

HEAD_BYTES = 40
"""Of a Produce request of the world."""


@pytest.mark.parametrize("seed", range(60))
def test_all_properties_hold_in_worlds(seed: int) -> None:
    tally = Tally()
    violation = play(draw(seed, 240.0), tally=tally)
    assert violation is None, f"{violation}: make world WORLD_ARGS='--seed {seed} --seeds 1 --minutes 4'"
    assert tally.calls > 1000


@pytest.mark.parametrize("seed", range(16))
def test_producers_that_wait_too_long_are_all_served(seed: int) -> None:
    """Whatever their timers are, no client gives a request up, and what is charged reaches the log once."""
    world = World(crowd(seed))
    served: dict[str, int] = {}

    def count() -> None:
        served.update(
            timeouts=sum(client.timeouts for client in world.clients.values()),
            least=min(len(log.batches) for log in world.cluster.logs.values()),
            stored=sum(batch.size_bytes + HEAD_BYTES for log in world.cluster.logs.values() for batch in log.batches),
            charged=sum(account.meter(Kind.PRODUCE).amount for account in world.instances[0].ledger.accounts()),
        )

    world.clock.at(world.script.seconds - 1.0, count)
    world.run()
    assert served["timeouts"] == 0, world.script
    assert served["least"] >= 1
    assert served["charged"] <= 1.05 * served["stored"]


@pytest.mark.parametrize("seed", [0, 3, 4, 9])
def test_no_throttle_expels_a_member_from_its_group(seed: int) -> None:
    violation = play(members(seed))
    assert violation is None, violation


@pytest.mark.parametrize("seed", [3, 7])
def test_model_keeps_its_promises_without_kquota(seed: int) -> None:
    assert play(draw(seed, 240.0), direct=True) is None


def test_one_seed_decides_everything() -> None:
    worlds = [World(draw(8, 120.0)) for _ in range(2)]
    for world in worlds:
        world.run()
    first, second = [(world.clock.calls, world.judge.acknowledged_batches, world.faults) for world in worlds]
    assert first == second


def test_shrinker_keeps_what_it_takes() -> None:
    clients = {number: Habits("member", "g0") for number in range(6)}
    faults = {number: Fault("stall", 1.0, 0, 1.0, 0.5) for number in range(6)}
    script = Script(1, 600.0, clients=clients, faults=faults)
    found = shrink(script, lambda one: 4 in one.clients and {1, 5} <= set(one.faults) and one.seconds > 50)
    assert (set(found.clients), set(found.faults), found.seconds) == ({4}, {1, 5}, 60.0)
