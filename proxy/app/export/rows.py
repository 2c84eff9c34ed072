"""From the ledger's running totals to usage records: sampled once a second, one row per client and interval. Rows are
bounded: other clients' usage is added up by user as `other`. A tick visits the clients that were active since the last
one, one in each step; rows are differences of totals, so nothing is counted twice or lost."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, islice, zip_longest
from operator import sub
from typing import Any, Final

from proxy.app.common.top_k import OTHER, label
from proxy.core.wire.schema import API_NAMES
from quota.counter import QuotaCounter
from quota.entity import Identity, Kind
from quota.ledger import Account, Ledger
from quota.record import CAUSES, FAMILIES, Row, empty

MAX_ROWS: Final = 1000
"""Clients with a row of their own in an interval: a row has some 3.6 kB."""
MAX_FOLDED_USERS: Final = 100
"""Users with a row for their other clients; those of any further users are added up in one row."""
SHORTEST_SAMPLE_MS: Final = 250.0
"""A shorter time gives no rate (a drain may end right after a tick)."""
_PER_SECOND: Final = {Kind.PRODUCE: 1.0, Kind.FETCH: 1.0, Kind.REQUEST: 0.1, Kind.MUTATION: 1.0}
"""From an amount per second to the kind's rate: 1 ms of busy time per second is 0.1 percent of a thread."""
_COLUMNS: Final = (
    *("produce_bytes", "fetch_bytes", "request_seconds", "mutations"),
    *(f"throttle_{cause}_{unit}" for cause in CAUSES for unit in ("count", "seconds")),
    *("mutes", "mutes_ignored", "connections_opened"),
    *(f"throttle_{kind}_held_{unit}" for kind in Kind for unit in ("count", "seconds")),
)
"""Columns of a client's totals, in their order (`_totals`)."""
_NOTHING: Final = (0,) * len(_COLUMNS)

_NAMES_OF: Final[Mapping[str, str]] = {
    "produce": "Produce",
    "fetch": "Fetch ShareFetch",
    "metadata": "Metadata ListOffsets FindCoordinator OffsetForLeaderEpoch DescribeCluster DescribeTopicPartitions",
    "group": "JoinGroup SyncGroup Heartbeat LeaveGroup OffsetCommit OffsetFetch ConsumerGroupHeartbeat "
    "ShareGroupHeartbeat StreamsGroupHeartbeat ShareAcknowledge",
    "transaction": "InitProducerId AddPartitionsToTxn AddOffsetsToTxn EndTxn TxnOffsetCommit DescribeTransactions "
    "ListTransactions DescribeProducers",
    "connection": "ApiVersions SaslHandshake SaslAuthenticate GetTelemetrySubscriptions PushTelemetry "
    "CreateDelegationToken RenewDelegationToken ExpireDelegationToken DescribeDelegationToken",
    "other": "LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown WriteTxnMarkers Envelope Vote "
    "BeginQuorumEpoch EndQuorumEpoch AlterPartition FetchSnapshot AllocateProducerIds BrokerRegistration "
    "BrokerHeartbeat ControllerRegistration AssignReplicasToDirs InitializeShareGroupState ReadShareGroupState "
    "WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary",
}
FAMILY_OF: Final[Mapping[int, str]] = {
    key: next((family for family, names in _NAMES_OF.items() if name in names.split()), "admin")
    for key, name in API_NAMES.items()
} | {-1: "other"}
"""API key -> family; unlisted ones are administration."""

_Peaks = Mapping[QuotaCounter, float]
_Folded = dict[str | None, Counter[str]]
"""Use of clients without a row of their own, by user; None: of all further users."""
_COLUMN_OF: Final = {key: f"requests_{family}" for key, family in FAMILY_OF.items()}
_PERCENTS: Final = (50, 95, 99)


class _Seen:
    """A client's totals at its last visit, and its rates in this interval; of objects that the garbage collector skips,
    and without a reference to the account, so that it can be evicted."""

    __slots__ = ("has_row", "rates", "requests", "ticked", "totals")

    def __init__(self) -> None:
        self.ticked = array("d", [0.0] * len(Kind))
        self.rates: dict[int, array[float]] | None = None
        """One-second rates above 0, by the number of the kind."""
        self.totals: tuple[float, ...] = _NOTHING
        """Totals at the end of the last interval that has a row; and its requests, by API key."""
        self.requests: dict[int, int] = {}
        self.has_row = False

    def use_of(self, account: Account) -> Counter[str]:
        """The client's use since its last row, by column; milliseconds in columns of seconds."""
        use = Counter(dict(zip(_COLUMNS, map(sub, _totals(account), self.totals), strict=True)))
        for key, count in account.counted.by_api().items():
            gain = count - self.requests.get(key, 0)
            use[_COLUMN_OF[key]] += gain
            use["requests"] += gain
        return use

    def report(self, account: Account) -> None:
        """All of it is in a row now."""
        self.totals, self.requests = _totals(account), account.counted.by_api()
        self.rates, account.connections_peak = None, account.connections


class Sampler:
    """Watches a ledger. `constants` are the fields that are the same in all rows of this sidecar."""

    def __init__(self, ledger: Ledger, constants: Mapping[str, Any], now_ms: float) -> None:
        self._ledger = ledger
        self._empty = empty() | dict(constants)
        self._sequence = 0
        self._tick_ms = now_ms
        self._samples = 0
        # By name: while other tasks run, an account may be evicted, and its client come back with another one.
        self._active: dict[Identity, None] = {}
        self._watched: dict[Identity, None] = {account.identity: None for account in ledger.accounts()}
        self._peaks: dict[QuotaCounter, float] = {}
        self._folded: _Folded = {}
        self.folded = 0
        ledger.awake = {}
        ledger.on_forget.append(self._forget_client)
        ledger.counters.on_forget.append(self._forget_group)

    def tick(self, now_ms: float) -> Iterator[None]:
        """Sample the clients that were active since the last tick. A generator: other tasks may run at each step."""
        elapsed_s, since = (now_ms - self._tick_ms) / 1000.0, int(self._tick_ms)
        counts = now_ms - self._tick_ms >= SHORTEST_SAMPLE_MS
        self._tick_ms = now_ms
        self._samples += counts
        factors = [_PER_SECOND[kind] / elapsed_s for kind in Kind] if counts else [0.0] * len(Kind)
        groups: set[QuotaCounter] = set()
        awake, self._ledger.awake = self._ledger.awake or {}, {}
        watched, self._watched = self._watched, {}
        newly = (identity for identity in awake if identity not in watched)
        for identity in chain(watched, newly):
            account = self._ledger.known(*identity)
            if account is not None and (account.touched or account.last_ms >= since):
                account.touched = False
                self._sample(account, factors, groups)
                self._watched[identity] = None  # a response may be charged when no more requests come
            yield
        now = int(now_ms)
        for group in groups:
            used = group.utilisation(now) or 0.0
            if used > self._peaks.get(group, -1.0):
                self._peaks[group] = used
            yield

    def _sample(self, account: Account, factors: list[float], groups: set[QuotaCounter]) -> None:
        seen: _Seen | None = account.sampled
        if seen is None:
            seen = account.sampled = _Seen()
        self._active[account.identity] = None
        ticked = seen.ticked
        for index, meter in enumerate(account.meters.values()):
            gain = meter.amount - ticked[index]
            if gain:
                ticked[index] = meter.amount
                if gain > 0 and factors[index]:
                    if seen.rates is None:
                        seen.rates = {}
                    seen.rates.setdefault(index, array("d")).append(gain * factors[index])
                group = meter.group
                if group is not None and group.limit is not None:
                    groups.add(group)

    def close(self, start_ms: int, end_ms: int, duration_s: float) -> Iterator[Row | None]:
        """The rows of the interval that ends now, after its last tick; None at every step. The next one begins."""
        common = self._empty | {
            "start_ms": start_ms,
            "end_ms": end_ms,
            "duration_s": round(duration_s, 3),
            "samples": self._samples,
        }
        active, self._active = self._active, {}
        folded, self._folded = self._folded, {}
        peaks, self._peaks = self._peaks, {}
        samples, self._samples = self._samples, 0
        chosen = yield from self._choose(active)
        for identity in chosen:
            account = self._ledger.known(*identity)
            if account is not None and account.sampled is not None:
                yield self._row(account, common, samples, peaks)
        for identity in active:
            account = None if identity in chosen else self._ledger.known(*identity)
            if account is not None and account.sampled is not None:
                self._fold(folded, account, account.sampled)
                account.sampled.report(account)
            yield None
        for user, use in folded.items():
            if any(use.values()):
                self._sequence += 1
                names = {"sequence": self._sequence, "user": OTHER if user is None else label(user)}
                yield common | names | {"client_id": OTHER} | _values(use)

    def _choose(self, active: dict[Identity, None]) -> Generator[None, None, dict[Identity, None]]:
        """The clients that get a row: of each user in turn one more, first those that had one before."""
        if len(active) <= MAX_ROWS:
            return active
        queues: dict[str, list[Identity]] = {}
        for had_row in (True, False):
            for identity in active:
                account = self._ledger.known(*identity)
                if account is not None and account.sampled is not None and account.sampled.has_row is had_row:
                    queues.setdefault(identity[0], []).append(identity)
                yield
        turns = chain.from_iterable(zip_longest(*queues.values()))
        return dict.fromkeys(islice((one for one in turns if one is not None), MAX_ROWS))

    def _row(self, account: Account, common: Row, samples: int, peaks: _Peaks) -> Row | None:
        seen: _Seen = account.sampled
        use, peak, rates = seen.use_of(account), account.connections_peak, seen.rates
        seen.report(account)
        # A connection peak without anything else is not activity: idle connections make no rows.
        if not any(use.values()):
            return None
        self._sequence += 1
        seen.has_row = True
        row = common | _values(use)
        user, client_id = account.identity
        library, _, version = (account.software or "").partition("/")
        row["sequence"] = self._sequence
        row["user"], row["client_id"] = label(user), label(client_id)
        row["client_library"], row["client_library_version"] = library or None, version or None
        row["connections_peak"] = peak
        for index, (kind, meter) in enumerate(account.meters.items()):
            if rates is not None and index in rates:
                _put_rates(row, kind, rates[index], samples)
            if meter.group is not None:
                self._put_group(row, kind, meter.group, peaks)
        return row

    def _forget_client(self, account: Account) -> None:
        """The ledger evicts a client: what no row has reported yet goes into the row of its user's other clients."""
        for names in (self._active, self._watched, self._ledger.awake or {}):
            names.pop(account.identity, None)
        self._fold(self._folded, account, account.sampled or _Seen())

    def _fold(self, folded: _Folded, account: Account, seen: _Seen) -> None:
        use = seen.use_of(account)
        if any(use.values()):
            self.folded += 1
            user: str | None = account.identity[0]
            if user not in folded and len(folded) >= MAX_FOLDED_USERS:
                user = None
            folded.setdefault(user, Counter()).update(use)

    def _forget_group(self, group: QuotaCounter) -> None:
        self._peaks.pop(group, None)

    def _put_group(self, row: Row, kind: Kind, group: QuotaCounter, peaks: _Peaks) -> None:
        row[f"{kind}_group_user"] = None if group.key.user is None else label(group.key.user)
        row[f"{kind}_group_client_id"] = None if group.key.client_id is None else label(group.key.client_id)
        if group.limit is not None:
            row[f"{kind}_limit"] = group.limit
            row[f"{kind}_limit_mode"] = "shadow" if group.shadow else "enforce"
            row[f"{kind}_limit_level"] = None if group.level is None else group.level.label
            if group.fleet:
                row[f"{kind}_fleet_limit"] = group.whole
                row[f"{kind}_fleet_share"] = round(group.share, 6)
            row[f"{kind}_group_utilisation_peak"] = round(peaks.get(group, 0.0), 4)
        if group.candidate is not None:
            row[f"{kind}_candidate_limit"] = group.candidate.limit
        # Once per group, in the row of its first client: the sum over its clients is right.
        for name, trial in (("shadow", group.shadowed), ("candidate", group.candidate)):
            if trial is not None:
                throttled, throttle_ms = trial.reported
                row[f"{kind}_group_{name}_count"] = trial.throttled - throttled
                row[f"{kind}_group_{name}_seconds"] = (trial.throttle_ms - throttle_ms) / 1000.0
                trial.reported = trial.throttled, trial.throttle_ms


def _totals(account: Account) -> tuple[float, ...]:
    meters = account.meters.values()
    return (
        *(meter.amount for meter in meters),
        *chain.from_iterable((meter.throttled, meter.throttle_ms) for meter in meters),
        *(account.broker_throttled, account.broker_throttle_ms),
        *(account.mutes, account.mutes_ignored, account.connections_opened),
        *chain.from_iterable((meter.queued, meter.queued_ms) for meter in meters),
    )


def _values(use: Counter[str]) -> Row:
    """The fields of a row that has this use."""
    row: Row = {}
    for column, total in use.items():
        if column.endswith("_seconds"):
            row[column] = round(total / 1000.0, 6)
        else:
            row[column] = round(float(total), 6) if column == "mutations" else round(total)
    return row


def _put_rates(row: Row, kind: Kind, unsorted: Iterable[float], samples: int) -> None:
    """Percentiles by nearest rank: of n samples, idle ones included, the ceil(p * n / 100)-th smallest."""
    rates = sorted(unsorted)
    idle = max(samples - len(rates), 0)
    for percent in _PERCENTS:
        rank = -(-percent * samples // 100) - idle
        row[f"{kind}_rate_p{percent}"] = round(rates[min(rank, len(rates)) - 1], 3) if rank > 0 else 0.0
    row[f"{kind}_rate_max"] = round(rates[-1], 3)


assert set(FAMILY_OF.values()) == set(FAMILIES)
