"""A minute of `make world`: whole worlds of clients, instances and brokers, each drawn from a seed."""

import pytest

from quota.entity import Kind
from tests.world.__main__ import Tally, play
from tests.world.script import crowd, draw, members
from tests.world.search import SEARCHES, Bounds, search
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


def test_claims_confirmed_twice_hold() -> None:
    assert search(Bounds(actions=5, losses=0, restarts=1, changes=0)) > 10_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SEARCHES)
def test_shares_hold_within_the_bounds(name: str) -> None:
    assert search(SEARCHES[name]) > 50_000
