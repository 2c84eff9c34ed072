"""KIP-219 as a client sees it: the answer leaves at once with the throttle time, then no byte is read."""

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.primitives import string
from tests.lab.kafka import KafkaCluster
from tests.support.precedence import precedence
from tests.support.raw_client import (
    API_VERSIONS_0,
    Frame,
    RawClient,
    Topic,
    fetch_message,
    fetched_values,
    produce_message,
)
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

RATE = 20_000
"""Bytes/s for every client-id, each with a counter of its own. The window holds 10 s: 200 000 B pass, 220 000 B are
220 000 / 10 s = 22 000 B/s, (22 000 - 20 000) / 20 000 * 10 s = 1 s over."""
QUOTAS = [{"client-id": "<default>", "producer_byte_rate": RATE, "consumer_byte_rate": RATE}]
FETCH_SESSION_TOPIC_ID_ERROR = 106
TOLERANCE_S = 0.05
LATE_S = 0.8
"""A machine can only make things later: a collection of the broker's garbage, say. Everything else waits for these
tests (`timely`)."""


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> KafkaCluster:
    """One of the new release, or of the one that the test names."""
    cluster: KafkaCluster = request.getfixturevalue(getattr(request, "param", "kafka"))
    return cluster


@pytest.fixture(scope="module")
def limited(broker: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(broker.bootstrap, QUOTAS) as running:
        yield running


@pytest.fixture(autouse=True)
def timely(broker: KafkaCluster, limited: Sidecar) -> Iterator[None]:
    """The test, its sidecar and its brokers have a core whatever else runs: it looks at the time."""
    with precedence(limited.pid, *(node.pid for node in broker.nodes)):
        yield


def on_both(names: str, new: Sequence[Any], old: Sequence[Any]) -> pytest.MarkDecorator:
    """Cases at a broker of the new release, and of the old one."""
    cases = [(broker, *case) for broker, some in (("kafka", new), ("kafka_391", old)) for case in some]
    return pytest.mark.parametrize(f"broker,{names}", cases, indirect=["broker"])


def watch_mute(client: RawClient, throttled: Frame, throttle_ms: int) -> None:
    """After a throttled answer: a request sent now waits until the deadline, and is answered then."""
    # The mute began between the request's last byte and the answer's first; a busy machine can lie between the two.
    earliest = throttled.asked_at + throttle_ms / 1000
    latest = throttled.first_byte_at + throttle_ms / 1000
    client.send(API_VERSIONS_0)
    answer = client.read_frame()
    assert answer.correlation_id == 99
    assert answer.first_byte_at >= earliest - TOLERANCE_S
    assert answer.first_byte_at <= latest + LATE_S


@on_both("version", [(3,), (8,), (9,), (12,), (13,)], [(3,), (11,)])
def test_produce_over_quota_is_answered_at_once_and_then_muted(limited: Sidecar, topic: str, version: int) -> None:
    with RawClient(limited.bootstrap, f"produce-{version}-{topic}") as client:
        answer = client.ask(produce_message(version, client.topic(topic), [b"r" * 220_000]))
        throttle_ms = answer.message.throttle_time_ms
        # 1 000 ms and what headers add (about 100 B: 5 ms), less the time the broker took to answer.
        assert 500 < throttle_ms < 1100
        assert answer.message.responses[0].partition_responses[0].error_code == 0
        watch_mute(client, answer, throttle_ms)


def test_acks_0_is_muted_only(limited: Sidecar, topic: str) -> None:
    with RawClient(limited.bootstrap, f"acks0-{topic}") as client:
        where = client.topic(topic)
        sent_at = client.send(client.frame(produce_message(9, where, [b"r" * 220_000], acks=0)))
        client.send(API_VERSIONS_0)
        answer = client.read_frame()
        late_s = answer.first_byte_at - sent_at - 1.0  # 220 000 B and about 100 B of headers: 1 005 ms
        assert -TOLERANCE_S <= late_s <= LATE_S


def fill(running: Sidecar, topic: str, values: int, size: int) -> Topic:
    """Put records into a topic past the sidecar's produce quota: each with a client-id of its own."""
    for number in range(values):
        with RawClient(running.bootstrap, f"fill-{number}-{topic}") as client:
            where = client.topic(topic)
            answer = client.ask(produce_message(9, where, [b"%06d" % number + b"v" * (size - 6)]))
            assert answer.message.responses[0].partition_responses[0].error_code == 0
    return where


@on_both(
    "version,kind",
    [(4, "sessionless"), (18, "sessionless"), (7, "full"), (18, "full"), (7, "incremental"), (18, "incremental")],
    [(4, "sessionless"), (17, "incremental")],
)
def test_fetch_over_quota(limited: Sidecar, topic: str, version: int, kind: str) -> None:
    """Use up the window with one fetch, then be refused, then be served again."""
    where = fill(limited, topic, 2, 230_000)

    with RawClient(limited.bootstrap, f"fetch-{version}-{kind}-{topic}") as client:
        session = (0, -1 if kind == "sessionless" else 0)
        # The request goes on with max_bytes 200 000, but at least one batch always comes (KIP-74): 230 000 B, which
        # is (23 000 - 20 000) / 20 000 * 10 s = 1.5 s over.
        first = client.ask(fetch_message(version, where, session=session))
        assert first.message.throttle_time_ms == 0
        read = fetched_values(first.message)
        assert [value[:6] for value in read] == [b"000000"]
        session_id = getattr(first.message, "session_id", 0)
        if kind == "incremental":
            assert session_id != 0
            session = (session_id, 1)
        second = client.ask(fetch_message(version, where, offset=1, session=session))
        throttle_ms = second.message.throttle_time_ms
        assert 500 < throttle_ms <= 1800  # and 250 ms until the pace allows a useful portion
        assert second.message.responses == []
        if version >= 7:
            assert second.message.error_code == 0
            assert second.message.session_id == (session_id if kind == "incremental" else 0)
        watch_mute(client, second, throttle_ms)
        # The session is still in step with the broker, which never saw the request that was refused.
        epochs = itertools.count(2)

        def read_again() -> list[bytes]:
            # offset 1 was named in a request that the broker did not get; an incremental fetch need not repeat it
            named, at = (None, (session_id, next(epochs))) if kind == "incremental" else (where, session)
            again = client.ask(fetch_message(version, named, offset=1, session=at)).message
            assert version < 7 or again.error_code == 0
            assert not any(partition.error_code for one in again.responses for partition in one.partitions)
            return fetched_values(again)

        assert [value[:6] for value in until(read_again)] == [b"000001"]


@pytest.mark.parametrize(("first", "second"), [(12, 13), (17, 11)])
def test_fetch_session_changes_names_for_ids(
    kafka: KafkaCluster, limited: Sidecar, topic: str, first: int, second: int
) -> None:
    """The sidecar has answered a request of the session itself. What follows has the errors that a broker gives."""
    where = fill(limited, topic, 2, 230_000)
    errors = []
    for bootstrap in (kafka.bootstrap[0], limited.bootstrap):
        with RawClient(bootstrap, f"changes-{first}-{topic}") as client:
            session_id = client.ask(fetch_message(first, where, session=(0, 0))).message.session_id
            client.ask(fetch_message(first, where, offset=1, session=(session_id, 1)))

            def change(client: RawClient = client, session_id: int = session_id) -> int:
                changed = client.ask(fetch_message(second, where, offset=1, session=(session_id, 2))).message
                assert changed.session_id == 0
                return int(changed.error_code)

            changed = until(change)  # over its quota, a broker too answers a changed session only that it is none
            again = client.ask(fetch_message(first, None, session=(session_id, 2))).message
            errors.append((changed, again.error_code))
            assert [value[:6] for value in fetched_values(again)] == [b"000001"]
    assert errors == [(FETCH_SESSION_TOPIC_ID_ERROR, 0)] * 2


@pytest.mark.parametrize("broker", ["kafka_391"], indirect=True)
def test_oldest_fetch_on_an_older_broker(limited: Sidecar, topic: str) -> None:
    """Fetch v0, which only brokers before 4.0 offer: no throttle field, an empty answer, and the mute."""
    where = fill(limited, topic, 2, 150_000)

    def frame(correlation_id: int, offset: int) -> bytes:
        topics = struct.pack(">i", 1) + string(where.name) + struct.pack(">iiqi", 1, 0, offset, 10_000_000)
        body = struct.pack(">iii", -1, 500, 1) + topics
        return framed(request_header(1, 0, correlation_id, f"v0-{topic}") + body)

    with RawClient(limited.bootstrap) as client:
        client.send(frame(1, 0))
        assert len(client.read_frame().payload) > 300_000  # v0 has no max_bytes to lower: both batches, over the quota
        asked_at = client.send(frame(2, 2))
        answer = client.read_frame()
        assert answer.payload == struct.pack(">ii", 2, 0)
        assert answer.last_byte_at - asked_at < 0.5
        client.send(API_VERSIONS_0)
        # 300 000 B in 10 s are 30 000 B/s: (30 000 - 20 000) / 20 000 * 10 s = 5 s
        assert client.read_frame().first_byte_at - asked_at > 4.0
