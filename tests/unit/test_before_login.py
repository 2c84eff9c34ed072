"""Before the login, where a listener wants one: no client is charged, nothing passes unless the broker takes it."""

import struct

import pytest

from proxy.core.auth.sasl import NO_LOGIN
from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.auth import FREE_VERSIONS, PROBE_VERSION
from proxy.core.wire.apis import API_VERSIONS, METADATA
from proxy.core.wire.messages import metadata_request
from quota.entity import Kind
from tests.support import sasl_tools as sasl
from tests.support import session_tools as tools
from tests.support.sasl_tools import PLAIN_STEPS, authenticate, authenticate_response, handshake, handshake_response
from tests.support.session_tools import from_broker, from_client, identified, ledger, produce, request, response
from tests.support.wire_tools import kafka_python_class, kafka_python_message


def metadata(version: int, *brokers: str) -> bytes:
    """A response body without a cluster id, a controller and topics."""
    nodes = [{"node_id": 1, "host": host, "port": 9092, "rack": None} for host in brokers]
    cls = kafka_python_class(METADATA, "response")
    message = kafka_python_message(cls, version, brokers=nodes, cluster_id=None, controller_id=-1, topics=[])
    return bytes(message.encode(version=version))


BROKERS = {version: metadata(version, "localhost") for version in (1, 3, 9)}
NO_BROKERS = {version: metadata(version) for version in BROKERS}
"""What a broker answers in the middle of a login, before it closes."""


def question(correlation_id: int, version: int = PROBE_VERSION) -> bytes:
    return metadata_request(version, correlation_id, "kquota")


def takes_requests(correlation_id: int, version: int = PROBE_VERSION) -> bytes:
    return response(METADATA, version, correlation_id, BROKERS[version])


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize(
    "sent",
    [
        *(request(api_key, 0, 2, b"\0" * 100) for api_key in (1, 3, 10, 19, 999)),
        b"".join(produce(number, 1000) for number in range(2, 50)),
        struct.pack(">i", 100_000_000) + produce(2, 2000)[4:],
    ],
    ids=["Fetch", "Metadata", "FindCoordinator", "CreateTopics", "unknown", "pipeline", "huge"],
)
def test_request_before_login_is_not_charged_nor_forwarded(sent: bytes, cut: tools.Cut) -> None:
    of = ledger(produce_rate=1000, fetch_rate=1000, request_percentage=0.001)
    one = identified(of, login_expected=True)
    first = request(API_VERSIONS, 0, 1, b"")
    assert from_client(one, first, cut=cut) == first
    from_broker(one, response(API_VERSIONS, 0, 1, struct.pack(">hi", 0, 0)), 900.0)
    # Byte by byte it is asked as soon as the header is there. The shell reads nothing further then.
    out, parts = b"", cut(sent)
    while not one.must_wait:
        out += from_client(one, next(parts), 1000.0)
    assert out == question(2)
    assert len(one.exchange) == 1
    assert not one.client_at_boundary, "draining waits for it"
    with pytest.raises(SessionError) as caught:
        one.carry_out(one.on_broker_end(1000.0), 1000.0)
    assert (caught.value.reason, caught.value.kind) == (CloseReason.LOGIN_MISSING, None)
    one.close(2000.0)
    assert tools.identities(of) == set()
    assert (one.mute_until_ms, one.client_ids, one.user) == (0.0, [], "ANONYMOUS")
    assert sum(one.state.counters.counted.by_api().values()) == 1, "ApiVersions alone"


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize(("acks", "version"), [(-1, 1), (0, 3), (1, 9)])
def test_where_the_broker_takes_requests_they_are_judged_as_any(acks: int, version: int, cut: tools.Cut) -> None:
    of = ledger(produce_rate=1000, smooth=False)
    one = identified(of, login_expected=True, probe_version=version)
    answer = []
    one.user_of = lambda login: (answer.append(login), "FALLBACK")[1]
    sent = produce(6, 1000, acks=0) + produce(7, 29_000, acks=acks)
    parts, out = cut(sent), b""
    while not one.must_wait:
        out += from_client(one, next(parts))
    assert out == question(6, version)
    assert tools.identities(of) == set()
    assert from_broker(one, takes_requests(6, version), 10.0) == b"", "the client does not hear of the question"
    assert answer == [NO_LOGIN]
    out = one.taken() + b"".join(from_client(one, part, 20.0) for part in parts)
    assert out == sent
    assert tools.identities(of) == {("FALLBACK", "c")}
    assert of.account("FALLBACK", "c").meters[Kind.PRODUCE].amount == 30_000
    assert one.mute_until_ms > 20.0
    assert one.client_ids == ["c"]
    if acks:
        assert from_broker(one, tools.produce_response(7), 30.0) != b""
    # Once is enough.
    again = request(METADATA, 1, 8, struct.pack(">i", 0))
    assert from_client(one, again, one.mute_until_ms) == again


def test_api_versions_are_free_so_often_and_no_oftener() -> None:
    """Where the broker wants no login it answers any number of them: that is no way around a limit of request time."""
    of = ledger(request_percentage=100.0)
    one = identified(of, login_expected=True)
    assert from_client(one, request(API_VERSIONS, 99, 0, b"")) == b"", "answered here"
    for number in range(FREE_VERSIONS - 1):
        sent = request(API_VERSIONS, 0, number, b"")
        assert from_client(one, sent) == sent
        from_broker(one, response(API_VERSIONS, 0, number, struct.pack(">hi", 0, 0)))
    assert tools.identities(of) == set()
    sent = request(API_VERSIONS, 0, 9, b"")
    assert from_client(one, sent) == question(9)
    from_broker(one, takes_requests(9))
    assert one.taken() == sent
    assert tools.identities(of) == {("FALLBACK", "c")}


LOGIN = handshake("PLAIN"), handshake_response()
SO_FAR = {
    "nothing": [],
    "begun": [LOGIN],
    "half done": [
        (handshake("SCRAM-SHA-256"), handshake_response()),
        (authenticate(sasl.SCRAM_STEPS[0][0]), authenticate_response(0, sasl.SCRAM_STEPS[0][1])),
    ],
    # A broker answers ILLEGAL_SASL_STATE then too, and closes a moment later.
    "begun twice": [LOGIN, (handshake("PLAIN", correlation_id=2), handshake_response(34, correlation_id=2))],
    "unsupported": [(handshake("PLAIN"), handshake_response(33))],
    "wrong password": [LOGIN, (authenticate(PLAIN_STEPS[0][0]), authenticate_response(58))],
}
NO_LEAVE = [*NO_BROKERS.items(), *((version, body) for version in BROKERS for body in (b"", b"\0\0", b"\xff" * 4))]


@pytest.mark.parametrize("so_far", SO_FAR)
@pytest.mark.parametrize(("version", "body"), NO_LEAVE)
def test_an_answer_without_brokers_is_no_leave(so_far: str, version: int, body: bytes) -> None:
    """A broker that has begun a login has a listener that wants one, whatever the sidecar's configuration says."""
    for login_expected in {True, so_far == "nothing"}:
        of = ledger()
        one = identified(of, login_expected=login_expected, probe_version=version)
        for asked, answered in SO_FAR[so_far]:
            from_client(one, asked)
            from_broker(one, answered)
        assert from_client(one, produce(5, 100_000)) == question(5, version)
        with pytest.raises(SessionError) as caught:
            from_broker(one, response(METADATA, version, 5, body))
        assert caught.value.reason is CloseReason.LOGIN_MISSING
        assert tools.identities(of) == set()


def test_a_broker_that_expects_no_login_has_said_so() -> None:
    """ILLEGAL_SASL_STATE to the first SaslHandshake: there is nothing to ask."""
    of = ledger()
    one = identified(of, login_expected=True)
    from_client(one, authenticate(PLAIN_STEPS[0][0]))  # which nobody has begun
    from_broker(one, authenticate_response(34))
    assert tools.identities(of) == set()
    from_client(one, handshake("PLAIN"))
    from_broker(one, handshake_response(34))
    assert from_client(one, produce(3, 100)) == produce(3, 100)
    assert tools.identities(of) == {("FALLBACK", "c")}


@pytest.mark.parametrize("version", [-1, 2])
def test_after_the_login_no_question_is_asked(version: int) -> None:
    of = ledger()
    one = identified(of, login_expected=True)
    sasl.log_in(one, "PLAIN", PLAIN_STEPS, version=version, lifetime_ms=60_000 if version > 0 else 0)
    assert from_client(one, produce(3, 100)) == produce(3, 100)
    from_broker(one, tools.produce_response(3))
    if version > 0:  # and in the middle of another login it is whose it was: the broker decides
        sasl.log_in(one, "PLAIN", ())
        assert from_client(one, produce(4, 100)) == produce(4, 100)
    assert tools.identities(of) == {("alice", "c")}
