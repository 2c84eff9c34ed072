"""Fetch under a quota, at every version: answered here when over it, made smaller near it, sessions kept in step."""

import datetime
import struct
from typing import Any

import pytest
from kio.static.constants import EntityType

from proxy.core.session.request_handler import MAX_PARTIAL_REQUEST_BYTES
from proxy.core.wire import fetch_heads, requests
from proxy.core.wire.apis import version_range
from quota.entity import Kind
from quota.fetch_sizer import HEAD_BYTES
from quota.ledger import Ledger
from tests.support import session_tools as tools
from tests.support.session_tools import from_broker, from_client, ledger, request, response, session
from tests.support.wire_tools import kio_read

VERSIONS = range(4, version_range(tools.FETCH)[1] + 1)  # type: ignore[index]
SESSION_VERSIONS = range(7, VERSIONS.stop)


def sent_request(frame: bytes, client_version: int) -> Any:
    """The FetchRequest in a frame that went to the broker; checks its size, and the version it goes with."""
    upstream = min(client_version, 15)
    assert struct.unpack_from(">hh", frame, 4) == (tools.FETCH, upstream)
    return kio_read(frame, tools.FETCH, upstream, EntityType.request)


def over_quota() -> tuple[Ledger, tools.Driven]:
    """A session whose group has used 1.2 times its quota: 12 000 B in 10 s, quota 1 000 B/s, 2 s delay (not smooth)."""
    book = ledger(fetch_rate=1000, smooth=False)
    book.charge_no_throttle(book.account("ANONYMOUS", "c"), Kind.FETCH, 12_000, 0)
    return book, session(book)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_over_quota_gets_an_empty_response_and_no_session(version: int) -> None:
    for epoch in (-1, 0) if version >= 7 else (-1,):
        _, one = over_quota()
        body = bytearray(tools.fetch_body(version, epoch=epoch, partitions={0: 0}))
        if version < 15:  # a replica id: brokers exempt followers, but none fetches here, and any client can claim it
            body[0:4] = struct.pack(">i", 2)
        assert from_client(one, request(tools.FETCH, version, 5, bytes(body))) == b""
        frame = one.seen()
        assert struct.unpack_from(">i", frame, 4) == (5,)
        got = kio_read(frame, tools.FETCH, version)
        assert (got.throttle_time, got.responses) == (datetime.timedelta(seconds=2), ())
        if version >= 7:
            assert (got.error_code.value, got.session_id) == (0, 0)
        assert one.mute_until_ms == 2000.0
        assert one.quiet


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_incremental_fetch_over_quota_keeps_the_session(version: int) -> None:
    """Epochs 3 and 4 are answered here; the broker gets epoch 5 as its own 3, with everything said meanwhile."""
    _, one = over_quota()

    def ask(correlation_id: int, epoch: int, now_ms: float, **more: Any) -> bytes:
        body = tools.fetch_body(version, session_id=77, epoch=epoch, **more)
        return from_client(one, request(tools.FETCH, version, correlation_id, body), now_ms)

    for epoch, now_ms, named, gone in ((3, 0, {0: 10, 1: 20, 2: 30}, ()), (4, 2000, {1: 21}, (2,))):
        assert ask(1, epoch, now_ms, partitions=named, forget=gone) == b""
        assert kio_read(one.seen(), tools.FETCH, version).session_id == 77
    # 11 s after the burst it has left the window: allowance 1 000 B/s * 10 s = 10 000 B.
    carried = sent_request(ask(3, 5, 12_000, partitions={3: 40}), version)
    assert (carried.session_id, carried.session_epoch, carried.max_bytes) == (77, 3, 10_000)
    (topic,) = carried.topics
    assert {p.partition: p.fetch_offset for p in topic.partitions} == {0: 10, 1: 21, 3: 40}
    (forgotten,) = carried.forgotten_topics_data
    assert forgotten.partitions == (2,)
    # From then on only the epoch differs: patched in place.
    later = sent_request(ask(4, 6, 12_001, partitions={0: 11}), version)
    assert (later.session_epoch, [p.partition for p in later.topics[0].partitions]) == (4, [0])
    # A new full fetch starts the count again.
    full = sent_request(ask(5, 0, 12_002, partitions={0: 11}), version)
    assert full.session_epoch == 0
    assert sent_request(ask(6, 1, 12_003), version).session_epoch == 1


@pytest.mark.parametrize(("first", "second"), [(7, 9), (9, 7), (8, 12), (12, 11), (13, 17), (17, 13)])
def test_a_session_may_change_its_version(first: int, second: int) -> None:
    _, one = over_quota()
    asked = tools.fetch_body(first, session_id=77, epoch=3, partitions={0: 10}, forget=(2,))
    assert from_client(one, request(tools.FETCH, first, 1, asked)) == b""
    asked = tools.fetch_body(second, session_id=77, epoch=4, partitions={1: 20})
    carried = sent_request(from_client(one, request(tools.FETCH, second, 2, asked), 12_000), second)
    assert carried.session_epoch == 3
    assert {p.partition: p.fetch_offset for p in carried.topics[0].partitions} == {0: 10, 1: 20}
    assert carried.forgotten_topics_data[0].partitions == (2,)


@pytest.mark.parametrize("version", VERSIONS)
def test_shrinks_fetch_near_the_quota_only(version: int) -> None:
    book = ledger(fetch_rate=1000, smooth=False)
    book.charge_no_throttle(book.account("ANONYMOUS", "c"), Kind.FETCH, 9_000, 0)
    one = session(book)
    asked = tools.fetch_body(version, max_bytes=50_000, min_bytes=5000, partitions={0: 9, 1: 8})
    got = sent_request(from_client(one, request(tools.FETCH, version, 1, asked)), version)
    # 10 s at 1 000 B/s less 9 000 B: 1 000 B are left; min_bytes can't be above max_bytes.
    assert (got.max_bytes, got.min_bytes) == (1000, 1000)
    same = tools.decode(
        type(got), tools.fetch_body(min(version, 15), max_bytes=1000, min_bytes=1000, partitions={0: 9, 1: 8})
    )
    assert got == same


@pytest.mark.parametrize("version", VERSIONS)
def test_unlimited_fetch_passes_with_upstream_version_only(version: int) -> None:
    one = session(ledger())
    frame = request(tools.FETCH, version, 1, tools.fetch_body(version, partitions={0: 0}))
    got = from_client(one, frame)
    assert got[:6] + got[8:] == frame[:6] + frame[8:]
    assert int.from_bytes(got[6:8], "big") == min(version, 15)
    transparent = session(ledger(), rewrite=False)
    assert from_client(transparent, frame) == frame


def test_a_fetch_of_many_partitions_gets_a_large_portion() -> None:
    """1 000 partitions take 42 000 B of a response: with records it has about eight times that, 3.4 s at 100 kB/s."""
    book = ledger(fetch_rate=100_000)
    one = session(book)
    many = tools.fetch_body(11, partitions=dict.fromkeys(range(1000), 0))
    sessionless = sent_request(from_client(one, request(tools.FETCH, 11, 1, many)), 11)
    assert sessionless.max_bytes == pytest.approx(7 * 42_000, rel=0.01)
    # In a session, only partitions with news are named.
    one = session(ledger(fetch_rate=100_000))
    in_session = tools.fetch_body(11, session_id=77, epoch=3, partitions=dict.fromkeys(range(1000), 0))
    assert sent_request(from_client(one, request(tools.FETCH, 11, 1, in_session)), 11).max_bytes == 100_000 - HEAD_BYTES
    # The response shows that there are many.
    named = struct.pack(">ihiihci", 0, 0, 77, 1, 1, b"t", 1000) + bytes(42_000)
    from_broker(one, response(tools.FETCH, 11, 1, named))
    in_session = tools.fetch_body(11, session_id=77, epoch=4)
    assert sent_request(from_client(one, request(tools.FETCH, 11, 2, in_session)), 11).max_bytes > 250_000


@pytest.mark.parametrize("rest", [b"", b"\xff" * 40, b"\x7f" * 40, b"\x80" * 40])
@pytest.mark.parametrize("version", VERSIONS)
def test_topics_that_are_none_have_no_impossible_size(version: int, rest: bytes) -> None:
    body = tools.fetch_body(version)
    fields = requests.parse_fetch(body, 0, len(body), version)
    assert fields is not None
    data = body[: fields.rest] + rest
    assert 0 <= fetch_heads.of_request(data, fields, len(data), len(rest), version) <= 2 * len(rest)
    assert 0 <= fetch_heads.of_response(bytes(10) + rest, 0, 10 + len(rest), 50, version) <= 50


def test_a_fetch_too_large_to_be_looked_at_whole_waits() -> None:
    """It could not be answered in place of the broker without losing what it says."""
    book, one = over_quota()
    huge = tools.fetch_body(12, session_id=77, epoch=4, partitions=dict.fromkeys(range(3000), 0))
    assert len(huge) > MAX_PARTIAL_REQUEST_BYTES
    frame = request(tools.FETCH, 12, 2, huge)
    assert from_client(one, frame) == b""
    assert not one.exchange
    assert one.mute_until_ms == 2000.0
    assert len(tools.resumed(one, 20_000.0)) == len(frame)
    assert book.account("ANONYMOUS", "c").meters[Kind.FETCH].queued == 1
    # Nor can news be added to it: the broker expects epoch 3, says so, and the client begins again.
    _, one = over_quota()
    small = tools.fetch_body(12, session_id=77, epoch=3, partitions={0: 10})
    assert from_client(one, request(tools.FETCH, 12, 1, small)) == b""
    assert sent_request(from_client(one, frame, 30_000.0), 12).session_epoch == 4


@pytest.mark.parametrize("version", [4, 11, 12, 17])
@pytest.mark.parametrize("limit", [1_000_000.0, None])
def test_what_never_came_of_a_response_is_given_back(version: int, limit: float | None) -> None:
    """A broker that dies inside a response of 100 000 bytes: charged whole at its beginning, then only what came."""
    book = ledger(fetch_rate=limit)
    one = session(book)
    from_client(one, request(tools.FETCH, version, 5, tools.fetch_body(version, partitions={0: 0})))
    whole = response(tools.FETCH, min(version, 15), 5, b"\0" * 100_000)
    meter = book.account("ANONYMOUS", "c").meters[Kind.FETCH]
    from_broker(one, whole[:30_000])
    charged = 4 + 100_000  # as Kafka does: without the header (FetchResponse.sizeOf)
    assert meter.amount == charged
    for now_ms in (1.0, 2.0):  # given back only once
        one.close(now_ms)
        assert meter.amount == charged - (len(whole) - 30_000)
        assert book.reservations == 0
