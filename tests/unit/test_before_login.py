"""Before the login, where a listener wants one: no client is charged, nothing passes unless the broker takes it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.auth.sasl import NO_LOGIN
from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.auth import FREE_VERSIONS, PROBE_VERSION
from proxy.core.wire.messages import metadata_request
from quota.entity import Kind
from tests.support.sasl_tools import (
    PLAIN_STEPS,
    SCRAM_STEPS,
    authenticate,
    authenticate_response,
    handshake,
    handshake_response,
    log_in,
)
from tests.support.session_tools import (
    API_VERSIONS,
    METADATA,
    THREE_WAYS,
    Cut,
    Driven,
    from_broker,
    from_client,
    identified,
    identities,
    ledger,
    produce,
    produce_response,
    request,
    response,
    resumed,
    session,
)

BROKERS = {
    1: struct.pack(">iih9sihii", 1, 1, 9, b"localhost", 9092, -1, -1, 0),
    3: struct.pack(">iiih9sihhii", 0, 1, 1, 9, b"localhost", 9092, -1, -1, -1, 0),
    9: struct.pack(">ibib9sibbbibib", 0, 2, 1, 10, b"localhost", 9092, 0, 0, 0, -1, 1, -1, 0),
}
"""Version of Metadata -> a response body: one broker (without a rack), no cluster id, no controller, no topics."""
NO_BROKERS = {
    1: struct.pack(">iii", 0, -1, 0),
    3: struct.pack(">iihii", 0, 0, -1, -1, 0),
    9: struct.pack(">ibbibib", 0, 1, 0, -1, 1, -1, 0),
}
"""What a broker answers in the middle of a login, before it closes."""


def question(correlation_id: int, version: int = PROBE_VERSION) -> bytes:
    """What the broker is asked in place of the client's request."""
    return metadata_request(version, correlation_id, "kquota")


def takes_requests(correlation_id: int, version: int = PROBE_VERSION) -> bytes:
    """The answer of a broker that needs no login."""
    return response(METADATA, version, correlation_id, BROKERS[version])


# ---- no client is charged -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", THREE_WAYS)
@pytest.mark.parametrize("api_key", [0, 1, 3, 10, 17 + 2, 999])
def test_request_before_login_is_not_charged_nor_forwarded(api_key: int, cut: Cut) -> None:
    of = ledger(produce_rate=1000, fetch_rate=1000, request_percentage=0.001)
    one = identified(of, login_expected=True)
    first = request(API_VERSIONS, 0, 1, b"")
    assert from_client(one, first, cut=cut) == first
    from_broker(one, response(API_VERSIONS, 0, 1, struct.pack(">hi", 0, 0)), 900.0)
    sent = produce(2, 100_000) if api_key == 0 else request(api_key, 0, 2, b"\0" * 100)
    # Byte by byte it is asked as soon as the header is there. The shell reads nothing further then.
    out = b""
    for part in cut(sent):
        if one.must_wait:
            break
        out += from_client(one, part, 1000.0)
    assert out == question(2)
    assert one.must_wait
    assert not one.client_at_boundary, "draining waits for it"
    with pytest.raises(SessionError) as caught:
        one.carry_out(one.on_broker_end(1000.0), 1000.0)
    assert caught.value.reason is CloseReason.LOGIN_MISSING
    assert caught.value.kind is None
    one.close(2000.0)
    assert identities(of) == set()
    assert (one.mute_until_ms, one.client_ids, one.user) == (0.0, [], "ANONYMOUS")
    assert sum(one.state.counters.requests.values()) == 1, "ApiVersions alone"


def test_what_follows_the_first_request_is_not_looked_at() -> None:
    of = ledger()
    one = identified(of, login_expected=True)
    assert from_client(one, b"".join(produce(number, 1000) for number in range(50))) == question(0)
    assert one.must_wait
    assert len(one.exchange) == 1
    assert identities(of) == set()


def test_a_huge_request_does_not_pass() -> None:
    """A frame of 100 MB, of which the first bytes have come: none of it goes to the broker, and no more is read."""
    one = identified(ledger(), login_expected=True)
    head = produce(1, 2000)
    huge = struct.pack(">i", 100_000_000) + head[4:]
    assert from_client(one, huge) == question(1)
    assert one.must_wait


# ---- listeners that need no login although it was expected ----------------------------------------------------------


@pytest.mark.parametrize("cut", THREE_WAYS)
@pytest.mark.parametrize(("acks", "version"), [(-1, 1), (0, 3), (1, 9)])
def test_where_the_broker_takes_requests_they_are_judged_as_any(acks: int, version: int, cut: Cut) -> None:
    of = ledger(produce_rate=1000, smooth=False)
    one = identified(of, login_expected=True, probe_version=version)
    told = []
    one.user_of = lambda login: (told.append(login), "FALLBACK")[1]
    sent = produce(7, 30_000, acks=acks)
    parts = list(cut(sent))
    while not one.must_wait:
        assert from_client(one, parts.pop(0)) in (b"", question(7, version))
    assert identities(of) == set()
    assert from_broker(one, takes_requests(7, version), 10.0) == b"", "the client does not hear of the question"
    assert told == [NO_LOGIN]
    out = one.taken()
    for part in parts:
        out += from_client(one, part, 20.0)
    assert out == sent
    assert identities(of) == {("FALLBACK", "c")}
    (account,) = of.accounts()
    assert account.meters[Kind.PRODUCE].amount == 30_000
    assert one.mute_until_ms > 20.0
    assert one.client_ids == ["c"]
    if acks:
        assert from_broker(one, produce_response(7), 30.0) != b""
    # Once is enough.
    again = request(METADATA, 1, 8, struct.pack(">i", 0))
    assert from_client(one, again, one.mute_until_ms) == again


def test_all_that_was_read_together_follows_in_order() -> None:
    of = ledger()
    one = identified(of, login_expected=True)
    sent = b"".join(produce(number, 1000 + number) for number in range(5))
    assert from_client(one, sent + sent[:700]) == question(0)
    from_broker(one, takes_requests(0))
    assert one.taken() == sent + sent[:700]
    assert [pending.correlation_id for pending in one.exchange] == [0, 1, 2, 3, 4, 0]


def test_a_limit_of_connections_may_end_it_then() -> None:
    def refuse(_login: object) -> str:
        raise SessionError(CloseReason.USER_MAX_CONNECTIONS, "no further connection")

    one = session(ledger(), login_expected=True)
    one.user_of = refuse
    from_client(one, produce(1, 100))
    with pytest.raises(SessionError) as caught:
        from_broker(one, takes_requests(1))
    assert caught.value.reason is CloseReason.USER_MAX_CONNECTIONS


@pytest.mark.parametrize(
    ("version", "body"),
    [*NO_BROKERS.items(), *((version, body) for version in BROKERS for body in (b"", b"\0\0", b"\xff" * 4))],
)
def test_an_answer_without_brokers_is_no_leave(version: int, body: bytes) -> None:
    of = ledger()
    one = identified(of, login_expected=True, probe_version=version)
    from_client(one, produce(1, 100))
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(METADATA, version, 1, body))
    assert caught.value.reason is CloseReason.LOGIN_MISSING
    assert identities(of) == set()


def test_api_versions_are_free_so_often_and_no_oftener() -> None:
    """Where the broker wants no login it answers any number of them: that is no way around a limit of request time."""
    of = ledger(request_percentage=100.0)
    one = identified(of, login_expected=True)
    for number in range(FREE_VERSIONS):
        sent = request(API_VERSIONS, 0, number, b"")
        assert from_client(one, sent) == sent
        from_broker(one, response(API_VERSIONS, 0, number, struct.pack(">hi", 0, 0)))
    assert identities(of) == set()
    sent = request(API_VERSIONS, 0, 9, b"")
    assert from_client(one, sent) == question(9)
    from_broker(one, takes_requests(9))
    assert one.taken() == sent
    assert identities(of) == {("FALLBACK", "c")}


# ---- in and after a login -------------------------------------------------------------------------------------------


def _begun(one: Driven) -> None:
    log_in(one, "SCRAM-SHA-256", ())


def _half_done(one: Driven) -> None:
    log_in(one, "SCRAM-SHA-256", SCRAM_STEPS[:1])


def _begun_twice(one: Driven) -> None:
    """A broker answers ILLEGAL_SASL_STATE then too, and closes a moment later."""
    log_in(one, "PLAIN", ())
    from_client(one, handshake("PLAIN", correlation_id=2))
    from_broker(one, handshake_response(34, correlation_id=2))


def _unsupported(one: Driven) -> None:
    from_client(one, handshake("PLAIN"))
    from_broker(one, handshake_response(33))


def _wrong_password(one: Driven) -> None:
    log_in(one, "PLAIN", ())
    from_client(one, authenticate(PLAIN_STEPS[0][0]))
    from_broker(one, authenticate_response(58))


@pytest.mark.parametrize("login_expected", [False, True])
@pytest.mark.parametrize("so_far", [_begun, _half_done, _begun_twice, _unsupported, _wrong_password])
def test_no_client_is_charged_before_a_login_is_accepted(
    so_far: Callable[[Driven], None], login_expected: bool
) -> None:
    """The broker has begun a login, so its listener wants one, whatever the sidecar was told."""
    of = ledger()
    one = identified(of, login_expected=login_expected)
    so_far(one)
    assert from_client(one, produce(5, 100_000)) == question(5)
    with pytest.raises(SessionError) as caught:
        from_broker(one, response(METADATA, PROBE_VERSION, 5, NO_BROKERS[PROBE_VERSION]))
    assert caught.value.reason is CloseReason.LOGIN_MISSING
    assert identities(of) == set()


def test_a_broker_that_expects_no_login_has_said_so() -> None:
    """ILLEGAL_SASL_STATE to the first SaslHandshake: there is nothing to ask."""
    of = ledger()
    one = identified(of, login_expected=True)
    from_client(one, handshake("PLAIN"))
    from_broker(one, handshake_response(34))
    assert from_client(one, produce(3, 100)) == produce(3, 100)
    assert identities(of) == {("FALLBACK", "c")}


@pytest.mark.parametrize("version", [-1, 2])
def test_after_the_login_no_question_is_asked(version: int) -> None:
    of = ledger()
    one = identified(of, login_expected=True)
    log_in(one, "PLAIN", PLAIN_STEPS, version=version, lifetime_ms=60_000 if version > 0 else 0)
    assert from_client(one, produce(3, 100)) == produce(3, 100)
    from_broker(one, produce_response(3))
    if version > 0:  # and in the middle of another login it is whose it was: the broker decides
        log_in(one, "PLAIN", ())
        assert from_client(one, produce(4, 100)) == produce(4, 100)
    assert identities(of) == {("alice", "c")}


@given(
    frames=st.lists(
        st.sampled_from(
            [
                request(API_VERSIONS, 0, 1, b""),
                request(API_VERSIONS, 99, 1, b""),
                handshake("PLAIN"),
                handshake("PLAIN", 0),
                authenticate(PLAIN_STEPS[0][0]),
                produce(2, 500),
                produce(2, 500, acks=0),
                request(METADATA, 1, 3, struct.pack(">i", 0)),
            ]
        ),
        max_size=8,
    ),
    error=st.sampled_from([0, 33, 58]),
)
def test_ledger_stays_empty_before_an_accepted_login(frames: list[bytes], error: int) -> None:
    """A broker that takes no request without a login; the requests that reach it are ApiVersions and logins."""
    of = ledger(produce_rate=1000, request_percentage=1.0)
    one = identified(of, login_expected=True)
    passed = 0
    try:
        for frame in frames:
            passed += len(from_client(one, frame, 10.0))
            while (pending := one.exchange.oldest) is not None and pending.local_answer is None:
                if pending.api_version == -1:
                    break
                if pending is one.exchange.question:
                    one.carry_out(one.on_broker_end(10.0), 10.0)
                body = {
                    API_VERSIONS: struct.pack(">hi", 0, 0),
                    17: struct.pack(">hi", error, 0),
                    36: b"\0\x3a\0\1" + bytes(9),
                }[pending.api_key]
                from_broker(one, response(pending.api_key, pending.api_version, pending.correlation_id, body), 5000.0)
            if one.must_wait:
                break
            resumed(one, 20.0)
    except SessionError as error_:
        assert error_.reason in (CloseReason.LOGIN_MISSING, CloseReason.CLIENT_MALFORMED)  # noqa: PT017 - either is right
    assert identities(of) == set()
    assert one.mute_until_ms == 0.0
    assert passed < 1000
