"""Requests that wait at the gate (ADR 0026), in the session: nothing is forwarded or charged before their turn."""

import struct

import pytest

from proxy.core.errors import CloseReason, SessionError
from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.session.throttle import renewal_ms
from proxy.core.wire.apis import FETCH, METADATA, PRODUCE, SHARE_FETCH
from proxy.core.wire.topics import CREATE_TOPICS
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support import session_tools as tools
from tests.support.mutation_tools import Cluster, encoded, metadata
from tests.support.session_tools import from_broker, from_client, ledger, produce, request, response, session

KB, MB = 1000, 1_000_000
TOPIC_T = encoded(metadata(12, ["t"]))


def wait(one: tools.Driven, now_ms: float, until_ms: float = 1e9) -> tuple[float, bytes]:
    """Look again whenever the session says so; when the first bytes were forwarded, and which."""
    while now_ms < until_ms:
        now_ms = max(one.mute_until_ms, now_ms)
        if out := tools.resumed(one, now_ms):
            return now_ms, out
        assert one.mute_until_ms > now_ms
    return now_ms, b""


def indebted() -> Ledger:
    """A ledger whose group owes: 2 MB at 0.1 MB/s are 10 s more than fit into the window."""
    of = ledger(produce_rate=100 * KB)
    first = session(of)
    assert len(from_client(first, produce(1, 2 * MB), 0.0)) == 2 * MB + 4
    assert first.mute_until_ms == 10_000.0
    return of


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
def test_new_connection_of_group_in_debt_waits(cut: tools.Cut) -> None:
    new = session(of := indebted())
    meter = of.account("ANONYMOUS", "c").meters[Kind.PRODUCE]
    amount = meter.amount
    assert from_client(new, produce(1, 500), 1000.0, cut) == b""
    assert new.state.throttle.place is not None
    assert new.describe(1000.0) == "queued"
    assert not new.exchange
    assert meter.amount == amount
    at_ms, out = wait(new, 1000.0)
    out += tools.resumed(new, at_ms)
    assert out == produce(1, 500)
    assert 9_700.0 <= at_ms <= 9_900.0
    assert new.state.throttle.place is None
    assert (meter.queued, meter.queued_ms) == (1, pytest.approx(at_ms - 1000.0, abs=1))
    assert from_broker(new, tools.produce_response(1), at_ms + 1)


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        (b"", 99, CloseReason.UNSUPPORTED_VERSION),
        (struct.pack(">h", -2), 7, CloseReason.CLIENT_MALFORMED),  # the transactional id's length
        (b"\xff\xff\xff\xff\x7f", 9, CloseReason.CLIENT_MALFORMED),
    ],
)
def test_bad_requests_of_a_group_in_debt_are_refused(body: bytes, version: int, reason: CloseReason) -> None:
    with pytest.raises(SessionError) as refused:
        from_client(session(indebted()), request(PRODUCE, version, 1, body), 1000.0)
    assert refused.value.reason is reason


def test_only_requests_behind_a_queued_one_wait() -> None:
    new = session(indebted())
    asked = request(METADATA, 1, 1, bytes(4))
    other = produce(4, 500, client_id="other")  # another group
    assert from_client(new, other + asked + produce(2, 500) + asked, 1000.0) == other + asked
    at_ms, out = wait(new, 1000.0)
    assert out == produce(2, 500)
    assert new.mute_until_ms > at_ms, "it is muted for itself now"
    assert wait(new, at_ms)[1] == asked


def test_a_new_client_id_of_a_user_in_debt_waits_too() -> None:
    of = Ledger(QuotaTable([Entry(user=DEFAULT, producer_byte_rate=100 * KB)]))
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, 2 * MB, 0.0)
    assert from_client(session(of), produce(1, 500, client_id="invented"), 1000.0) == b""


def test_charges_incomplete_request_as_far_as_forwarded() -> None:
    one = session(of := ledger(produce_rate=1 * MB))
    from_client(one, produce(1, 5 * MB)[: 3 * MB], 0.0)
    one.close(1000.0)
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount == 3 * MB - 4


def test_request_time_queues_new_connections_too() -> None:
    one, new = session(of := ledger(request_percentage=1)), session(of)
    asked = request(METADATA, 1, 1, bytes(4))
    from_client(one, asked, 0.0)
    from_broker(one, struct.pack(">iiii", 12, 1, 0, 0), 500.0)  # busy for 500 ms: 5 % of the window, 40 s owed
    assert one.mute_until_ms == 1500.0, "the same as in Kafka"
    assert from_client(new, asked, 600.0) == b""
    at_ms, out = wait(new, 600.0)
    assert out
    assert 29_000.0 <= at_ms <= 31_000.0, "at most half a minute is owed"


@pytest.mark.parametrize(
    "frame",
    [
        request(SHARE_FETCH, 1, 1, b"\0" + bytes(40)),
        # Incremental (session 7, epoch 5), and larger than what is looked at whole: it could not be carried over.
        request(FETCH, 11, 1, struct.pack(">iiiibiii", -1, 500, 1, MB, 0, 7, 5, 1) + bytes(70_000)),
    ],
    ids=["ShareFetch", "large"],
)
def test_a_fetch_that_cannot_be_answered_here_waits(frame: bytes) -> None:
    of = ledger(fetch_rate=100 * KB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.FETCH, 3 * MB, 0.0)
    one = session(of, rewrite=False)
    assert from_client(one, frame, 1000.0) == b""
    place = one.state.throttle.place
    assert place is not None
    assert place.kind is Kind.FETCH
    at_ms, out = wait(one, 1000.0)
    assert at_ms >= 12_000.0
    assert len(out + tools.resumed(one, at_ms)) == len(frame)


def test_permissive_mutations_wait() -> None:
    of = mutating()
    one = session(of, interceptors=dict.fromkeys(MUTATION_APIS, MutationQuota(of)))
    create = request(CREATE_TOPICS, 1, 1, struct.pack(">i", 1) + b"\0\1t" + struct.pack(">ihiiib", 1, 1, 0, 0, 1000, 0))
    assert from_client(one, create, 1000.0) == b""
    assert one.state.throttle.place is not None
    assert wait(one, 1000.0) == (10_000.0, create)


def mutating() -> Ledger:
    """A ledger in which client "c" alone may change one partition a second, and has changed 21: 11 tokens, 10 s."""
    of = Ledger(QuotaTable([Entry(client_id="c", controller_mutation_rate=1)]))
    of.charge_mutation(of.account("ANONYMOUS", "c"), 21, False, 0.0)
    return of


def test_metadata_is_kept_only_of_clients_with_mutation_limit() -> None:
    of = mutating()
    handler = MutationQuota(of)
    handler.recent.learn_default(3, 0.0)
    interceptors = dict.fromkeys(MUTATION_APIS, handler)
    other = session(of, interceptors=interceptors)
    for body in (TOPIC_T, b"\xff\xff\xff\xff"):
        frame = request(METADATA, 12, 1, body, client_id="other")
        assert from_client(other, frame[:-1]) == frame[:-1]
        assert from_client(other, frame[-1:]) == frame[-1:]
    one = session(of, interceptors=interceptors)
    frame, forbidden = request(METADATA, 12, 7, TOPIC_T), encoded(metadata(12, ["t"], creates=False))
    assert from_client(one, frame[:-1]) == b""
    assert from_client(one, frame[-1:]) == request(METADATA, 12, 7, forbidden)
    answer = response(METADATA, 12, 7, Cluster().handle(METADATA, 12, forbidden))
    assert from_broker(one, answer) == b""
    assert one.taken() == request(METADATA, 12, 7, forbidden)
    assert from_broker(one, answer) == answer
    with pytest.raises(SessionError):
        from_client(one, request(METADATA, 12, 8, b"\xff\xff\xff\xff"))


def test_reaches_login_behind_queued_request_before_session_end() -> None:
    """KIP-368: what is in the way of the login passes, as far as the group's allowance goes; it is charged."""
    of = ledger(produce_rate=1 * MB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, 300 * MB, 0.0)
    new = session(of)
    new.state.throttle.renewed(10_000, 0.0)
    assert renewal_ms(10_000) == 800.0
    assert from_client(new, produce(1, 1 * MB), 5000.0) == b""
    at_ms, out = wait(new, 5000.0, until_ms=20_000.0)
    assert out
    assert 9_200.0 <= at_ms < 10_000.0
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount == 301 * MB
