"""Connections with the heartbeats of a group's member: throttles are cut to slices, so that heartbeats get through."""

import datetime
import struct
from dataclasses import MISSING, fields
from typing import Any

import pytest

from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.wire.apis import FETCH, JOIN_GROUP, LEAVE_GROUP, METADATA, SYNC_GROUP, version_range
from proxy.core.wire.topics import CREATE_TOPICS
from quota.entity import Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support import session_tools as tools
from tests.support.mutation_tools import create, encoded
from tests.support.session_tools import from_client, ledger, request, response, session

HEARTBEAT, CONSUMER_HEARTBEAT, SHARE_HEARTBEAT, STREAMS_HEARTBEAT = 12, 68, 76, 88
BEAT = request(HEARTBEAT, 3, 1, struct.pack(">h1sih1sh", 1, b"g", 1, 1, b"m", -1))
LEAVE = request(LEAVE_GROUP, 1, 1, struct.pack(">h1sh1s", 1, b"g", 1, b"m"))
UNCUT_MS = 30_000
LIMIT = 1000


def join(version: int = 5, session_ms: int = 30_000, group: str = "g") -> bytes:
    """JoinGroup, correlation id 1."""
    kio = tools.kio_message("join_group", version, "request")
    span = {"session_timeout": datetime.timedelta(milliseconds=session_ms)}
    later = {"rebalance_timeout": datetime.timedelta(minutes=1)} if version >= 1 else {}
    protocols = (kio.JoinGroupRequestProtocol(name="range", metadata=b"m" * 300),)
    body = kio.JoinGroupRequest(
        group_id=group, member_id="", protocol_type="consumer", protocols=protocols, **span, **later
    )
    return request(JOIN_GROUP, version, 1, tools.encode(body))


def epoch_heartbeat(name: str, version: int, epoch: int, group: str = "g") -> bytes:
    """A heartbeat that carries the member's epoch (KIP-848, KIP-932, KIP-1071): below 0, the member leaves."""
    kio = tools.kio_message(f"{name}_group_heartbeat", version, "request")
    kind = getattr(kio, f"{name.title()}GroupHeartbeatRequest")
    given = {"group_id": group, "member_id": "m" * 36, "member_epoch": epoch}
    missing = [one for one in fields(kind) if one.default is MISSING and one.name not in given]
    body = kind(**given, **{one.name: 0 if one.metadata.get("kafka_type") == "int32" else None for one in missing})
    return request(int(kind.__api_key__), version, 1, tools.encode(body))


def indebted(**settings: Any) -> Ledger:
    """A ledger in which a fetch of client "c" has to wait for `UNCUT_MS`."""
    of = ledger(fetch_rate=LIMIT, **settings)
    of.charge_no_throttle(of.account("ANONYMOUS", "c"), Kind.FETCH, 40 * LIMIT, 0)
    return of


def mute_after(first: bytes, of: Ledger, cut: tools.Cut = tools.whole, fetch_ms: float = 0.0) -> float:
    """Until when a client is muted that sends this at 0, and then a fetch over its quota at `fetch_ms`."""
    one = session(of)
    assert from_client(one, first, cut=cut) == first
    assert from_client(one, request(FETCH, 4, 2, tools.fetch_body(4, partitions={0: 0})), fetch_ms) == b""
    return one.mute_until_ms


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize("version", range(version_range(JOIN_GROUP)[1] + 1))  # type: ignore[index]
def test_a_throttle_is_a_quarter_of_the_session(version: int, cut: tools.Cut) -> None:
    assert mute_after(join(version), indebted(), cut) == 7500.0
    assert mute_after(join(version, group="g" * 200), indebted(), cut) == 7500.0


@pytest.mark.parametrize(
    ("first", "mute_ms"),
    [
        (join(session_ms=100), 1000),
        (join(session_ms=-1), 1000),
        (join(session_ms=3_600_000), UNCUT_MS),
        (join(session_ms=20_000) + join(session_ms=8000) + join(), 2000),
        (request(JOIN_GROUP, 5, 1, b"\0"), 1500),
        (request(JOIN_GROUP, 6, 1, b"\xff\xff\xff\xff\xff"), 1500),
        (BEAT, 1500),
        *((request(key, 0, 1, b""), 1500) for key in (SYNC_GROUP, CONSUMER_HEARTBEAT, STREAMS_HEARTBEAT)),
        (request(SHARE_HEARTBEAT, 1, 1, b""), 1500),
        (join() + BEAT, 7500),
        (request(METADATA, 1, 1, struct.pack(">i", 0)), UNCUT_MS),
    ],
)
def test_the_shortest_session_counts(first: bytes, mute_ms: int) -> None:
    assert mute_after(first, indebted()) == mute_ms


@pytest.mark.parametrize(
    ("first", "fetch_ms", "mute_until_ms"),
    [
        (join(session_ms=8000) + LEAVE, 7999, 9999),
        (join(session_ms=8000) + LEAVE, 8001, 38_000),
        (join(session_ms=8000) + LEAVE + BEAT, 8001, 10_001),
        (join(session_ms=8000) + LEAVE + join(), 8001, 10_001),
        (BEAT + LEAVE, 6001, 36_000),
        (LEAVE + BEAT, 6001, 7501),
    ],
)
def test_throttles_are_whole_a_session_after_leave_group(first: bytes, fetch_ms: int, mute_until_ms: int) -> None:
    """Unless another member of the connection heartbeats within that session."""
    assert mute_after(first, indebted(), fetch_ms=fetch_ms) == mute_until_ms


@pytest.mark.parametrize("cut", tools.THREE_WAYS)
@pytest.mark.parametrize("group", ["g", "g" * 200])
@pytest.mark.parametrize(("name", "version"), [("consumer", 0), ("consumer", 1), ("share", 1), ("streams", 0)])
@pytest.mark.parametrize(
    ("epoch", "fetch_ms", "mute_until_ms"),
    [(3, 6001, 7501), (0, 6001, 7501), (-1, 5999, 7499), (-1, 6001, 36_000), (-2, 6001, 36_000)],
)
def test_a_member_leaves_with_an_epoch_below_0(
    name: str, version: int, epoch: int, fetch_ms: int, mute_until_ms: int, group: str, cut: tools.Cut
) -> None:
    first = epoch_heartbeat(name, version, 1) + epoch_heartbeat(name, version, epoch, group)
    assert mute_after(first, indebted(), cut, fetch_ms=fetch_ms) == mute_until_ms


@pytest.mark.parametrize("first", [join(), BEAT])
def test_kafka_s_own_pacing_cuts_nothing(first: bytes) -> None:
    assert mute_after(first, indebted(smooth=False)) == UNCUT_MS


def test_a_refused_mutation_tells_a_slice() -> None:
    of = Ledger(QuotaTable([Entry(client_id="c", controller_mutation_rate=1)]))
    of.charge_mutation(of.account("ANONYMOUS", "c"), 31, False, 0.0)  # 11 tokens: 20 s
    one = session(of, interceptors=dict.fromkeys(MUTATION_APIS, MutationQuota(of)))
    from_client(one, BEAT)
    one.broker_sends(response(HEARTBEAT, 3, 1, b"\0" * 6), 0.0)
    one.seen()
    from_client(one, request(CREATE_TOPICS, 6, 2, encoded(create(6, {"t": 1}))))
    one.broker_sends(response(METADATA, 4, 2, struct.pack(">iihii", 0, 0, -1, -1, 0)), 0.0)  # it does not exist yet
    assert struct.unpack_from(">i", one.seen(), 9) == (1500,)
    assert one.mute_until_ms == 1500.0
