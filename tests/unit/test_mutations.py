"""The partition-mutation quota without sockets: all versions of the three requests, encoded by kafka-python."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.interceptors.intercept import AdminRequest, Forward
from proxy.core.interceptors.mutation_request import RECENT_TOPICS, RecentChanges
from proxy.core.wire.frames import WireError
from proxy.core.wire.topics import CREATE_TOPICS, DELETE_TOPICS, MAX_TOPICS, REFUSAL_TEXT, STRICT_FROM
from tests.support import mutation_tools as kafka
from tests.support.mutation_tools import Client, Cluster, create, create_assigned, delete, encoded, metadata, partitions
from tests.support.session_tools import finished

VERSIONS: dict[Any, range] = {
    create: kafka.CREATE_VERSIONS,
    delete: kafka.DELETE_VERSIONS,
    partitions: kafka.PARTITIONS_VERSIONS,
}
EVERY_VERSION = [(make, version) for make, versions in VERSIONS.items() for version in versions]
COUNTS = {
    create: ({}, {"a": 30}, {"a": 30, "b": 30}),
    delete: ({"a": 30, "b": 30}, {"b": 30}, {}),
    partitions: ({"a": 1, "b": 1}, {"a": 31, "b": 1}, {"a": 31, "b": 31}),
}
"""Partitions of the topics before the request, after it with one topic refused, and after it."""
CUT = [create(7, {"a": 1}), delete(6, ["a"]), delete(5, ["a"]), partitions(3, {"a": 2}), create(0, {"a": 1})]


def cost(client: Client, message: Any) -> float:
    """Partitions that a request adds to the client's total."""
    before = client.charged
    client.send(message)
    return client.charged - before


@pytest.mark.parametrize(("make", "version"), EVERY_VERSION)
def test_strict_versions_refuse_and_permissive_delay(make: Any, version: int) -> None:
    client, (before, partly, after) = Client(2), COUNTS[make]
    client.cluster.add(**before)
    ids = {name: one[0] for name, one in client.cluster.topics.items()}
    message = make(version, ["a", "b"] if make is delete else after)
    done = client.send(message)
    if version < STRICT_FROM[message.API_KEY]:
        assert (done.errors, done.delay_ms) == ({"a": 0, "b": 0}, 20_000)  # 20 - 60 = -40
        assert client.cluster.counts == after
        return
    assert (done.errors, done.delay_ms) == ({"a": 0, "b": kafka.THROTTLED}, 5000)  # 20 - 30 = -10 tokens, at 2/s
    assert client.cluster.counts == partly
    answers = {create: "topics", delete: "responses", partitions: "results"}[make]
    (refused,) = (topic for topic in getattr(done.message, answers) if topic.name == "b")
    assert refused.error_message == REFUSAL_TEXT
    if make is delete and version >= 6:
        assert refused.topic_id == ids["b"], "as a broker does, although the request gave the name only"
    if make is create:
        assert [topic.name for topic in done.forwarded.topics] == ["a"]
        assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, [])
        assert version < 7 or refused.topic_id is None
        client.now_ms = 5000
        again = client.send(create(version, {"b": 30}))
        assert (again.errors, again.delay_ms) == ({"b": 0}, 0)


def test_topics_are_judged_in_order_and_the_rest_keeps_its_bytes() -> None:
    client = Client(2)
    message = create(7, [("a", 20), ("b", 1), ("c", 1)])
    message.topics[0].configs = [message.topics[0].CreatableTopicConfig(version=7, name="retention.ms", value="77")]
    message.timeout_ms = 12_345
    client.send(create(7, {"drain": 1}))
    done = client.send(message)
    # 19 tokens: a and nothing else, -1 token at 2 per second
    assert (done.errors, done.delay_ms) == ({"a": 0, "b": kafka.THROTTLED, "c": kafka.THROTTLED}, 500)
    expected = create(7, {"a": 20})
    expected.topics[0].configs, expected.timeout_ms = message.topics[0].configs, 12_345
    assert done.forwarded_body == encoded(expected)


def test_refuses_with_a_delay_that_rounds_to_0() -> None:
    client = Client(3)
    client.send(create(7, {"a": 31}))
    client.now_ms = 333  # 30 - 31 + 0.999 = -0.001 tokens: 0.3 ms
    done = client.send(create(7, {"b": 100, "c": 100}))
    assert (done.errors, done.delay_ms, client.charged) == ({"b": kafka.THROTTLED, "c": kafka.THROTTLED}, 0, 31)


@pytest.mark.parametrize("version", kafka.CREATE_VERSIONS)
def test_only_what_a_broker_creates_is_charged(version: int) -> None:
    client = Client(2)
    client.cluster.add(there=30, x=1)
    client.cluster.fail["forbidden"] = 29
    done = client.send(create(version, {"there": 30, "forbidden": 4, "fine": 3, "none": 0}))
    errors = {"there": kafka.EXISTS, "forbidden": 29, "fine": 0, "none": kafka.INVALID_PARTITIONS}
    assert (done.errors, done.delay_ms) == (errors, 0)
    assert (client.tokens, client.charged) == (17, 3)
    if version:
        done = client.send(create(version, {"a": 30}, validate_only=True))
        assert (done.errors, done.delay_ms, client.charged) == ({"a": 0}, 0, 3)
    # Repeated names go to the broker, which refuses them.
    done = client.send(create(version, [("a", 30), ("b", 1), ("a", 30)]))
    assert (done.errors, client.charged) == ({"a": kafka.INVALID_REQUEST, "b": 0}, 4)
    assert [topic.name for topic in done.forwarded.topics] == ["a", "b", "a"]
    x_id, _ = client.cluster.topics["x"]
    for message in (partitions(3, [("x", 30), ("x", 40)]), delete(6, ["x"], [x_id])):
        assert (client.send(message).errors, client.charged) == ({"x": kafka.INVALID_REQUEST}, 4)
    assert cost(client, create_assigned(version, "assigned", 4)) == 4


def test_uncertain_results_stay_charged() -> None:
    client = Client(2, Cluster(fail={"slow": 7, "odd": -1}))  # REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR
    assert cost(client, create(7, {"slow": 9, "odd": 4})) == 13


@pytest.mark.parametrize("version", kafka.CREATE_VERSIONS[4:])
def test_default_counts_are_asked_for_once_and_kept_right(version: int) -> None:
    client = Client(2, Cluster(default_count=7))
    assert cost(client, create(version, {"a": -1, "b": 2})) == 9
    assert client.cluster.seen == [(CREATE_TOPICS, 5), (CREATE_TOPICS, version)]
    assert client.cluster.counts == {"a": 7, "b": 2}  # asking has created nothing
    assert (cost(client, create(version, {"c": -1})), len(client.cluster.seen)) == (7, 3)
    client.cluster.default_count = 4  # changed elsewhere: answers from version 5 on show it
    assert cost(client, create(7, {"d": -1})) == cost(client, create(version, {"e": -1})) == 4


def test_unknown_default_count_is_one() -> None:
    client = Client(2, Cluster(default_count=7))
    for known, name, charged in ((False, "a", 1), (True, "b", 7)):
        client.cluster.describe_configs = known
        assert cost(client, create(7, {name: -1})) == charged


@pytest.mark.parametrize(("version", "asked"), [(1, 4), (5, 4), (6, 10)])
def test_questions_are_of_versions_that_the_clients_broker_has(version: int, asked: int) -> None:
    client = Client(2)
    client.cluster.add(a=1)
    client.send(delete(version, ["a"]))
    assert client.cluster.seen == [(kafka.METADATA, asked), (DELETE_TOPICS, version)]


def test_remembers_counts_that_a_broker_does_not_show_yet() -> None:
    client = Client(2)
    client.send(create(7, {"a": 8}))
    before = dict(client.cluster.topics)
    client.cluster.hidden.add("a")
    assert cost(client, partitions(3, {"a": 10})) == 2
    client.cluster.hidden.clear()
    client.now_ms += 600_000
    client.cluster.topics.update(before)  # Metadata may be behind for long
    assert cost(client, delete(6, ["a"])) == 10
    for _ in range(2):
        assert client.send(delete(6, ["a"])).errors == {"a": kafka.UNKNOWN_TOPIC}
    assert (client.charged, client.quota.recent.get("a")) == (20, None)


def test_a_topic_that_only_seemed_to_exist_is_charged_afterwards() -> None:
    client = Client(2)
    client.send(create(7, {"drain": 21}))
    client.cluster.add(a=5)
    handle = client.cluster.handle

    def gone_meanwhile(api_key: int, version: int, body: bytes) -> bytes:
        answer = handle(api_key, version, body)
        client.cluster.topics.pop("a", None) if api_key == kafka.METADATA else None
        return answer

    client.cluster.handle = gone_meanwhile  # type: ignore[method-assign]
    assert client.send(create(7, {"a": 5})).errors == {"a": 0}
    assert client.charged == 26


@pytest.mark.parametrize("version", kafka.DELETE_VERSIONS)
def test_remembered_counts_do_not_outlive_the_topic(version: int) -> None:
    # Made here, and this very moment deleted and made again, smaller, by another client: that one counts.
    client = Client(2)
    client.send(create(7, {"a": 15}))
    client.cluster.add(a=2)
    assert cost(client, partitions(3, {"a": 4})) == 2
    client.cluster.add(a=1)
    assert cost(client, delete(version, ["a"])) == 1


@pytest.mark.parametrize("version", kafka.METADATA_VERSIONS)
def test_metadata_creates_until_the_tokens_are_used_up(version: int) -> None:
    client = Client(1)
    client.cluster.add(old=100)
    done = client.send(metadata(version, ["old", *"abcdef"]))
    assert (done.delay_ms, client.charged, client.tokens) == (0, 12, -2)  # 10 - 4 x 3
    assert client.cluster.counts == {"old": 100, **dict.fromkeys("abcd", 3)}
    assert {one.name for one in done.message.topics} == set("abcdef") - set("ef" if version < 4 else "") | {"old"}
    done = client.send(metadata(version, ["old", "e", "e"]))
    expected = metadata(version, ["old"]) if version < 4 else metadata(version, ["old", "e", "e"], creates=False)
    assert (done.delay_ms, done.forwarded_body, client.charged) == (0, encoded(expected), 12)
    client.now_ms = 2000
    asked = metadata(version, ["old", "e"])
    assert client.send(asked).forwarded_body == encoded(asked)
    assert (client.cluster.counts, client.charged) == ({"old": 100, **dict.fromkeys("abcde", 3)}, 15)


@pytest.mark.parametrize(
    ("message", "questions"),
    [
        (lambda version: metadata(version, None), 0),
        (lambda version: metadata(version, []), 0),
        (lambda version: metadata(version, ["old"]), 1),
        (lambda version: metadata(max(version, 4), ["new"], creates=False), 0),
        (lambda version: metadata(max(version, 10), [], ids=(uuid.UUID(int=7),)), 0),
    ],
    ids=["all", "none", "existing", "forbidden", "by-id"],
)
@pytest.mark.parametrize("version", kafka.METADATA_VERSIONS)
def test_metadata_that_creates_nothing_stays_as_it_is(version: int, message: Any, questions: int) -> None:
    client = Client(2)
    client.cluster.add(old=1)
    client.send(create(7, {"drain": 30}))
    client.cluster.seen.clear()
    asked = message(version)
    done = client.send(asked)
    assert (done.delay_ms, done.forwarded_body, client.charged) == (0, encoded(asked), 30)
    question = (kafka.METADATA, max(asked.API_VERSION, 4))  # of the client's own version, if that can forbid
    assert client.cluster.seen == [question] * questions + [(kafka.METADATA, asked.API_VERSION)]


def test_a_new_topic_is_charged_once_until_metadata_shows_it() -> None:
    client = Client(2, Cluster(auto_create=False))
    # Whether the broker creates it nobody says.
    assert [cost(client, metadata(12, ["a", "b"])) for _ in range(3)] == [6, 0, 0]
    assert cost(client, create(7, {"c": 5})) == 5
    client.cluster.hidden.add("c")  # the broker has not heard of it
    assert cost(client, metadata(12, ["c"])) == 0
    client.cluster.hidden.clear()
    assert cost(client, metadata(12, ["c"])) == 0
    client.cluster.topics.clear()  # deleted elsewhere
    assert cost(client, metadata(12, ["c"])) == 3
    client.cluster.add(a=3)
    assert cost(client, delete(6, ["a"])) == cost(client, metadata(12, ["a"])) == 3


def test_more_names_than_are_judged_create_nothing() -> None:
    names = [f"t{number}" for number in range(MAX_TOPICS + 1)]
    client = Client(2)
    done = client.send(metadata(12, names))
    assert done.forwarded_body == encoded(metadata(12, names, creates=False))
    assert (client.charged, client.cluster.counts) == (0, {})
    with pytest.raises(WireError, match="more than 10000 topics") as caught:
        client.send(metadata(3, names))
    assert caught.value.reason == "request_too_large"


def test_shadow_measures_and_refuses_nothing() -> None:
    client = Client(2, mode="shadow")
    client.cluster.add(old=1)

    def measured() -> tuple[float, int, int]:
        (group,) = client.ledger.groups()
        assert group.shadowed is not None
        return group.observed(0), group.shadowed.throttled, group.shadowed.throttle_ms

    done = client.send(create(7, {"a": 30, "b": 30, "old": 1}))
    assert (done.errors, done.delay_ms) == ({"a": 0, "b": 0, "old": kafka.EXISTS}, 0)
    assert measured() == (-10, 1, 5000)  # b would have been refused, so it took nothing
    assert client.send(create(5, {"c": 10})).delay_ms == 0
    assert measured() == (-20, 2, 10_000)
    client.send(metadata(9, ["d"]))
    assert "d" in client.cluster.counts
    assert measured() == (-20, 3, 10_000)


@pytest.mark.parametrize("message", [*CUT, metadata(0, ["a"])])
def test_cut_requests_are_malformed(message: Any) -> None:
    limited, unlimited = Client(2), Client(None)
    body = encoded(message)
    for cut in (b"", body[:3], body[:-3]):
        with pytest.raises(WireError, match="cannot be read") as caught:
            limited.judge(AdminRequest(message.API_KEY, message.API_VERSION, "u", limited.account, cut))
        assert caught.value.reason == "request_malformed"
        if message.API_KEY != kafka.METADATA:  # which the session passes on unread; of these the broker may judge
            asked = AdminRequest(message.API_KEY, message.API_VERSION, "u", unlimited.account, cut)
            assert unlimited.judge(asked) == Forward()


def test_unknown_tagged_fields_are_the_brokers_to_judge() -> None:
    client = Client(2)
    body = encoded(create(7, {"a": 5}))[:-1] + b"\1\x63\2ab"  # tag 99, two bytes
    outcome: Any = client.judge(AdminRequest(CREATE_TOPICS, 7, "u", client.account, body))
    assert (type(outcome), outcome.body, client.charged) == (Forward, None, 5)


@pytest.mark.parametrize(("make", "version"), EVERY_VERSION)
def test_more_topics_than_are_judged_are_refused_as_by_kraft(make: Any, version: int) -> None:
    names = [f"t{number}" for number in range(MAX_TOPICS + 1)]
    client = Client(2)
    done = client.send(make(version, names if make is delete else dict.fromkeys(names, 1)))
    assert done.errors == dict.fromkeys(names, kafka.POLICY_VIOLATION)
    assert (done.delay_ms, client.charged, client.cluster.seen) == (0, 0, [])


def test_leaves_refusal_of_hidden_topics_to_the_broker() -> None:
    client = Client(2)
    client.cluster.add(secret=30, a=1)
    client.cluster.hidden.add("secret")  # a broker answers TOPIC_AUTHORIZATION_FAILED in place of UNKNOWN_TOPIC
    client.cluster.fail["secret"] = 29
    client.send(create(7, {"drain": 21}))
    for message in (delete(6, ["secret"]), partitions(3, {"secret": 40})):
        assert (client.send(message).errors, client.charged) == ({"secret": 29}, 21)


def test_an_unreadable_answer_passes_unless_it_needs_a_change() -> None:
    client = Client(2)
    outcome: Any = client.judge(AdminRequest(CREATE_TOPICS, 7, "u", client.account, encoded(create(7, {"a": 5}))))
    assert type(outcome) is Forward
    reply = finished(outcome.on_response(b"\0\0\0\0\x02\x02a" + bytes(16) + b"\x03\xe7", 0))  # cut
    assert (reply.body, reply.delay_ms, client.charged) == (None, 0, 5)
    client.cluster.handle = lambda *_: b"\0\0\0"  # type: ignore[method-assign]
    with pytest.raises(WireError) as caught:
        client.send(create(7, {"a": 30, "b": 30}))
    assert caught.value.reason == "broker_malformed"


@given(data=st.data())
def test_charge_equals_the_change(data: st.DataObject) -> None:
    """Whatever clients send, in whatever version: the total is the number of partitions that came and went, nothing is
    refused before the tokens are used up, and a refused topic is left alone."""
    cluster = Cluster(fail={"bad": 17})
    client, changed = Client(2, cluster), 0
    names = st.sampled_from(["a", "b", "c", "d", "bad"])
    for _ in range(data.draw(st.integers(1, 8))):
        client.now_ms += data.draw(st.sampled_from([0, 100, 3000, 30_000]))
        asked = data.draw(st.lists(st.tuples(names, st.sampled_from([-1, 1, 4, 15, 40])), max_size=4))
        makes = VERSIONS | {create: kafka.CREATE_VERSIONS[4:], metadata: kafka.METADATA_VERSIONS}
        make = data.draw(st.sampled_from(list(makes)))
        named = [name for name, _ in asked if make is not metadata or name != "bad"]
        message = make(data.draw(st.sampled_from(makes[make])), asked if make in (create, partitions) else named)
        before, tokens = cluster.counts, client.tokens
        done = client.send(message)
        after = cluster.counts
        difference = sum(abs(after.get(name, 0) - before.get(name, 0)) for name in before | after)
        changed += difference
        assert client.charged == changed
        refused = {name for name, error in done.errors.items() if error == kafka.THROTTLED}
        assert all(before.get(name) == after.get(name) for name in refused)
        if refused:
            # What the broker refused ("bad") was charged until it said so.
            assert tokens < difference or tokens < 0 or "bad" in done.errors
            assert done.delay_ms > 0


def test_remembers_a_bounded_number_of_topics() -> None:
    recent, topic_id = RecentChanges(), uuid.UUID(int=1)
    recent.put("a", topic_id, 3)
    recent.put("a", None, 5)  # CreatePartitions knows no ids
    assert recent.get("a") == recent.get(topic_id) == (5, topic_id, False)
    for number in range(2 * RECENT_TOPICS):
        recent.put(str(number), None, 1)
    assert len(recent) == RECENT_TOPICS
