"""Connections with the heartbeats of a group's member: throttles are cut to slices, so that heartbeats get through."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from typing import Any

import pytest

from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.wire.apis import JOIN_GROUP, version_range
from quota.entity import Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.session_tools import (
    FETCH,
    METADATA,
    PRODUCE,
    THREE_WAYS,
    Cut,
    Driven,
    answers,
    encode,
    fetch_body,
    frames,
    from_client,
    kio_message,
    ledger,
    produce,
    produce_response,
    request,
    response,
    session,
    whole,
)

HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, CONSUMER_HEARTBEAT, SHARE_HEARTBEAT, STREAMS_HEARTBEAT = 12, 13, 14, 68, 76, 88
CREATE_TOPICS = 19
UNCUT_MS = 30_000
LIMIT = 1000


def join(version: int = 5, session_ms: int = 30_000, group: str = "g") -> bytes:
    """JoinGroup, correlation id 1."""
    kio = kio_message("join_group", version, "request")
    span = {"session_timeout": datetime.timedelta(milliseconds=session_ms)}
    later = {"rebalance_timeout": datetime.timedelta(minutes=1)} if version >= 1 else {}
    protocols = (kio.JoinGroupRequestProtocol(name="range", metadata=b"m" * 300),)
    body = kio.JoinGroupRequest(
        group_id=group, member_id="", protocol_type="consumer", protocols=protocols, **span, **later
    )
    return request(JOIN_GROUP, version, 1, encode(body))


def heartbeat(number: int = 1) -> bytes:
    return request(HEARTBEAT, 3, number, struct.pack(">h1sih1sh", 1, b"g", 1, 1, b"m", -1))


def leave() -> bytes:
    """LeaveGroup."""
    return request(LEAVE_GROUP, 1, 1, struct.pack(">h1sh1s", 1, b"g", 1, b"m"))


def indebted(**settings: Any) -> Ledger:
    """A ledger in which a fetch of client "c" has to wait for `UNCUT_MS`."""
    of = ledger(fetch_rate=LIMIT, **settings)
    of.charge_no_throttle(of.account("ANONYMOUS", "c"), Kind.FETCH, 40 * LIMIT, 0)
    return of


def mute_after(first: bytes, of: Ledger, cut: Cut = whole, fetch_ms: float = 0.0) -> float:
    """Until when a client is muted that sends this at 0, and then a fetch over its quota at `fetch_ms`."""
    one = session(of)
    assert from_client(one, first, cut=cut) == first
    assert from_client(one, request(FETCH, 4, 2, fetch_body(4, partitions={0: 0})), fetch_ms) == b""
    return one.mute_until_ms


@pytest.mark.parametrize("cut", THREE_WAYS)
@pytest.mark.parametrize("version", range(version_range(JOIN_GROUP)[1] + 1))  # type: ignore[index]
def test_a_throttle_is_a_quarter_of_the_session(version: int, cut: Cut) -> None:
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
        (heartbeat(), 1500),
        (request(SYNC_GROUP, 0, 1, b""), 1500),
        (request(CONSUMER_HEARTBEAT, 0, 1, b""), 1500),
        (request(SHARE_HEARTBEAT, 1, 1, b""), 1500),
        (request(STREAMS_HEARTBEAT, 0, 1, b""), 1500),
        (join() + heartbeat(), 7500),
        (request(METADATA, 1, 1, struct.pack(">i", 0)), UNCUT_MS),
    ],
)
def test_the_shortest_session_counts(first: bytes, mute_ms: int) -> None:
    assert mute_after(first, indebted()) == mute_ms


@pytest.mark.parametrize(
    ("first", "fetch_ms", "mute_until_ms"),
    [
        (join(session_ms=8000) + leave(), 7999, 9999),
        (join(session_ms=8000) + leave(), 8001, 38_000),
        (join(session_ms=8000) + leave() + heartbeat(), 8001, 10_001),
        (join(session_ms=8000) + leave() + join(), 8001, 10_001),
        (heartbeat() + leave(), 6001, 36_000),
        (leave() + heartbeat(), 6001, 7501),
    ],
)
def test_throttles_are_whole_a_session_after_leave_group(first: bytes, fetch_ms: int, mute_until_ms: int) -> None:
    """Unless another member of the connection heartbeats within that session."""
    assert mute_after(first, indebted(), fetch_ms=fetch_ms) == mute_until_ms


@pytest.mark.parametrize("first", [join(), heartbeat()])
def test_kafka_s_own_pacing_cuts_nothing(first: bytes) -> None:
    assert mute_after(first, indebted(smooth=False)) == UNCUT_MS


class Member:
    """A member that ignores throttles: one request for data is under way, and a heartbeat every 3 s behind it. Its
    broker answers at once."""

    def __init__(self, of: Ledger, data: Callable[[int], bytes], session_ms: int) -> None:
        self.one = session(of)
        self._data = data
        self._sent: dict[int, float] = {}
        """When which request that is not answered was sent, by correlation id."""
        self.came: list[tuple[float, bytes]] = []
        """What came when at the broker."""
        self.waits: list[float] = []
        """Of heartbeats, from the client to the broker."""
        self.heard: list[bytes] = []
        """Answers. Only those to Produce and Fetch tell a throttle time: as the last, or the first number."""
        self.one.unread = join(session_ms=session_ms)
        self._serve(0.0)

    def run(self, until_ms: int) -> None:
        """In steps of 10 ms."""
        number, beat, beats_ms = 1, 0, 3000
        data = 0
        for now in map(float, range(0, until_ms, 10)):
            if data not in self._sent:
                data = number = number + 1
                self._sent[data] = now
                self.one.unread += self._data(data)
            if now >= beats_ms and beat not in self._sent:
                beat = number = number + 1
                beats_ms = int(now) + 3000
                self._sent[beat] = now
                self.one.unread += heartbeat(beat)
            self._serve(now)

    def _serve(self, now_ms: float) -> None:
        one = self.one
        one.wake(now_ms)
        for frame in frames(self.one.taken()):
            api, version, number = struct.unpack_from(">hhi", frame, 4)
            self.came.append((now_ms, frame))
            if api == HEARTBEAT:
                self.waits.append(now_ms - self._sent[number])
            whole_answer = produce_response(number) if api == PRODUCE else response(api, version, number, b"\0" * 24)
            self.one.broker_sends(whole_answer, now_ms)
        for frame in frames(answers(self.one)):
            self.heard.append(frame)
            self._sent.pop(*struct.unpack_from(">i", frame, 4), None)


def fetch(number: int) -> bytes:
    return request(FETCH, 4, number, fetch_body(4, partitions={0: 0}))


def test_heartbeats_pass_and_a_fetch_keeps_its_turn() -> None:
    """It is asked for again after each slice, and forwarded when it would have been without slices."""
    member = Member(indebted(), fetch, 10_000)
    member.run(60_000)
    assert max(member.waits) <= 2 * 2500.0
    assert len(member.waits) >= 12
    assert max(struct.unpack_from(">i", frame, 8)[0] for frame in member.heard) == 2500
    fetched = [at_ms for at_ms, frame in member.came if frame[5] == FETCH]
    assert fetched[0] == UNCUT_MS


@pytest.mark.parametrize("timeout_ms", [5000, 30_000])
def test_produce_keeps_its_limit_in_slices(timeout_ms: int) -> None:
    """A request takes 6 s of the limit, more than half of a session: those that are held are refused before."""
    size = 6 * LIMIT
    of = ledger(produce_rate=LIMIT)
    member = Member(of, lambda number: produce(number, size, timeout_ms=timeout_ms), 10_000)
    member.run(240_000)
    assert max(member.waits) <= 2 * 2500.0
    assert max(struct.unpack_from(">i", frame, len(frame) - 4)[0] for frame in member.heard) == 2500
    produced = [at_ms for at_ms, frame in member.came if frame[5] == PRODUCE]
    stretches = [[at for at in produced if begin <= at < begin + 24_000] for begin in range(11_000, 216_000, 1000)]
    assert max((len(stretch) - 1) * size for stretch in stretches) <= 1.05 * 24 * LIMIT
    assert len(produced) * size >= 0.95 * 240 * LIMIT


def test_a_refused_mutation_tells_a_slice() -> None:
    of = Ledger(QuotaTable([Entry(client_id="c", controller_mutation_rate=1)]))
    of.charge_mutation(of.account("ANONYMOUS", "c"), 31, False, 0.0)  # 11 tokens: 20 s
    one = session(of, interceptors=dict.fromkeys(MUTATION_APIS, MutationQuota(of)))
    from_client(one, heartbeat())
    one.broker_sends(response(HEARTBEAT, 3, 1, b"\0" * 6), 0.0)
    answers(one)
    kio = kio_message("create_topics", 6, "request")
    topic = kio.CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
    from_client(one, request(CREATE_TOPICS, 6, 2, encode(kio.CreateTopicsRequest(topics=(topic,)))))
    one.broker_sends(response(METADATA, 4, 2, struct.pack(">iihii", 0, 0, -1, -1, 0)), 0.0)  # it does not exist yet
    assert struct.unpack_from(">i", answers(one), 9) == (1500,)
    assert one.mute_until_ms == 1500.0


def test_new_connections_pass_before_they_are_refused() -> None:
    """Ten new connections a second, each with a session of 1 ms: their requests are refused after 1.8 s. None of those
    that wait longest may miss its turn, or the group would get a window's worth at once after a pause."""
    of, size, seconds = ledger(produce_rate=LIMIT), LIMIT, 45
    connections: list[Driven] = []
    passed: list[int] = []
    for now in range(0, seconds * 1000, 50):
        if now % 100 == 0:
            one = session(of)
            one.unread = join(session_ms=1) + produce(2, size)
            connections.append(one)
        for one in list(connections):
            one.wake(float(now))
            for frame in frames(one.taken()):
                api, version, number = struct.unpack_from(">hhi", frame, 4)
                if api == PRODUCE:
                    passed.append(now)
                whole_answer = (
                    produce_response(number) if api == PRODUCE else response(api, version, number, b"\0" * 24)
                )
                one.broker_sends(whole_answer, float(now))
            if any(frame[4:8] == b"\0\0\0\2" for frame in frames(answers(one))):
                one.close(float(now))
                connections.remove(one)
    later = [at for at in passed if at >= 16_000]
    assert len(later) >= 0.95 * (seconds - 16)
    assert max(sum(begin <= at < begin + 10_000 for at in later) for begin in later) <= 11
