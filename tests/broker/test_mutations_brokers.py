"""The partition-mutation quota in front of real brokers, request by request: Kafka's cases E8 to E18."""

import dataclasses
import io
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kafka.protocol.metadata import MetadataResponse
from kio.serial import entity_reader, entity_writer

from proxy.core.wire import topics as wire
from proxy.core.wire.apis import api_name
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, STRICT_FROM
from tests.lab.kafka import KafkaCluster
from tests.lab.releases import NEW, OLD
from tests.support.mutation_tools import THROTTLED, create, delete, metadata, partitions
from tests.support.raw_client import RawClient, set_brokers_quota
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

RATE, WINDOWS = 4, 1
BURST = RATE * WINDOWS
LIMITED, FREE = "limited", "free"
BROKERS = {"kafka": NEW, "kafka_391": OLD}
OLDEST = {  # of the new release, and of the old one
    "kafka": {CREATE_TOPICS: 2, DELETE_TOPICS: 1, CREATE_PARTITIONS: 0},
    "kafka_391": {CREATE_TOPICS: 0, DELETE_TOPICS: 0, CREATE_PARTITIONS: 0},
}
NEWEST = {CREATE_TOPICS: 7, DELETE_TOPICS: 6, CREATE_PARTITIONS: 3}
TELLS_FROM = OLDEST["kafka"]
"""Versions whose answers have a throttle time."""


class Kind(NamedTuple):
    """A request about two topics that costs 5 partitions for each, and partitions by topic before and afterwards."""

    api_key: int
    ask: Callable[[int, list[str]], Any]
    before: int
    after: int


KINDS = (
    Kind(CREATE_TOPICS, lambda version, names: create(version, dict.fromkeys(names, 5)), 0, 5),
    Kind(DELETE_TOPICS, delete, 5, 0),
    Kind(CREATE_PARTITIONS, lambda version, names: partitions(version, dict.fromkeys(names, 6)), 1, 6),
)


def every_version() -> list[Any]:
    """(broker, kind, version) for every version of both brokers."""
    return [
        pytest.param(
            broker, kind, version, id=f"{BROKERS[broker]}-{api_name(kind.api_key)}-v{version}",
            marks=[] if kind.api_key == CREATE_TOPICS else pytest.mark.long,
        )
        for broker in BROKERS
        for kind in KINDS
        for version in range(OLDEST[broker][kind.api_key], NEWEST[kind.api_key] + 1)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def proxy(request: pytest.FixtureRequest) -> Iterator[Sidecar]:
    """Before the broker that the test names."""
    quotas = [{"client-id": LIMITED, "controller_mutation_rate": RATE}]
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    with sidecar(cluster.bootstrap, quotas, **{"controller.quota.window.num": WINDOWS}) as running:
        yield running


def asked(proxy: Sidecar, message: Any, client_id: str = LIMITED) -> Any:
    """The decoded answer; each request has a connection of its own, so that no mute is in the way."""
    with RawClient(proxy.bootstrap, client_id) as client:
        return client.ask(message).message


def counts_of(bootstrap: str, names: tuple[str, ...]) -> dict[str, int]:
    with RawClient(bootstrap, FREE) as client:
        found = client.ask(metadata(9, list(names), creates=False)).message.topics
    return {topic.name: len(topic.partitions) for topic in found if topic.error_code == 0}


def settled(bootstrap: str, expected: dict[str, int], names: tuple[str, ...]) -> None:
    """Wait until the broker has these topics, of all that are named."""
    until(lambda: counts_of(bootstrap, names) == expected, lambda: f"{counts_of(bootstrap, names)}, not {expected}")


def errors(message: Any) -> dict[str, int]:
    (results,) = (getattr(message, name) for name in ("topics", "responses", "results") if hasattr(message, name))
    return {one.name: one.error_code for one in results}


def pair() -> tuple[str, str]:
    """Two topic names that no other test uses; the first one is the first in any order."""
    stem = uuid.uuid4().hex[:12]
    return f"a-{stem}", f"b-{stem}"


def limited_groups(proxy: Sidecar) -> list[dict[str, Any]]:
    return [one for one in proxy.get("/quotas")["groups"] if one["kind"] == "mutation" and one["limit"]]


def charged(proxy: Sidecar) -> float:
    """Everything that the limited clients were charged, refunds taken off."""
    return sum(float(group["totals"]["amount"]) for group in limited_groups(proxy))


@pytest.mark.parametrize(("proxy", "kind", "version"), every_version(), indirect=["proxy"])
def test_mutations_are_charged_per_partition(proxy: Sidecar, kind: Kind, version: int) -> None:
    first, second = pair()

    def there(partitions_of_first: int, partitions_of_second: int) -> None:
        counts = {first: partitions_of_first, second: partitions_of_second}
        settled(proxy.bootstrap, {name: count for name, count in counts.items() if count}, (first, second))

    if kind.before:  # E10: without a quota
        unlimited = asked(proxy, create(7, {first: kind.before, second: kind.before}), FREE)
        assert (errors(unlimited), unlimited.throttle_time_ms) == ({first: 0, second: 0}, 0)
        there(kind.before, kind.before)
    # Earlier tests have used its tokens.
    until(lambda: all(one["observed"] >= BURST for one in limited_groups(proxy)))
    began = time.monotonic()
    answer = asked(proxy, kind.ask(version, [first, second]))
    took_s = time.monotonic() - began
    if version >= STRICT_FROM[kind.api_key]:  # E8, E11, E14
        # 5 + 5 partitions with 4 tokens: the first is accepted, the second refused until 1 has come: 250 ms.
        assert errors(answer) == {first: 0, second: THROTTLED}
        assert 0 <= answer.throttle_time_ms <= 250
        if kind.api_key == CREATE_TOPICS:
            refused = next(topic for topic in answer.topics if topic.name == second)
            assert refused.error_message == wire.REFUSAL_TEXT
        there(kind.after, kind.before)
        time.sleep(answer.throttle_time_ms / 1000)
        again = asked(proxy, kind.ask(version, [second]))
        assert (errors(again), again.throttle_time_ms) == ({second: 0}, 0)
    else:  # E9, E12, E15: all is done; 4 - 10 = -6 tokens are 1500 ms, of which passes what the broker takes
        assert errors(answer) == {first: 0, second: 0}
        if hasattr(answer, "throttle_time_ms"):
            assert answer.throttle_time_ms <= 1500
            assert answer.throttle_time_ms > 0 or took_s > 1.4 or version < TELLS_FROM[kind.api_key]
    there(kind.after, kind.after)
    if kind.after:  # E13, E16
        unlimited = asked(proxy, delete(6, [first, second]), FREE)
        assert (errors(unlimited), unlimited.throttle_time_ms) == ({first: 0, second: 0}, 0)


Asking = Callable[[str, str, list[str]], None]


def by_librdkafka(bootstrap: str, client_id: str, names: list[str]) -> None:
    """Asked for by confluent-kafka, one after the other."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    for name in names:
        producer.list_topics(name, timeout=10)


def by_version(version: int) -> Asking:
    """The same in this version of Metadata, with several requests on their way."""

    def ask(bootstrap: str, client_id: str, names: list[str]) -> None:
        with RawClient(bootstrap, client_id) as client:
            for name in names:
                client.send(client.frame(metadata(version, [name])))
            for name in names:
                answer = MetadataResponse.decode(client.read_frame().payload[4 + (version >= 9) :], version=version)
                assert {topic.name for topic in answer.topics} <= {name, ""}

    return ask


@pytest.mark.parametrize(
    ("broker", "ask"),
    [
        pytest.param("kafka", by_librdkafka, id="librdkafka"),
        *(pytest.param("kafka", by_version(version), id=f"{NEW}-v{version}") for version in (0, 3, 13)),
        pytest.param("kafka_391", by_version(0), id=f"{OLD}-v0", marks=pytest.mark.long),
    ],
)
def test_topics_created_for_metadata_are_counted(request: pytest.FixtureRequest, broker: str, ask: Asking) -> None:
    cluster: KafkaCluster = request.getfixturevalue(broker)
    stem = uuid.uuid4().hex[:12]
    names, others = (tuple(f"{kind}-{stem}-{number}" for number in range(12)) for kind in ("auto", "free"))
    rate, burst = 0.5, 3  # partitions, of which the brokers' default is one
    quotas = [{"client-id": LIMITED, "controller_mutation_rate": rate}]
    with sidecar(cluster.bootstrap, quotas, **{"controller.quota.window.num": int(burst / rate)}) as proxy:
        began = time.monotonic()
        ask(proxy.bootstrap, LIMITED, list(names))
        most = burst + 1 + rate * (time.monotonic() - began)  # whoever has tokens left may overdraw them once
        ask(proxy.bootstrap, FREE, list(others))
        settled(proxy.bootstrap, dict.fromkeys(others, 1), others)
        created = counts_of(proxy.bootstrap, names)
        assert burst < len(created) <= most < len(names)
        assert charged(proxy) == len(created)
        late = next(name for name in names if name not in created)

        def there() -> bool:
            ask(proxy.bootstrap, LIMITED, [late])
            return late in counts_of(proxy.bootstrap, names)

        until(there)
        assert len(counts_of(proxy.bootstrap, names)) == len(created) + 1 == charged(proxy)


def use_up(cluster: KafkaCluster) -> str:
    """A client-id that the broker itself refuses everything, for minutes."""
    client_id = f"own-{uuid.uuid4().hex[:8]}"
    set_brokers_quota(cluster.bootstrap[0], client_id, "controller_mutation_rate", 0.01)

    def refused() -> bool:
        name = f"used-{uuid.uuid4().hex[:8]}"
        with RawClient(cluster.bootstrap[0], client_id) as client:
            return errors(client.ask(create(7, {name: 5})).message) == {name: THROTTLED}

    until(refused)  # the controller knows the quota, and it has been overdrawn
    return client_id


def body_of(address: str, client_id: str, message: Any) -> bytes:
    """What follows the response header, which is flexible in all strict versions."""
    with RawClient(address, client_id) as client:
        client.send(client.frame(message))
        return client.read_frame().payload[5:]


def comparable(api_key: int, version: int, body: bytes) -> bytes:
    """A response without throttle time and messages, its topics in order, encoded again."""
    from tests.support.wire_tools import kio_class

    message, size = entity_reader(kio_class(api_key, version))(body, 0)
    assert size == len(body)
    field = {CREATE_TOPICS: "topics", DELETE_TOPICS: "responses", CREATE_PARTITIONS: "results"}[api_key]
    results = sorted(getattr(message, field), key=lambda one: one.name)
    assert {one.error_code.value for one in results} == {THROTTLED}
    results = [dataclasses.replace(one, error_message=None) for one in results]
    message = dataclasses.replace(message, throttle_time=type(message.throttle_time)(0), **{field: tuple(results)})
    sink = io.BytesIO()
    entity_writer(type(message))(sink, message)
    return sink.getvalue()


@pytest.mark.parametrize("broker", BROKERS)
def test_refusals_are_byte_for_byte_a_brokers(request: pytest.FixtureRequest, broker: str) -> None:
    # Two topics, both refused: by the broker for its own quota, and by the sidecar for ours. The answers differ in the
    # throttle time, in the message (a controller sends none) and in the order of deletes, which a broker shuffles.
    cluster: KafkaCluster = request.getfixturevalue(broker)
    names = pair()
    with RawClient(cluster.bootstrap[0], FREE) as client:
        ids = [topic.topic_id for topic in client.ask(create(7, dict.fromkeys(names, 1))).message.topics]
    settled(cluster.bootstrap[0], dict.fromkeys(names, 1), names)
    new = pair()
    messages = [create(version, dict.fromkeys(new, 3)) for version in (6, 7)]
    messages += [delete(5, list(names)), delete(6, list(names)), delete(6, [], ids)]
    messages.append(partitions(3, dict.fromkeys(names, 9)))
    theirs = use_up(cluster)
    with sidecar(cluster.bootstrap, [{"client-id": "ours", "controller_mutation_rate": 0.01}]) as proxy:
        body_of(proxy.bootstrap, "ours", create(7, {pair()[0]: 5}))
        for message in messages:
            key, version = message.API_KEY, message.API_VERSION
            expected = body_of(cluster.bootstrap[0], theirs, message)
            got = body_of(proxy.bootstrap, "ours", message)
            assert comparable(key, version, got) == comparable(key, version, expected)
            assert int.from_bytes(got[:4]) > 0
    settled(cluster.bootstrap[0], dict.fromkeys(names, 1), (*names, *new))
