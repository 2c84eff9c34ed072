"""Requests that wait at the gate (ADR 0026), in the session: nothing is forwarded or charged before their turn."""

from __future__ import annotations

import struct
from datetime import timedelta

import pytest

from proxy.core.errors import CloseReason, SessionError
from proxy.core.session.throttle import renewal_ms
from quota.entity import Kind
from quota.ledger import Ledger
from tests.support.session_tools import (
    FETCH,
    METADATA,
    PRODUCE,
    Cut,
    byte_by_byte,
    encode,
    from_broker,
    from_client,
    in_sevens,
    kio_message,
    ledger,
    produce,
    produce_response,
    request,
    response,
    resumed,
    session,
    whole,
)

HEARTBEAT, CREATE_TOPICS, SHARE_FETCH = 12, 19, 78
KB, MB = 1000, 1_000_000


class Fed:
    """A session with the bytes that are still in its client's socket."""

    def __init__(self, of: Ledger, **settings: object) -> None:
        self.one = session(of, **settings)
        self.rest = b""

    def send(self, data: bytes, now_ms: float, cut: Cut = whole) -> bytes:
        self.rest += b"".join(cut(data))
        return self.read(now_ms, cut)

    def read(self, now_ms: float, cut: Cut = whole) -> bytes:
        """What a connection does when it may read: the backlog first."""
        one, out = self.one, b""
        if one.mute_until_ms > now_ms:
            return b""
        if one.has_backlog:
            out += resumed(one, now_ms)
        parts, self.rest = list(cut(self.rest)), b""
        while parts and not one.has_backlog and one.mute_until_ms <= now_ms:
            out += from_client(one, parts.pop(0), now_ms)
        self.rest = b"".join(parts)
        return out

    def wait(self, now_ms: float, cut: Cut = whole, until_ms: float = 1e9) -> tuple[float, bytes]:
        """Look again whenever the session says so; when the first bytes were forwarded, and which."""
        while now_ms < until_ms:
            now_ms = max(self.one.mute_until_ms, now_ms)
            if out := self.read(now_ms, cut):
                return now_ms, out
            assert self.one.mute_until_ms > now_ms
        return now_ms, b""


def indebted() -> Ledger:
    """A ledger whose group owes: 2 MB at 0.1 MB/s are 10 s more than fit into the window."""
    of = ledger(produce_rate=100 * KB)
    first = Fed(of)
    assert len(first.send(produce(1, 2 * MB), 0.0)) == 2 * MB + 4
    assert first.one.mute_until_ms == 10_000.0
    return of


@pytest.mark.parametrize("cut", [whole, byte_by_byte, in_sevens])
def test_new_connection_of_group_in_debt_waits(cut: Cut) -> None:
    of = indebted()
    new = Fed(of)
    amount = of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount
    assert new.send(produce(1, 500), 1000.0, cut) == b""
    assert new.one.state.throttle.place is not None
    assert not new.one.exchange
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount == amount
    at_ms, out = new.wait(1000.0)
    out += new.read(at_ms)
    assert out == produce(1, 500)
    assert 9_700.0 <= at_ms <= 9_900.0
    assert new.one.state.throttle.place is None
    meter = of.account("ANONYMOUS", "c").meters[Kind.PRODUCE]
    assert meter.queued == 1
    assert meter.queued_ms == pytest.approx(at_ms - 1000.0, abs=1)
    assert from_broker(new.one, produce_response(1), at_ms + 1)


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        (b"", 99, CloseReason.UNSUPPORTED_VERSION),
        (struct.pack(">h", -2), 7, CloseReason.CLIENT_MALFORMED),  # the transactional id's length
        (b"\xff\xff\xff\xff\x7f", 9, CloseReason.CLIENT_MALFORMED),
    ],
)
@pytest.mark.parametrize("cut", [whole, byte_by_byte])
def test_bad_requests_of_a_group_in_debt_are_refused(body: bytes, version: int, reason: CloseReason, cut: Cut) -> None:
    for of in (indebted(), ledger(produce_rate=100 * KB)):
        with pytest.raises(SessionError) as refused:
            Fed(of).send(request(PRODUCE, version, 1, body), 1000.0, cut)
        assert refused.value.reason is reason


def test_only_requests_behind_a_queued_one_wait() -> None:
    of = indebted()
    new = Fed(of)
    metadata = request(METADATA, 1, 1, struct.pack(">i", 0))
    assert new.send(metadata + produce(2, 500) + metadata, 1000.0) == metadata
    at_ms, out = new.wait(1000.0)
    assert out == produce(2, 500)
    assert new.one.mute_until_ms > at_ms, "it is muted for itself now"
    _, out = new.wait(at_ms)
    assert out == metadata


def test_the_first_connection_is_muted_and_not_queued_as_well() -> None:
    of = ledger(produce_rate=100 * KB)
    one = Fed(of)
    one.send(produce(1, 2 * MB), 0.0)
    one.rest = produce(2, 500)
    at_ms, out = one.wait(0.0)
    assert (at_ms, out) == (10_000.0, produce(2, 500))
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].queued == 0


def test_other_groups_and_other_apis_do_not_wait() -> None:
    of = indebted()
    new = Fed(of)
    assert new.send(produce(1, 500, client_id="other"), 1000.0) == produce(1, 500, client_id="other")
    heartbeat = request(HEARTBEAT, 1, 2, struct.pack(">h", 1) + b"g" + struct.pack(">ih", 1, 0))
    assert new.send(heartbeat, 1000.0) == heartbeat


def test_a_new_client_id_of_a_user_in_debt_waits_too() -> None:
    """Its first request is the first that is known of it."""
    from quota.entity import DEFAULT
    from quota.table import Entry, QuotaTable

    of = Ledger(QuotaTable([Entry(user=DEFAULT, producer_byte_rate=100 * KB)]))
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, 2 * MB, 0.0)
    for number in range(3):
        new = Fed(of)
        assert new.send(produce(1, 500, client_id=f"invented-{number}"), 1000.0) == b""


def test_a_connection_that_ends_gives_its_place_away() -> None:
    of = indebted()
    waiting = [Fed(of) for _ in range(5)]
    for one in waiting:
        one.send(produce(1, 100 * KB), 1000.0)
    for one in waiting[:4]:
        one.one.close(2000.0)
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].queued == 0
    at_ms, _ = waiting[4].wait(2000.0)
    assert at_ms <= 9_900.0


@pytest.mark.parametrize(
    ("acks", "sent", "debt", "kept"),
    [(1, 1.0, 2 * MB, False), (0, 1.0, 2 * MB, True), (0, 0.5, 2 * MB, False), (0, 1.0, 4 * MB, False)],
    ids=["answer", "no answer", "half of it", "turn in 29 s"],
)
def test_what_is_kept_for_a_client_that_has_gone(acks: int, sent: float, debt: int, kept: bool) -> None:
    of = ledger(produce_rate=100 * KB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, debt, 0.0)
    new, frame = Fed(of), produce(1, 500, acks=acks)
    assert new.send(frame[: int(len(frame) * sent)], 1000.0) == b""
    place = new.one.state.throttle.place
    assert place is not None
    place.all_read = True
    assert new.one.state.throttle.keeps(len(frame), 1000.0) is kept
    if kept:
        assert new.one.state.throttle.keeps(len(frame), 10_999.0)
        assert not new.one.state.throttle.keeps(len(frame), 11_000.0)
    assert of.kept.requests == kept
    if kept:
        assert new.wait(1000.0) == (9_800.0, frame)
    new.one.close(11_000.0)
    assert (of.kept.requests, of.kept.bytes) == (0, 0)


@pytest.mark.parametrize(("acks", "forwarded"), [(1, False), (0, True)])
def test_a_muted_client_that_has_gone_pays_nothing(acks: int, forwarded: bool) -> None:
    of = ledger(produce_rate=100 * KB)
    gone = Fed(of)
    gone.send(produce(1, 2 * MB), 0.0)
    from_broker(gone.one, produce_response(1), 1.0)
    gate = next(of.groups(Kind.PRODUCE))._gate  # type: ignore[attr-defined]
    gone.rest = produce(2, 500 * KB, acks=acks)
    gone.one.state.throttle.client_gone()
    assert gate is None or gate.ahead_ms(1.0) == 0.0, "others do not wait for its next request"
    at_ms, out = gone.wait(1.0, until_ms=20_000.0)
    assert bool(out) is forwarded
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount == 2 * MB + forwarded * 500 * KB
    if not forwarded:
        assert gone.one.state.throttle.place is not None
        assert not gone.one.state.throttle.keeps(1, at_ms)


@pytest.mark.parametrize("api", [FETCH, METADATA])
def test_a_client_that_has_gone_may_leave_its_group(api: int) -> None:
    """What has an effect without its answer is forwarded, a Fetch is not."""
    one = Fed(ledger(produce_rate=100 * KB))
    one.send(produce(1, 2 * MB), 0.0)
    one.one.state.throttle.client_gone()
    body = struct.pack(">iiiibiii", -1, 500, 1, MB, 0, 0, -1, 0) if api == FETCH else struct.pack(">i", 0)
    one.rest = request(api, 4 if api == FETCH else 1, 3, body)
    _, out = one.wait(0.0, until_ms=20_000.0)
    assert bool(out) is (api == METADATA)


def test_charges_incomplete_request_as_far_as_forwarded() -> None:
    of = ledger(produce_rate=1 * MB)
    one = Fed(of)
    one.send(produce(1, 5 * MB)[: 3 * MB], 0.0)
    one.one.close(1000.0)
    assert of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount == 3 * MB - 4


def test_request_time_queues_new_connections_too() -> None:
    of = ledger(request_percentage=1)
    one = Fed(of)
    body = struct.pack(">i", 0)
    one.send(request(METADATA, 1, 1, body), 0.0)
    from_broker(one.one, struct.pack(">iiii", 12, 1, 0, 0), 500.0)  # busy for 500 ms: 5 % of the window, 40 s owed
    assert one.one.mute_until_ms == 1500.0, "told as much as Kafka tells"
    new = Fed(of)
    assert new.send(request(METADATA, 1, 1, body), 600.0) == b""
    at_ms, out = new.wait(600.0)
    assert out
    assert 29_000.0 <= at_ms <= 31_000.0, "at most half a minute is owed"


def test_a_share_fetch_waits_like_a_fetch() -> None:
    of = ledger(fetch_rate=100 * KB)
    account = of.account("ANONYMOUS", "c")
    of.charge(account, Kind.FETCH, 3 * MB, 0.0)
    one = Fed(of, rewrite=False)
    frame = request(SHARE_FETCH, 1, 1, b"\0" + bytes(40))
    assert one.send(frame, 1000.0) == b""
    place = one.one.state.throttle.place
    assert place is not None
    assert place.kind is Kind.FETCH
    at_ms, out = one.wait(1000.0)
    assert out == frame
    assert at_ms >= 12_000.0


def test_a_fetch_that_cannot_be_answered_here_waits_as_well() -> None:
    """Of a session, and larger than what is looked at whole: what it says could not be carried over."""
    of = ledger(fetch_rate=100 * KB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.FETCH, 3 * MB, 0.0)
    one = Fed(of, rewrite=False)
    head = struct.pack(">iiiibii", -1, 500, 1, MB, 0, 7, 5)  # incremental: session 7, epoch 5
    frame = request(FETCH, 11, 1, head + struct.pack(">i", 1) + bytes(70_000))
    assert one.send(frame, 1000.0) == b""
    at_ms, out = one.wait(1000.0)
    assert at_ms >= 12_000.0
    out += one.read(at_ms)
    assert len(out) == len(frame)


def test_permissive_mutations_wait_and_strict_are_refused() -> None:
    from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
    from quota.entity import DEFAULT
    from quota.table import Entry, QuotaTable

    of = Ledger(QuotaTable([Entry(client_id=DEFAULT, controller_mutation_rate=1)]))
    of.charge_mutation(of.account("ANONYMOUS", "c"), 21, False, 0.0)  # 11 tokens: 10 s
    handler = MutationQuota(of)
    one = Fed(of, interceptors=dict.fromkeys(MUTATION_APIS, handler))
    create = request(CREATE_TOPICS, 1, 1, struct.pack(">i", 1) + b"\0\1t" + struct.pack(">ihiiib", 1, 1, 0, 0, 1000, 0))
    assert one.send(create, 1000.0) == b""
    assert one.one.state.throttle.place is not None
    at_ms, out = one.wait(1000.0)
    assert out == create
    assert at_ms == 10_000.0


def test_metadata_is_kept_only_of_clients_with_mutation_limit() -> None:
    from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
    from quota.table import Entry, QuotaTable
    from tests.support.mutation_tools import Cluster, encoded, metadata

    of = Ledger(QuotaTable([Entry(client_id="c", controller_mutation_rate=1)]))
    of.charge_mutation(of.account("ANONYMOUS", "c"), 21, False, 0.0)
    handler = MutationQuota(of)
    handler.learn_default(3, 0.0)
    interceptors = dict.fromkeys(MUTATION_APIS, handler)
    other = session(of, interceptors=interceptors)
    for body in (encoded(metadata(12, ["t"])), b"\xff\xff\xff\xff"):
        frame = request(METADATA, 12, 1, body, client_id="other")
        assert from_client(other, frame[:-1]) == frame[:-1]
        assert from_client(other, frame[-1:]) == frame[-1:]
    one = session(of, interceptors=interceptors)
    frame = request(METADATA, 12, 7, encoded(metadata(12, ["t"])))
    assert from_client(one, frame[:-1]) == b""
    forbidden = encoded(metadata(12, ["t"], creates=False))
    assert from_client(one, frame[-1:]) == request(METADATA, 12, 7, forbidden)
    assert from_broker(one, response(METADATA, 12, 7, Cluster().handle(METADATA, 12, forbidden))) == b""
    assert one.taken() == request(METADATA, 12, 7, forbidden)
    answer = kio_message("metadata", 12, "response")
    broker = answer.MetadataResponseBroker(node_id=1, host="b", port=9092, rack=None)
    body = encode(
        answer.MetadataResponse(
            throttle_time=timedelta(0), brokers=(broker,), cluster_id="c", controller_id=1, topics=()
        )
    )
    told = from_broker(one, response(METADATA, 12, 7, body))
    assert b"\2b" not in told  # its address is replaced as ever
    with pytest.raises(SessionError):
        from_client(one, request(METADATA, 12, 8, b"\xff\xff\xff\xff"))


def test_reaches_login_behind_queued_request_before_session_end() -> None:
    """KIP-368: what is in the way of the login passes, as far as the group's allowance goes; it is charged."""
    of = ledger(produce_rate=1 * MB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, 300 * MB, 0.0)
    new = Fed(of)
    state = new.one.state
    state.throttle.renewed(10_000, 0.0)
    assert renewal_ms(10_000) == 800.0
    assert new.send(produce(1, 1 * MB), 5000.0) == b""
    at_ms, out = new.wait(5000.0, until_ms=20_000.0)
    assert out
    assert 9_200.0 <= at_ms < 10_000.0
    amount = of.account("ANONYMOUS", "c").meters[Kind.PRODUCE].amount
    assert amount == 301 * MB


def test_renewals_of_many_connections_share_one_allowance() -> None:
    of = ledger(produce_rate=1 * MB)
    of.charge(of.account("ANONYMOUS", "c"), Kind.PRODUCE, 300 * MB, 0.0)
    passed = 0
    for _ in range(200):
        new = Fed(of)
        new.one.state.throttle.renewed(1050, 0.0)  # logs in, and is to do so again at once
        passed += bool(new.send(produce(1, 1 * MB), 1000.0))
    assert passed == 10  # ten seconds' worth


def test_a_connection_that_was_queued_is_expected_back_like_any() -> None:
    of = indebted()
    first, second = Fed(of), Fed(of)
    for one in (first, second):
        one.send(produce(1, 100 * KB), 1000.0)
    at_ms, _ = first.wait(1000.0)
    # 10 s that Kafka asks for, until the 2 MB have left the window, are more than its own second and the other's.
    assert first.one.mute_until_ms >= at_ms + 2000.0
    gate = next(of.groups(Kind.PRODUCE))._gate  # type: ignore[attr-defined]
    assert gate.ahead_ms(1.0) >= 1900.0, "the second waits, the first comes back"
    first.one.close(at_ms)
    assert gate.ahead_ms(1.0) <= 1100.0
