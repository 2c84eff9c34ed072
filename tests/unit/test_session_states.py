"""A session's states: each is reached and left, what its client may do next in each, and which accounts it keeps."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from proxy.core.interceptors.intercept import Answer, Outcome, Wait
from proxy.core.session import states
from proxy.core.session.exchange import MAX_KEPT_BYTES
from proxy.core.session.states import Event, StateError, step
from quota.ledger import Ledger
from tests.support import session_tools as tools
from tests.support.sasl_tools import PLAIN_STEPS, authenticate, authenticate_response, handshake, handshake_response
from tests.support.session_tools import from_broker, from_client, ledger, produce, produce_response, request, session

TABLES = pytest.mark.parametrize("table", [states.CLIENT, states.BROKER, states.THROTTLE, states.EXCHANGE, states.AUTH])
CREATE_TOPICS, HOUR_MS = 19, 3_600_000
LAST_STATES = (states.Client.GONE, states.Broker.GONE)
Table = Mapping[Any, Mapping[Event, Any]]


@TABLES
def test_each_state_is_reached_and_left(table: Table) -> None:
    members = type(next(iter(table)))
    assert set(table) == set(members)
    ahead = [next(iter(members))]
    for state in ahead:
        ahead += {following for following in table[state].values() if following not in ahead}
    assert set(ahead) == set(members)
    assert all(set(table[state].values()) - {state} for state in members if state not in LAST_STATES)


@TABLES
def test_a_step_that_no_table_has_is_an_error(table: Table) -> None:
    for state, event in product(table, Event):
        if event in table[state]:
            assert step(table, state, event) is table[state][event]
        else:
            with pytest.raises(StateError, match=f"no {event.name} in state {type(state).__name__}.{state.name}"):
                step(table, state, event)


@pytest.mark.parametrize("kept", [0, MAX_KEPT_BYTES + 1])
def test_full_until_a_response_arrives(kept: int) -> None:
    """With as many requests in flight as may be, or with too large an answer that waits for its turn."""
    answers = {CREATE_TOPICS: tools.Scripted(lambda *_: Answer(bytes(kept)))}
    one = session(ledger(), max_in_flight=3 if kept else 1, interceptors=answers)
    from_client(one, produce(1, 100) + (request(CREATE_TOPICS, 4, 2, b"") if kept else b"") + produce(3, 100))
    assert one.describe(0.0) == "full"
    assert len(one.taken()) == 0
    from_broker(one, produce_response(1))
    assert one.taken() == produce(3, 100)
    from_broker(one, produce_response(3))
    assert one.describe(0.0) == "open"


def test_asking_until_the_interceptor_decides() -> None:
    decide: list[Callable[[Outcome], None]] = []
    one = session(ledger(), interceptors={CREATE_TOPICS: tools.Scripted(lambda *_: Wait(decide.append))})
    from_client(one, request(CREATE_TOPICS, 4, 1, b"") + produce(2, 100))
    assert (one.describe(0.0), one.client_at_boundary) == ("asking", False)
    decide[0](Answer(b"\0\0\0\0"))
    assert (one.describe(0.0), one.client_at_boundary) == ("open", True)
    assert one.taken() == produce(2, 100)
    assert len(one.seen()) > 4
    from_client(one, request(CREATE_TOPICS, 4, 3, b""))
    one.close(0.0)
    assert not one.exchange, "nothing is kept after the end"


def test_login_lasts_until_the_broker_answers_and_user_is_known() -> None:
    one = session(ledger(), login_expected=True)
    one.user_of = lambda _login: None
    from_client(one, handshake("PLAIN"))
    assert one.describe(0.0) == "login"
    from_broker(one, handshake_response())
    assert one.describe(0.0) == "open"
    from_client(one, authenticate(PLAIN_STEPS[0][0]))
    from_broker(one, authenticate_response())
    assert from_client(one, produce(3, 500)) == b""
    assert one.describe(0.0) == "login", "while a name is looked up"
    one.identify("owner")
    assert (one.describe(0.0), one.taken(), one.user) == ("open", produce(3, 500), "owner")


def test_connecting_until_the_broker_is_there() -> None:
    one = session(ledger())
    data = bytearray(produce(1, 2000))
    assert one.on_client_bytes(memoryview(data), len(data), 0.0).connect
    assert one.describe(0.0) == "connecting"
    one.on_connected(0.0, 0.0)
    assert one.describe(0.0) == "open"


def kept(of: Ledger, client_id: str) -> bool:
    account = of.account("ANONYMOUS", client_id)
    account.last_ms = 0
    list(of.sweep(2 * HOUR_MS))
    return account in list(of.accounts())


def test_a_session_keeps_the_accounts_of_its_client_ids() -> None:
    of = ledger()
    one = session(of)
    from_client(one, produce(1, 100))
    from_client(one, produce(2, 100, client_id="d"))
    assert (kept(of, "c"), kept(of, "d"), kept(of, "e")) == (True, True, False)
    assert one.client_ids == ["c", "d"]
    one.close(0.0)
    assert (kept(of, "c"), kept(of, "d")) == (False, False)


def test_a_client_id_for_each_request_keeps_eight_accounts() -> None:
    of = Ledger(ledger().table, max_clients=50)
    one = session(of)
    for number in range(1000):
        from_client(one, produce(number, 100, client_id=f"c{number}"))
        from_broker(one, produce_response(number))
    assert sum(account.connections for account in of.accounts()) == len(one.client_ids) == 8
    assert of.clients <= 50
