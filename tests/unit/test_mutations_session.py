"""The mutation quota inside a session: frames in, frames out, in front of a cluster without sockets."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from proxy.core.interceptors.mutations import MUTATION_APIS, MutationQuota
from proxy.core.wire.apis import is_flexible
from proxy.core.wire.topics import CREATE_TOPICS
from quota.entity import DEFAULT
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.mutation_tools import MESSAGES, THROTTLED, Cluster, create, delete, encoded, partitions
from tests.support.session_tools import THREE_WAYS, Cut, answers, from_broker, from_client, request, response, session

three_ways = pytest.mark.parametrize("cut", THREE_WAYS)


def frames(data: bytes) -> list[bytes]:
    """The frames in `data`, which they must fill, without their sizes."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        assert len(data) >= 4 + size
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


class Wire:
    """A session between a client's bytes and a cluster that answers every frame at once."""

    def __init__(self, rate: float, cut: Cut, *, broker_throttle_ms: int = 0) -> None:
        ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, controller_mutation_rate=rate)]), mutation_num_samples=10)
        self.session = session(ledger, interceptors=dict.fromkeys(MUTATION_APIS, MutationQuota(ledger)))
        self.cluster, self.cut = Cluster(), cut
        self.broker_throttle_ms = broker_throttle_ms
        self.messages: dict[int, Any] = {}
        self.now_ms = 0.0

    def send(self, *messages: Any) -> list[Any]:
        """Send requests in one go; the answers that have come, decoded, in their order."""
        data = b""
        for message in messages:
            correlation_id = len(self.messages) + 1
            self.messages[correlation_id] = message
            data += request(message.API_KEY, message.API_VERSION, correlation_id, encoded(message))
        to_client = b""
        for part in self.cut(data):  # as the shell does: nothing is read while the session waits for an answer
            to_broker = from_client(self.session, part, self.now_ms)
            while to_broker:
                replies = b"".join(map(self._reply, frames(to_broker)))
                to_client += from_broker(self.session, replies, self.now_ms, self.cut)
                to_broker = self.session.taken()
        to_client += answers(self.session)
        return [self._decoded(payload) for payload in frames(to_client)]

    def _reply(self, payload: bytes) -> bytes:
        key, version, correlation_id, size = struct.unpack_from(">hhih", payload)
        start = 10 + max(size, 0) + is_flexible(key, version)
        body = self.cluster.handle(key, version, payload[start:])
        if key == CREATE_TOPICS and self.broker_throttle_ms:
            body = struct.pack(">i", self.broker_throttle_ms) + body[4:]
        return response(key, version, correlation_id, body)

    def _decoded(self, payload: bytes) -> tuple[int, Any]:
        (correlation_id,) = struct.unpack_from(">i", payload)
        message = self.messages[correlation_id]
        start = 4 + is_flexible(message.API_KEY, message.API_VERSION)
        return correlation_id, MESSAGES[message.API_KEY][1].decode(payload[start:], version=message.API_VERSION)


def errors(message: Any) -> dict[str, int]:
    (results,) = (getattr(message, name) for name in ("topics", "responses", "results") if hasattr(message, name))
    return {one.name: one.error_code for one in results}


@three_ways
def test_merged_answer_has_the_throttle_time(cut: Cut) -> None:
    wire = Wire(2, cut)
    ((_, answer),) = wire.send(create(7, {"a": 30, "b": 30}))
    assert (errors(answer), answer.throttle_time_ms) == ({"a": 0, "b": THROTTLED}, 5000)
    assert wire.session.mute_until_ms == 5000
    assert wire.cluster.counts == {"a": 30}


@three_ways
@pytest.mark.parametrize(("broker_ms", "told_ms"), [(9000, 9000), (4000, 5000)])
def test_reports_the_longer_throttle(cut: Cut, broker_ms: int, told_ms: int) -> None:
    wire = Wire(2, cut, broker_throttle_ms=broker_ms)
    ((_, answer),) = wire.send(create(7, {"a": 30, "b": 30}))
    assert (errors(answer), answer.throttle_time_ms) == ({"a": 0, "b": THROTTLED}, told_ms)


@three_ways
def test_questions_are_never_seen_and_answers_keep_their_order(cut: Cut) -> None:
    wire = Wire(2, cut)
    wire.cluster.add(x=1, y=1)
    done = wire.send(partitions(3, {"x": 6}), delete(6, ["y"]), create(7, {"z": 4}), partitions(1, {"x": 7}))
    assert [number for number, _ in done] == [1, 2, 3, 4]
    assert [errors(answer) for _, answer in done] == [{"x": 0}, {"y": 0}, {"z": 0}, {"x": 0}]
    assert wire.cluster.counts == {"x": 7, "z": 4}
    assert len(wire.cluster.seen) == 4 + 3


@three_ways
def test_an_answer_without_the_broker(cut: Cut) -> None:
    wire = Wire(2, cut)
    wire.send(create(7, {"a": 30}))
    ((_, answer),) = wire.send(create(6, {"b": 1}))
    assert (errors(answer), answer.throttle_time_ms) == ({"b": THROTTLED}, 5000)
    assert wire.session.mute_until_ms == 5000
    wire.now_ms = 5000
    ((_, answer),) = wire.send(create(6, {"b": 1}))
    assert (errors(answer), answer.throttle_time_ms) == ({"b": 0}, 0)


@three_ways
@pytest.mark.parametrize("version", range(8))
def test_old_clients_are_muted_without_throttle_field(cut: Cut, version: int) -> None:
    wire = Wire(2, cut)
    ((_, answer),) = wire.send(create(version, {"a": 30}))
    assert errors(answer) == {"a": 0}
    if version < 6:  # 20 - 30 = -10 tokens
        assert wire.session.mute_until_ms == 5000
        assert version < 2 or answer.throttle_time_ms == 5000
    else:
        assert wire.session.mute_until_ms == 0
