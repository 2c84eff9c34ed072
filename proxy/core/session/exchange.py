"""Requests that await their response, in order: a broker answers each connection strictly in turn.

`RequestTime` estimates how long a broker was busy with each; a `Histogram` counts latencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.core.session.states import EXCHANGE, Answering, Event, step
from proxy.core.wire.apis import FETCH, PRODUCE, keys_of

if TYPE_CHECKING:
    from proxy.core.interceptors.intercept import Hook, Outcome, Reply, Work
    from quota.counter import FetchGrant
    from quota.entity import Kind
    from quota.ledger import Account


MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Administrators' requests whose answers will be changed, and local answers, are kept until they are next in order.
When they use more than this, no further request is inspected until some have been sent."""
_MAX_KEPT_BYTES: Final = MAX_KEPT_BYTES
_FULL: Final = Answering.FULL
_ASKING: Final = Answering.ASKING


class Penalty:
    """The throttle that a request caused (see `Throttle.impose`); most requests have none."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        """The quota that caused it, the one of several that lasts longest."""
        self.delay_ms = 0
        self.until_ms = 0.0
        """The end of the mute."""
        self.announced_until_ms = 0.0
        """The end of the throttle in the response's throttle field; 0: it has none."""
        self.charged: float | None = None
        """What that quota was charged for this request; None if it was delayed before it was charged."""


class InFlightRequest:
    """A request that has not been answered yet; created by `new_in_flight`.

    `api_version`: the one the client asked for, which determines the response's layout.
    `local_answer`: the whole response frame, made here; the broker never saw the request. It is still sent in order.
    `work_bytes`: what `RequestTime.busy_ms` takes.
    `grant`: of a Fetch that the ledger has admitted; what it reserved is settled when the response comes.
    `hook`: takes the whole response; then the work that it has left. `kept_bytes`: what is kept of the request or its
    answer until it is next in order, if that can be large. `next`: the next request in the queue.
    """

    correlation_id: int
    api_key: int
    api_version: int
    account: Account
    sent_ms: float
    penalty: Penalty | None
    local_answer: bytes | None
    work_bytes: int
    grant: FetchGrant | None
    hook: Hook | Work[Reply] | None
    kept_bytes: int
    next: InFlightRequest | None


def new_in_flight(
    correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
) -> InFlightRequest:
    """A new entry for a request of `account` that was read at `sent_ms`."""
    # Not by calling the class, which in compiled code would take longer than everything else here.
    pending = InFlightRequest.__new__(InFlightRequest)
    pending.penalty = None
    pending.local_answer = None
    pending.grant = None
    pending.hook = None
    pending.kept_bytes = 0
    pending.next = None
    return _for(pending, correlation_id, api_key, api_version, account, sent_ms)


def _for(
    pending: InFlightRequest, correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
) -> InFlightRequest:
    """The entry, for this request."""
    pending.correlation_id = correlation_id
    pending.api_key = api_key
    pending.api_version = api_version
    pending.account = account
    pending.sent_ms = sent_ms
    pending.work_bytes = 0
    return pending


class Exchange:
    """The requests in flight of one connection, oldest first; and the one whose interceptor has not decided yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        """With so many requests in flight no further one is inspected (backpressure)."""
        self._spare: InFlightRequest | None = None
        """One that has been answered, for the next request."""
        self.kept_bytes = 0
        """Kept of requests in flight and of their answers; above a bound no further request is inspected."""
        self.state = Answering.FLOWING
        self.oldest: InFlightRequest | None = None
        """The request whose response comes next."""
        self.newest: InFlightRequest | None = None
        self.count = 0
        self.waiting: tuple[bytes, bytes, InFlightRequest] | None = None
        """Request (header, body) whose interceptor has not decided yet."""
        self.outcome: Outcome | None = None
        """What is to be done about it next: its interceptor has decided, or has more to compute."""
        self.question: InFlightRequest | None = None
        """The request in flight that the client does not know of; its hook decides."""

    def plain(
        self, correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
    ) -> InFlightRequest:
        """As `new_in_flight`, by the entry that `reuse` was given if there is one."""
        pending = self._spare
        if pending is None:
            return new_in_flight(correlation_id, api_key, api_version, account, sent_ms)
        self._spare = None
        return _for(pending, correlation_id, api_key, api_version, account, sent_ms)

    def reuse(self, pending: InFlightRequest) -> None:
        """This request has been answered, and nothing else refers to it. All that `_for` does not set is as in a new
        one."""
        self._spare = pending

    def append(self, pending: InFlightRequest) -> None:
        """A request is forwarded, or answered here."""
        if self.newest is None:
            self.oldest = pending
        else:
            self.newest.next = pending
        self.newest = pending
        self.count += 1
        self.kept_bytes += pending.kept_bytes
        if self._full():
            self._weigh()

    def popleft(self) -> InFlightRequest:
        """The oldest request is answered. Raises IndexError if there is none."""
        pending = self.oldest
        if pending is None:
            raise IndexError("no request is in flight")
        self.oldest = pending.next
        pending.next = None
        if self.oldest is None:
            self.newest = None
        self.count -= 1
        self.kept_bytes -= pending.kept_bytes
        if self.state is _FULL:
            self._weigh()
        return pending

    def answer_due(self) -> bool:
        """Whether the oldest request was answered here."""
        return self.oldest is not None and self.oldest.local_answer is not None

    def ask(self, head: bytes, body: bytes, pending: InFlightRequest) -> None:
        """A whole request waits until its interceptor has decided."""
        self.state = step(EXCHANGE, self.state, Event.ASK)
        self.waiting = (head, body, pending)

    def decide(self, outcome: Outcome) -> None:
        """The interceptor has decided: ignored if the connection has ended since."""
        if self.waiting is not None:
            self.outcome = outcome

    def take_waiting(self) -> tuple[bytes, bytes, InFlightRequest]:
        """The arguments of `ask`: nothing waits any more."""
        assert self.waiting is not None
        waiting, self.waiting = self.waiting, None
        self.state = step(EXCHANGE, self.state, Event.DECIDED)
        self._weigh()
        return waiting

    def clear(self) -> None:
        """Forget all requests."""
        if self.waiting is not None:
            self.take_waiting()
        self.outcome = self.question = self._spare = None
        while self.oldest is not None:
            self.popleft()

    def _full(self) -> bool:
        return self.count >= self._most or self.kept_bytes > _MAX_KEPT_BYTES

    def _weigh(self) -> None:
        full, state = self._full(), self.state
        if (state is _FULL) != full and state is not _ASKING:
            self.state = step(EXCHANGE, state, Event.FILLED if full else Event.FREED)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[InFlightRequest]:
        """From the oldest to the newest."""
        pending = self.oldest
        while pending is not None:
            yield pending
            pending = pending.next


HANDOVER_MS: Final = 0.08
"""The least that handing a request from thread to thread in a broker takes, and its answer back; no thread is busy
then. Measured on an idle broker: a Metadata request took 0.105 ms (median) on loopback, of which the broker charged
0.028."""
MIN_MS: Final = 0.02
"""What brokers charge for the cheapest requests (Metadata without topics, eight in flight: 0.019 ms each)."""
DEFAULT_BASELINE_MS: Final = 0.3
"""The baseline of a connection without measurements. Brokers charged 0.29 ms for a Fetch at the end of a log with 50
records/s, 0.48 ms on an empty one and 0.33 ms where it read 1 MB."""
MS_PER_BYTE: Final = 4e-6
"""What each byte adds to the maximum charge of Produce with acks=all: brokers charged 3 ms per MB (flat out) to 6 ms
per MB (20 requests/s) for processing one, whatever the acks."""
WORK_PER_BYTE: Final = {
    **dict.fromkeys(keys_of("OffsetCommit", "TxnOffsetCommit"), 1),
    **dict.fromkeys(keys_of("DeleteRecords"), 10),
    **dict.fromkeys(keys_of("AddPartitionsToTxn"), 32),
}
"""Requests that may wait, with lists of partitions: each byte counts as so many of Produce. For 3 000 partitions
a broker charged 0.4 to 0.5 ms (42 kB), 1.2 to 1.7 ms (36 kB) and 1.7 to 1.8 ms (12 kB)."""
RECENT: Final = 15
"""The baseline is the median of this many requests."""

# Compared for each response: in compiled code C numbers (see the .pxd).
_PRODUCE: Final = PRODUCE
_FETCH: Final = FETCH
_RECENT: Final = RECENT
_HANDOVER_MS: Final = HANDOVER_MS
_MIN_MS: Final = MIN_MS
_MS_PER_BYTE: Final = MS_PER_BYTE
_UNKNOWN: Final = -1.0

NEVER_WAIT: Final = keys_of(
    "Produce",  # those with acks=1; acks=0 has no response, the caller treats acks=all separately
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "FindCoordinator",
    "Heartbeat",
    "DescribeGroups",
    "ListGroups",
    "OffsetForLeaderEpoch",
    "DescribeAcls",
    "DescribeConfigs",
    "DescribeLogDirs",
    "DescribeDelegationToken",
    "DescribeClientQuotas",
    "DescribeUserScramCredentials",
    "DescribeCluster",
    "DescribeProducers",
    "DescribeTransactions",
    "ListTransactions",
    "ConsumerGroupDescribe",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "ListConfigResources",
    "DescribeTopicPartitions",
    "ShareGroupDescribe",
    "StreamsGroupDescribe",
    # Exempt in Kafka if it is authorised, as a broker is. Through a sidecar come clients, most without that right.
    "WriteTxnMarkers",
)
"""Requests that a broker answers from what it knows. All others may wait: for time (Fetch, ShareFetch), for members
(JoinGroup, SyncGroup), for replicas (commits, transactions, group heartbeats that change something, DeleteRecords), for
another broker (DescribeShareGroupOffsets), for the controller (everything forwarded to it), for the broker's acceptor
(ApiVersions, a connection's first request) - or it is unknown (an API newer than the sidecar)."""


class RequestTime:
    """The estimator of one connection: how long a broker was busy with each request, as far as can be seen from outside
    (ADR 0007). Times are in milliseconds.

    Kafka charges the time of its own threads (KIP-124). From here only the arrival times of bytes can be seen, so a
    request is charged

        elapsed  from its last byte read here, or the last byte of the previous response where that is later (a broker
                 works on one request of a connection at a time, so pipelined requests count once), to its first byte
                 of response
        less     the network's round trip, as the kernel measured it when connecting (nothing if the request was queued
                 at the broker while it worked on the previous one), and HANDOVER_MS
        at least MIN_MS, if it took as long as that

    Requests whose answer may wait for something other than a thread (time, other members, replicas, the controller) are
    charged at most the connection's *baseline*: the median charge of its latest requests that never wait. Produce with
    acks=all and lists of partitions also get a share for their size. docs/quota-arithmetic.md compares this with the
    brokers' own figures.
    """

    def __init__(self) -> None:
        self.free_ms = 0.0
        """When the last byte of the latest response came: from then on the broker was free for the next request."""
        self.round_trip_ms = 0.0
        """The network's round trip to the broker."""
        self._recent = [DEFAULT_BASELINE_MS] * 15  # RECENT: a C array needs the number itself
        self._at = 0
        self._baseline = DEFAULT_BASELINE_MS  # _UNKNOWN: recompute

    def busy_ms(
        self, api_key: int, sent_ms: float, now_ms: float, work_bytes: int = 0, arrived_ms: float = inf
    ) -> float:
        """What to charge a request whose last byte was read at `sent_ms` and whose response is read at `now_ms`.

        `arrived_ms`: the earliest time at which that response may have arrived (`EventLoop.since_ms`), if before now.
        `work_bytes`: the request's size times its `WORK_PER_BYTE`; of Produce with acks=all the size; else 0.
        """
        free_ms, handover_ms, least_ms = self.free_ms, _HANDOVER_MS, _MIN_MS
        came = arrived_ms if arrived_ms < now_ms else now_ms
        if free_ms > sent_ms:
            start_ms = free_ms
            unused_ms = handover_ms
        else:
            start_ms = sent_ms
            unused_ms = self.round_trip_ms + handover_ms
        busy = came - start_ms - unused_ms
        if busy < least_ms:
            elapsed = now_ms - start_ms
            busy = least_ms if elapsed >= least_ms else elapsed if elapsed > 0.0 else 0.0
        if work_bytes:
            most = self.baseline_ms() + work_bytes * _MS_PER_BYTE
            return busy if busy < most else most
        if api_key == _PRODUCE or (api_key != _FETCH and api_key in NEVER_WAIT):
            at = self._at
            self._recent[at] = busy
            self._at = at + 1 if at < _RECENT - 1 else 0
            self._baseline = _UNKNOWN
            return busy
        most = self.baseline_ms()
        return busy if busy < most else most

    @property
    def recent(self) -> list[float]:
        """The latest charges of requests that never wait, in no order."""
        return [self._recent[at] for at in range(RECENT)]

    def baseline_ms(self) -> float:
        """The maximum charge of a request that may wait."""
        baseline = self._baseline
        if baseline == _UNKNOWN:
            baseline = self._baseline = sorted(self.recent)[RECENT // 2]
        return baseline


LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Compared for each response: C numbers in compiled code (see the .pxd).
_BUCKETS = len(LATENCY_BUCKETS_S)
_BOUNDS = LATENCY_BUCKETS_S


class Histogram:
    """Counts per bucket (upper bounds in seconds, Prometheus' `le`), not cumulated, the last one being +Inf."""

    def __init__(self) -> None:
        self._counts = [0] * 16  # a C array needs the number itself: one more than there are bounds
        self.sum_s = 0.0

    @property
    def counts(self) -> list[int]:
        """Observations per bucket."""
        return [self._counts[place] for place in range(_BUCKETS + 1)]

    def add(self, seconds: float) -> None:
        """Count one observation of `seconds`."""
        place = 0
        while place < _BUCKETS and seconds > _BOUNDS[place]:  # nearly always one of the first
            place += 1
        self._counts[place] += 1
        self.sum_s += seconds
