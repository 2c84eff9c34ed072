"""The tables of a session's states: each state is reached and left, and a step that no table has is an error."""

from collections.abc import Mapping
from enum import IntEnum
from itertools import product
from typing import Any

import pytest

from proxy.core.session import states
from proxy.core.session.states import Event, StateError, step

TABLES = pytest.mark.parametrize(
    ("table", "members"),
    [
        (states.CLIENT, states.Client),
        (states.BROKER, states.Broker),
        (states.THROTTLE, states.Throttled),
        (states.EXCHANGE, states.Answering),
        (states.AUTH, states.Proving),
    ],
)
LAST_STATES = (states.Client.GONE, states.Broker.GONE)
Table = Mapping[Any, Mapping[Event, Any]]


@TABLES
def test_each_state_is_reached_and_left(table: Table, members: type[IntEnum]) -> None:
    assert set(table) == set(members)
    ahead = [next(iter(members))]
    for state in ahead:
        ahead += {following for following in table[state].values() if following not in ahead}
    assert set(ahead) == set(members)
    assert all(set(table[state].values()) - {state} for state in members if state not in LAST_STATES)


@TABLES
def test_a_step_that_no_table_has_is_an_error(table: Table, members: type[IntEnum]) -> None:
    for state, event in product(members, Event):
        if event in table[state]:
            assert step(table, state, event) is table[state][event]
        else:
            with pytest.raises(StateError, match=f"no {event.name} in state {members.__name__}.{state.name}"):
                step(table, state, event)
