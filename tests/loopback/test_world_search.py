"""The search for an order of a fleet's actions in which more than a limit is held (docs/fleet.md)."""

from __future__ import annotations

import pytest

from quota.fleet.claim import Claim
from tests.world.search import SEARCHES, Bounds, ExceededError, search


class Hasty(Claim):
    """Raised when one record with the claim has come back."""

    __slots__ = ()

    def came_back(self, seq: int, room: float) -> bool:
        self._back = 1.0
        return super().came_back(seq, room)


def test_finds_claims_confirmed_by_one_record() -> None:
    with pytest.raises(ExceededError, match="1misses"):
        search(Bounds(actions=5, losses=1, restarts=0, changes=0), Hasty)


def test_claims_confirmed_twice_hold() -> None:
    assert search(Bounds(actions=5, losses=0, restarts=1, changes=0)) > 10_000


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SEARCHES)
def test_shares_hold_within_the_bounds(name: str) -> None:
    assert search(SEARCHES[name]) > 50_000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_records_missed_in_a_row_exceed() -> None:
    """The guarantee's own exception, which the bounds are wide enough to show."""
    with pytest.raises(ExceededError, match=r"1misses.*1misses"):
        search(Bounds(actions=8, records=3, losses=2, restarts=0, changes=0))
