"""The tables of a session's states: each state is reached and left, and a step that no table has is an error."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import pytest

from proxy.core.session.states import (
    AUTH,
    BROKER,
    CLIENT,
    EXCHANGE,
    THROTTLE,
    Answering,
    Broker,
    Client,
    Event,
    Proving,
    StateError,
    Throttled,
    step,
)

TABLES = pytest.mark.parametrize(
    ("table", "states"),
    [(CLIENT, Client), (BROKER, Broker), (THROTTLE, Throttled), (EXCHANGE, Answering), (AUTH, Proving)],
)
LAST_STATES = (Client.GONE, Broker.GONE)


@TABLES
def test_each_state_is_reached_and_left(table: Mapping[Any, Mapping[Event, Any]], states: type[IntEnum]) -> None:
    assert set(table) == set(states)
    first, *others = states
    reached, ahead = {first}, [first]
    while ahead:
        for following in table[ahead.pop()].values():
            if following not in reached:
                reached.add(following)
                ahead.append(following)
    assert reached == {first, *others}
    assert all(set(table[state].values()) - {state} for state in states if state not in LAST_STATES)


@TABLES
def test_a_step_that_no_table_has_is_an_error(table: Mapping[Any, Mapping[Event, Any]], states: type[IntEnum]) -> None:
    for state in states:
        for event in Event:
            if event in table[state]:
                assert step(table, state, event) is table[state][event]
            else:
                with pytest.raises(StateError, match=f"no {event.name} in state {states.__name__}.{state.name}"):
                    step(table, state, event)
