"""One request that creates or deletes partitions, until it is decided: what each topic costs, and its outcome."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from proxy.core.interceptors.intercept import AdminRequest, Answer, Forward, Reply, in_slices
from proxy.core.wire import topics as wire
from proxy.core.wire.frames import WireError
from proxy.core.wire.lengths import SLICE, Found, Slices
from proxy.core.wire.topics import CREATE_PARTITIONS, CREATE_TOPICS, DEFAULT_COUNT, Described
from quota.entity import Kind
from quota.ledger import Ledger

RECENT_TOPICS: Final = 1000
"""How many of our own changes are remembered. A broker answers CreateTopics when the controller has done it, and learns
of the topic itself later: mostly within milliseconds, on a busy machine after seconds."""

_NONE, _UNKNOWN_SERVER_ERROR, _UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE, _TIMED_OUT, _UNKNOWN_TOPIC_ID = 0, -1, 3, 5, 7, 100
EXISTS: Final = frozenset({_NONE, _LEADER_NOT_AVAILABLE})
"""Errors in Metadata of topics that exist."""
MISSING: Final = _UNKNOWN_TOPIC
"""The error in Metadata of a name that a broker may create a topic of."""
_UNKNOWN: Final = frozenset({_UNKNOWN_TOPIC, _UNKNOWN_TOPIC_ID})
_MAYBE_DONE: Final = frozenset({_TIMED_OUT, _UNKNOWN_SERVER_ERROR})
"""Errors after which the change may have happened, or will happen, all the same: the charge stays, as in Kafka. So it
does after an error that is newer than we are."""

TopicKey: TypeAlias = str | uuid.UUID


class Recent(NamedTuple):
    """What a broker reported about a topic that was changed through this sidecar."""

    partitions: int
    topic_id: uuid.UUID | None
    unseen: bool = False
    """See `RecentChanges.is_paid`."""


class RecentChanges:
    """Topics that were changed through this sidecar, by name and by id, until the broker says that they are gone."""

    def __init__(self) -> None:
        self._topics: OrderedDict[TopicKey, Recent] = OrderedDict()
        self.default_count: int | None = None
        """The brokers' default partition count, as last seen."""
        self.default_since_ms = 0.0

    def learn_default(self, partitions: int, now_ms: float) -> None:
        """A new topic that left the count to the broker has got this many partitions."""
        self.default_count, self.default_since_ms = partitions, now_ms

    def put(self, name: str | None, topic_id: uuid.UUID | None, partitions: int, *, unseen: bool = False) -> None:
        """The topic has this many partitions from now on; `unseen`: it is new."""
        if topic_id is None and name is not None and name in self._topics:
            topic_id = self._topics[name].topic_id
        for key in (name, topic_id):
            if key:
                self._topics.pop(key, None)
                self._topics[key] = Recent(partitions, topic_id, unseen)
        while len(self._topics) > RECENT_TOPICS:
            self._topics.popitem(last=False)

    def is_paid(self, name: str) -> bool:
        """Whether the creation of the topic has been charged, and Metadata has not shown it since."""
        recent = self._topics.get(name)
        return recent is not None and recent.unseen

    def see(self, name: str | None) -> None:
        """Metadata has shown the topic."""
        recent = self.get(name)
        if name is not None and recent is not None:
            self._topics[name] = recent._replace(unseen=False)

    def forget(self, *keys: TopicKey | None) -> None:
        """The topic has been deleted."""
        for key in keys:
            if key:
                self._topics.pop(key, None)

    def get(self, key: TopicKey | None) -> Recent | None:
        """A topic by name or id; None if nothing is remembered."""
        return self._topics.get(key) if key else None

    def __len__(self) -> int:
        return len(self._topics)


@dataclass(slots=True)
class Wanted:
    """One topic of a request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: int | None
    """The count in the request: a new topic's (0 or less: a broker rejects it), or the one a topic is to grow to; None
    where it gives none."""
    raw: bytes
    """The element of the request."""
    cost: int | None = None
    """Partitions to be created or deleted; None: not known (yet)."""
    counts: bool = True
    """False: the broker will refuse it (unknown, repeated, already exists) and should say so itself. Not charged."""
    charged: int = 0
    """Tokens charged."""
    refused: bool = False
    exempt: bool = False
    """A shadow quota would have refused it: no tokens were charged, so nothing is corrected later."""

    @property
    def key(self) -> TopicKey | None:
        """The name or id that the request uses."""
        return self.topic_id if self.name is None else self.name


class MutationRequest:
    """A CreateTopics, DeleteTopics or CreatePartitions request."""

    def __init__(self, ledger: Ledger, recent: RecentChanges, request: AdminRequest) -> None:
        self._ledger, self._recent = ledger, recent
        self.request = request
        self.wanted: list[Wanted] = []
        """Empty before `read`."""
        self._end = 0
        """Where the topics end in the body."""
        self._validate_only = False
        self._refused: list[bytes] = []
        """The refused topics, as elements of the response."""

    def read(self, now_ms: float) -> Slices[float]:
        """Read the body: make the list of what is wanted. Returns the time. Raises WireError ("request_malformed")."""
        key, version = self.request.api_key, self.request.api_version
        creates = key == CREATE_TOPICS
        repeated: Counter[TopicKey | None] = Counter()

        def take(topic: Found) -> None:
            partitions = topic.number("count" if key == CREATE_PARTITIONS else "num_partitions")
            if creates and (assigned := topic.count("assignments")) > 0:
                partitions = assigned
            partitions = None if partitions == DEFAULT_COUNT else partitions
            one = Wanted(topic.text("name"), topic.topic_id(), partitions, topic.raw, partitions if creates else None)
            self.wanted.append(one)
            repeated[one.key] += 1

        message, now_ms = yield from wire.read_entries(key, version, self.request.body, take, now_ms)
        self._end, self._validate_only = message.starts[1], bool(message.number("validate_only"))
        for number, topic in enumerate(self.wanted, 1):
            topic.counts = repeated[topic.key] == 1  # Kafka: INVALID_REQUEST for each repeated name
            if creates and topic.partitions is not None and topic.partitions <= 0:
                topic.counts = False
            if number % SLICE == 0:
                now_ms = yield
        return now_ms

    @property
    def strict(self) -> bool:
        """Whether the client understands a refusal."""
        return self.request.api_version >= wire.STRICT_FROM[self.request.api_key]

    @property
    def is_free(self) -> bool:
        """No change results, whatever the broker answers."""
        return self._validate_only or not self.wanted

    def names(self) -> list[str]:
        """The topics given by name, each once."""
        return list(dict.fromkeys(topic.name for topic in self.wanted if topic.name is not None))

    def ids(self) -> list[uuid.UUID]:
        """The topics given by id, each once."""
        return list(dict.fromkeys(t.topic_id for t in self.wanted if t.name is None and t.topic_id is not None))

    def look_up(self, described: Sequence[Described], now_ms: float) -> Slices[float]:
        """Take over what a broker reports: names, ids, and partitions as the cost. Unknown topics do not count.
        Returns the time."""
        found: dict[TopicKey | None, Described] = {}
        for number, one in enumerate(described, 1):
            found[one.name] = found[one.topic_id] = one
            if number % SLICE == 0:
                now_ms = yield
        extends = self.request.api_key == CREATE_PARTITIONS
        repeated: Counter[uuid.UUID | None] = Counter()
        for number, topic in enumerate(self.wanted, 1):
            self._look_at(topic, found.get(topic.key))
            repeated[topic.topic_id] += 1
            if extends and topic.cost is not None:
                topic.cost = (topic.partitions or 0) - topic.cost
                topic.counts = topic.counts and topic.cost > 0
            if number % SLICE == 0:
                now_ms = yield
        for number, topic in enumerate(() if extends else self.wanted, 1):  # by name, and once more by id
            topic.counts = topic.counts and (topic.topic_id is None or repeated[topic.topic_id] == 1)
            if number % SLICE == 0:
                now_ms = yield
        return now_ms

    def _look_at(self, topic: Wanted, known: Described | None) -> None:
        recent = self._recent.get(topic.key)
        if known is not None and known.error in EXISTS:
            topic.name, topic.topic_id = known.name or topic.name, known.topic_id or topic.topic_id
            topic.cost = known.partitions or 0
            if recent is not None and recent.topic_id is not None and recent.topic_id == known.topic_id:
                topic.cost = max(topic.cost, recent.partitions)  # the same topic, and topics only grow
        elif known is not None and known.error in _UNKNOWN and recent is not None:
            topic.cost = recent.partitions
        else:
            topic.cost, topic.counts = None, False

    def may_refuse(self, now_ms: float) -> bool:
        """Whether there are too few tokens to accept every topic: they must not be below zero before the last one."""
        costs = [topic.cost or 0 for topic in self.wanted if topic.counts]
        return self._ledger.observed(self.request.account, Kind.MUTATION, now_ms) < sum(costs[:-1])

    def decide(self, now_ms: float) -> Slices[Forward | Answer]:
        """Charge what is known, and refuse topics where the tokens do not suffice."""
        ledger, account = self._ledger, self.request.account
        countable = [topic for topic in self.wanted if topic.counts and topic.cost]
        settle = in_slices(self._settle)
        if not self.strict:
            for topic in countable:
                topic.charged = topic.cost or 0
            total = sum(topic.charged for topic in countable)
            if total:
                ledger.charge_no_throttle(account, Kind.MUTATION, total, now_ms)
            return Forward(on_response=settle)  # which finds out the delay, when it is known what was done
        delay_ms: int | None = None
        """Of the first topic that is refused; it may round to 0."""
        for number, topic in enumerate(countable, 1):
            if delay_ms is not None:  # what follows is refused as well, as if no time had passed
                topic.refused = True
            else:
                overdrawn = ledger.observed(account, Kind.MUTATION, now_ms) < 0
                outcome = ledger.charge_mutation(account, topic.cost or 0, True, now_ms)
                if outcome.accepted:
                    topic.exempt = overdrawn
                    topic.charged = 0 if overdrawn else topic.cost or 0
                else:
                    topic.refused = True
                    delay_ms = outcome.throttle_ms
            if number % SLICE == 0:
                now_ms = yield
        if delay_ms is None:
            return Forward(None, settle)
        refused = [topic for topic in self.wanted if topic.refused]
        self._refused = yield from self._refuse(refused, ErrorCode.throttling_quota_exceeded, wire.REFUSAL_TEXT)
        kept = [topic.raw for topic in self.wanted if not topic.refused]
        if not kept:
            return Answer(wire.only_refusals(self.request.api_key, self.request.api_version, self._refused), delay_ms)
        return Forward(wire.keep_topics(self.request.body, self._end, kept), settle, delay_ms)

    def refuse_all(self) -> Slices[Answer]:
        """Answer a request with more topics than are judged, as a KRaft controller does."""
        refused = yield from self._refuse(self.wanted, ErrorCode.policy_violation, wire.TOO_MANY_TEXT)
        return Answer(wire.only_refusals(self.request.api_key, self.request.api_version, refused))

    def _refuse(self, topics: Sequence[Wanted], error: ErrorCode, text: str) -> Slices[list[bytes]]:
        key, version = self.request.api_key, self.request.api_version
        found: list[bytes] = []
        for topic in topics:
            found.append(wire.refused_topic(key, version, topic.name, topic.topic_id, error, text))
            if len(found) % SLICE == 0:
                yield
        return found

    def _settle(self, body: bytes, now_ms: float) -> Slices[Reply]:
        """The broker has answered: correct the charges, insert the refused topics, compute old clients' delay."""
        ledger, request, refused = self._ledger, self.request, self._refused
        try:
            results, end, now_ms = yield from wire.read_results(
                request.api_key, request.api_version, body, len(self.wanted), now_ms
            )
        except WireError:
            if refused:
                raise
            results, end = [], 0  # the client may understand it, and the charge stays
        by_key: dict[TopicKey | None, Wanted] = {}
        for number, topic in enumerate(self.wanted, 1):  # of repeated ones the first counts, should a broker accept it
            by_key.setdefault(topic.name, topic)
            by_key.setdefault(topic.topic_id, topic)
            if number % SLICE == 0:
                now_ms = yield
        by_key.pop(None, None)
        for number, result in enumerate(results, 1):
            found = by_key.get(result.topic_id) or by_key.get(result.name)
            if found is not None and not found.refused and not found.exempt:
                self._put_right(found, result, now_ms)
            if number % SLICE == 0:
                now_ms = yield
        delay_ms = 0
        if not self.strict and any(topic.charged for topic in self.wanted):
            delay_ms = ledger.check(request.account, Kind.MUTATION, now_ms)
        return Reply(wire.with_refusals(body, end, refused) if refused else None, delay_ms)

    def _put_right(self, topic: Wanted, result: Described, now_ms: float) -> None:
        ledger, account = self._ledger, self.request.account
        actual = 0
        if result.error == _NONE:
            actual = result.partitions or max(topic.cost or 0, 1)  # at least one, or there was nothing to do
            self._remember(topic, result, actual, now_ms)
        elif result.error in _UNKNOWN:
            self._recent.forget(result.name, result.topic_id, topic.name, topic.topic_id)
        elif result.error in _MAYBE_DONE or result.error not in wire.KNOWN_ERRORS:
            actual = topic.charged
        if actual > topic.charged:
            ledger.charge_no_throttle(account, Kind.MUTATION, actual - topic.charged, now_ms)
        elif actual < topic.charged:
            ledger.refund(account, Kind.MUTATION, topic.charged - actual, now_ms)
        topic.charged = actual

    def _remember(self, topic: Wanted, result: Described, partitions: int, now_ms: float) -> None:
        recent = self._recent
        if self.request.api_key == CREATE_TOPICS:
            recent.put(result.name, result.topic_id, partitions, unseen=True)
            if topic.partitions is None and result.partitions:
                recent.learn_default(result.partitions, now_ms)
        elif self.request.api_key == CREATE_PARTITIONS:
            recent.put(result.name, None, topic.partitions or 0)
        else:
            recent.forget(result.name, result.topic_id, topic.name, topic.topic_id)
