"""The tables of a session's states: each state is reached and left, and a step that no table has is an error."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import pytest

from proxy.core.session.effects import Effects
from proxy.core.session.exchange import Exchange
from proxy.core.session.state import SessionState
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
from proxy.core.session.throttle import Throttle
from proxy.core.telemetry.observer import Counters
from quota.entity import Identity
from quota.ledger import Account, Ledger
from quota.table import QuotaTable

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


def test_nothing_is_admitted_that_was_not_queued() -> None:
    throttle = Throttle(Ledger(QuotaTable([])), Counters())
    throttle.admit(Account(Identity("u", "c")), 0, 0, 0.0)  # nothing waits: nothing happens
    assert throttle.state is Throttled.FREE


def test_no_two_requests_wait_for_an_interceptor() -> None:
    exchange = Exchange(1)
    exchange.ask(b"", b"", None)  # type: ignore[arg-type]
    with pytest.raises(StateError):
        exchange.ask(b"", b"", None)  # type: ignore[arg-type]


def test_no_user_is_named_who_was_not_asked_for() -> None:
    with pytest.raises(StateError):
        SessionState(Ledger(QuotaTable([])), Counters(), None, Effects()).auth.named("alice")
