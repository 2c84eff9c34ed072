"""What a session's client may do next (`Session.describe`), reached as in traffic; and what keeps accounts from being
forgotten."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest

from proxy.core.interceptors.intercept import AdminRequest, Answer, Ask, Outcome, Wait
from proxy.core.session.exchange import MAX_KEPT_BYTES
from quota.entity import Kind
from quota.ledger import Ledger
from tests.support.sasl_tools import PLAIN_STEPS, handshake, handshake_response, log_in
from tests.support.session_tools import (
    FETCH,
    MB,
    METADATA,
    Driven,
    answers,
    fetch_body,
    from_broker,
    from_client,
    identified,
    ledger,
    produce,
    produce_response,
    request,
    resumed,
    session,
)

CREATE_TOPICS = 19
HOUR_MS = 3_600_000


class Deciding:
    """An interceptor that hands out what it is told to, and keeps the function that takes a later decision."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.decide: Callable[[Outcome], None] | None = None

    def wants(self, _api_key: int, _account: object) -> bool:
        return True

    def request(self, _request: AdminRequest, _now_ms: float) -> Outcome:
        return self.outcomes.pop(0)

    def later(self, decide: Callable[[Outcome], None]) -> None:
        self.decide = decide


def admin(of: Ledger, *outcomes: Outcome) -> Driven:
    return session(of, interceptors={CREATE_TOPICS: Deciding(*outcomes)})


# ---- states ---------------------------------------------------------------------------------------------------------


def test_open_until_something_happens() -> None:
    one = session(ledger())
    assert one.describe(0.0) == "open"
    from_client(one, produce(1, 100))
    assert one.describe(0.0) == "open"


def test_muted_until_its_deadline() -> None:
    """2 000 B in 10 s are 200 B/s, twice the limit: (200 - 100) / 100 * 10 s."""
    one = session(ledger(produce_rate=100, smooth=False))
    from_client(one, produce(1, 2000))
    assert [one.describe(at_ms) for at_ms in (0.0, 9_999.0, 10_000.0)] == ["muted", "muted", "open"]


def test_queued_while_the_group_is_in_debt() -> None:
    of = ledger(produce_rate=100_000)
    from_client(session(of), produce(1, 2 * MB))  # 10 s are owed beyond the window
    one = session(of)
    assert from_client(one, produce(1, 1000), 0.0) == b""
    out, now_ms = b"", 0.0
    while not out:
        assert one.describe(now_ms) == "held"
        now_ms = one.mute_until_ms
        assert now_ms <= 30_000.0
        out = resumed(one, now_ms)
    assert one.describe(now_ms) in ("open", "muted")
    assert one.state.throttle.place is None


def test_full_until_a_response_arrives() -> None:
    one = session(ledger(), max_in_flight=2)
    assert len(from_client(one, produce(1, 100) + produce(2, 100) + produce(3, 100))) == 2 * 104
    assert one.describe(0.0) == "full"
    from_broker(one, produce_response(1))
    assert one.taken() == produce(3, 100)
    assert one.describe(0.0) == "full"
    from_broker(one, produce_response(2))
    assert one.describe(0.0) == "open"


def test_full_also_when_too_much_is_kept() -> None:
    one = admin(ledger(), Answer(b"\0" * (MAX_KEPT_BYTES + 1)))
    from_client(one, produce(1, 100))  # in front of it: the answer has to wait for its turn
    from_client(one, request(CREATE_TOPICS, 4, 2, b""))
    assert one.describe(0.0) == "full"
    from_broker(one, produce_response(1))
    assert one.describe(0.0) == "open"


def test_asking_until_the_interceptor_decides() -> None:
    interceptor = Deciding()
    interceptor.outcomes = [Wait(interceptor.later)]
    one = session(ledger(), interceptors={CREATE_TOPICS: interceptor})
    from_client(one, request(CREATE_TOPICS, 4, 1, b"") + produce(2, 100))
    assert one.describe(0.0) == "asking"
    assert not one.client_at_boundary
    assert interceptor.decide is not None
    interceptor.decide(Answer(b"\0\0\0\0"))
    assert one.describe(0.0) == "open"
    assert one.taken() == produce(2, 100)
    assert one.client_at_boundary
    assert len(answers(one)) > 4


def test_login_until_the_broker_has_answered() -> None:
    one = identified(ledger(), login_expected=True)
    from_client(one, handshake("PLAIN"))
    assert one.describe(0.0) == "login"
    from_broker(one, handshake_response())
    assert one.describe(0.0) == "open"


def test_login_also_while_a_name_is_looked_up() -> None:
    one = session(ledger())
    one.user_of = lambda _login: None
    log_in(one, "PLAIN", PLAIN_STEPS)
    assert one.describe(0.0) == "login"
    one.identify("alice")
    assert one.describe(0.0) == "open"


def test_of_several_the_last_in_the_table_counts() -> None:
    one = session(ledger(produce_rate=100, smooth=False), max_in_flight=1)
    from_client(one, produce(1, 2000))
    one.on_drain(0.0)
    assert one.describe(0.0) == "muted"
    assert one.describe(10_000.0) == "full"
    from_broker(one, produce_response(1), 10_000.0)
    assert one.describe(20_000.0) == "draining"


def test_connecting_until_the_broker_is_there() -> None:
    one = session(ledger())
    data = bytearray(produce(1, 2000))
    assert one.on_client_bytes(memoryview(data), len(data), 0.0).connect
    assert one.describe(0.0) == "connecting"
    one.on_connected(0.0, 0.0)
    assert one.describe(0.0) == "open"


# ---- accounts -------------------------------------------------------------------------------------------------------


def kept(of: Ledger, client_id: str) -> bool:
    """Whether an account outlives a sweep of those that were not used for an hour."""
    account = of.account("ANONYMOUS", client_id)
    account.last_ms = 0
    for _ in of.sweep(2 * HOUR_MS):
        pass
    return account in list(of.accounts())


def connections(of: Ledger) -> list[int]:
    return [account.connections for account in of.accounts()]


def test_an_account_without_connections_is_forgotten() -> None:
    of = ledger()
    assert not kept(of, "c")


def test_a_session_keeps_the_accounts_of_its_client_ids() -> None:
    of = ledger()
    one = session(of)
    from_client(one, produce(1, 100))
    from_client(one, produce(2, 100, client_id="d"))
    assert (kept(of, "c"), kept(of, "d")) == (True, True)
    assert one.client_ids == ["c", "d"]
    one.close(0.0)
    assert (kept(of, "c"), kept(of, "d")) == (False, False)


def test_another_user_leaves_the_accounts_of_the_first() -> None:
    of = ledger()
    one = identified(of)
    whole = produce(1, 5000, acks=0)
    from_client(one, whole)
    log_in(one, "PLAIN", PLAIN_STEPS)
    assert of.account("ANONYMOUS", "c").meter(Kind.PRODUCE).amount == len(whole) - 4
    assert not kept(of, "c")
    assert of.account("alice", "c").connections == 0


def ended_by_the_client(one: Driven) -> None:
    whole = produce(3, 5000)
    from_client(one, produce(1, 100) + request(FETCH, 11, 2, fetch_body(11, partitions={0: 0}), "d") + whole[:600])


def ended_within_a_response(one: Driven) -> None:
    from_client(one, request(FETCH, 4, 1, fetch_body(4, partitions={0: 0}), "d"))
    from_broker(one, struct.pack(">iiii", 100_000, 1, 0, 0) + b"\0" * 500)


def ended_in_a_login(one: Driven) -> None:
    from_client(one, handshake("PLAIN"))


def ended_while_queued(one: Driven) -> None:
    other = session(one.state.ledger)
    from_client(other, produce(1, 1 * MB))
    from_client(one, produce(1, 100))
    assert one.describe(0.0) == "held"
    other.close(0.0)


def ended_while_asking(one: Driven) -> None:
    from_client(one, request(CREATE_TOPICS, 4, 1, b""))


@pytest.mark.parametrize(
    "end", [ended_by_the_client, ended_within_a_response, ended_in_a_login, ended_while_queued, ended_while_asking]
)
def test_nothing_is_kept_after_the_end(end: Callable[[Driven], None]) -> None:
    of = ledger(produce_rate=1000, fetch_rate=1000)

    def never(_body: bytes, _now_ms: float) -> Outcome:
        raise AssertionError("the connection has ended")

    one = admin(of, Ask(METADATA, 1, b"\0\0\0\0", never))
    end(one)
    one.close(math.ulp(1.0))
    assert set(connections(of)) <= {0}


def test_a_client_id_for_each_request_keeps_eight_accounts() -> None:
    of = Ledger(ledger().table, max_clients=50)
    one = session(of)
    for number in range(1000):
        from_client(one, produce(number, 100, client_id=f"c{number}"))
        from_broker(one, produce_response(number))
    assert sum(connections(of)) == len(one.client_ids) == 8
    assert of.clients <= 50
