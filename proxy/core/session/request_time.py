"""How long a broker was busy with each request of one connection, as far as can be seen from outside (ADR 0007).

Kafka charges the time of its own threads (KIP-124). From here only the arrival times of bytes can be seen, so a request
is charged

    elapsed  from its last byte read here, or the last byte of the previous response where that is later (a broker
             works on one request of a connection at a time, so pipelined requests count once), to its first byte of
             response
    less     the network's round trip, as the kernel measured it when connecting (nothing if the request was queued at
             the broker while it worked on the previous one), and HANDOVER_MS
    at least MIN_MS, if it took as long as that

Requests whose answer may wait for something other than a thread (time, other members, replicas, the controller) are
charged at most the connection's *baseline*: the median charge of its latest requests that never wait. Produce with
acks=all and lists of partitions also get a share for their size. docs/quota-arithmetic.md compares this with the
brokers' own figures.
"""

from __future__ import annotations

from math import inf
from typing import Final

from proxy.core.wire.apis import FETCH, PRODUCE, keys_of

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
    """The estimator of one connection. Times are in milliseconds."""

    __slots__ = ("_at", "_baseline", "_recent", "free_ms", "round_trip_ms")

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
            most = self._most_ms() + work_bytes * _MS_PER_BYTE
            return busy if busy < most else most
        if api_key == _PRODUCE or (api_key != _FETCH and api_key in NEVER_WAIT):
            at = self._at
            self._recent[at] = busy
            self._at = at + 1 if at < _RECENT - 1 else 0
            self._baseline = _UNKNOWN
            return busy
        most = self._most_ms()
        return busy if busy < most else most

    @property
    def recent(self) -> list[float]:
        """The latest charges of requests that never wait, in no order."""
        return [self._recent[at] for at in range(RECENT)]

    @property
    def baseline_ms(self) -> float:
        """The maximum charge of a request that may wait."""
        return self._most_ms()

    def _most_ms(self) -> float:
        baseline = self._baseline
        if baseline == _UNKNOWN:
            baseline = self._baseline = sorted(self.recent)[RECENT // 2]
        return baseline
