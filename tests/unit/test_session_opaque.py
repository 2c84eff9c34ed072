"""Bytes that cannot be read: forwarded as they are, charged by direction, delayed while the group is over its limit."""

from math import inf

import pytest

from proxy.core.errors import CloseReason
from proxy.core.session.opaque import HANDSHAKE_BYTES, QUIET_MS, OpaqueSession
from proxy.core.telemetry.observer import Counters
from quota.entity import DEFAULT
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

LIMIT = 100_000.0
BULK = memoryview(bytearray(b"x" * 65_536))


def opened(**limits: float) -> OpaqueSession:
    ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, **limits)]), num_samples=2, window_ms=1000)
    session = OpaqueSession(ledger, Counters(), user="u")
    assert session.on_client_bytes(BULK, HANDSHAKE_BYTES, 0.0).connect
    assert not session._effects.read_client, "while it is dialled"
    assert session.on_connected(1.0, 0.0).read_client
    session.on_broker_bytes(BULK, HANDSHAKE_BYTES, 0.0, 0.0)
    return session


def test_forwards_both_ways_and_counts_by_direction() -> None:
    session = opened()
    effects = session.on_client_bytes(BULK, 10, 1.0)
    assert [bytes(part) for part in effects.to_broker.parts()] == [b"x" * 10]
    effects = session.on_broker_bytes(BULK, 20, 2.0, 2.0)
    assert [bytes(part) for part in effects.to_client.parts()] == [b"x" * 20]
    assert (effects.read_client, effects.read_broker, effects.wake_at_ms) == (True, True, inf)
    counters = session.state.counters
    assert counters.passthrough.bytes == {"produce": HANDSHAKE_BYTES + 10, "fetch": HANDSHAKE_BYTES + 20}
    assert (session.client_ids, session.exchange.count, session.under_way) == ([""], 0, True)
    assert session.quiet
    assert not session.may_end(1e9), "what is in flight cannot be seen"


@pytest.mark.parametrize(("limit", "up"), [("producer_byte_rate", True), ("consumer_byte_rate", False)])
def test_only_the_direction_over_its_limit_waits(limit: str, up: bool) -> None:
    session, now_ms, moved = opened(**{limit: LIMIT}), 0.0, 0
    while now_ms < 20_000.0:
        if up:
            effects = session.on_client_bytes(BULK, len(BULK), now_ms)
        else:
            effects = session.on_broker_bytes(BULK, len(BULK), now_ms, now_ms)
        moved += len(BULK)
        while effects.wake_at_ms < inf:
            assert (effects.read_client, effects.read_broker) == (not up, up)
            assert (session.state.counters.connections.muted, session.describe(now_ms)) == (1, "muted")
            now_ms = effects.wake_at_ms
            effects = session.on_deadline(now_ms)
        assert session.state.counters.connections.muted == 0
        now_ms += 1.0
    assert moved / 20.0 == pytest.approx(LIMIT, rel=0.1)
    session.close(now_ms)
    assert session.state.counters.passthrough.open == 0


@pytest.mark.parametrize("reason", [CloseReason.DRAINED, CloseReason.CLIENT_CLOSED])
def test_ends_when_nothing_has_moved_for_a_while(reason: CloseReason) -> None:
    session = opened()
    effects = session.on_drain(1.0) if reason is CloseReason.DRAINED else session.on_client_end(1.0)
    assert (effects.ended, effects.wake_at_ms) == (None, QUIET_MS)
    assert session.on_broker_bytes(BULK, 5, 900.0, 900.0).wake_at_ms == 900.0 + QUIET_MS
    assert session.on_deadline(QUIET_MS).ended is None
    assert session.on_deadline(900.0 + QUIET_MS).ended is reason


def test_bytes_that_wait_for_the_limit_are_not_quiet() -> None:
    session = opened(consumer_byte_rate=LIMIT)
    for now_ms in (1.0, 2.0, 3.0, 4.0):
        effects = session.on_broker_bytes(BULK, len(BULK), now_ms, now_ms)
    session.on_drain(5.0)
    while not effects.read_broker:
        now_ms = effects.wake_at_ms
        effects = session.on_deadline(now_ms)
    assert now_ms > 4.0 + QUIET_MS
    assert effects.ended is None


def test_a_broker_that_closes_ends_it() -> None:
    assert opened().on_broker_end(1.0).ended is CloseReason.BROKER_CLOSED
