"""Metrics by client and by quota, with bounded labels (:mod:`proxy.app.common.top_k`)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.app.common.top_k import Labels, TopKSeries, Totals, label
from proxy.app.metrics.families import by, gauge, labelled
from proxy.core.telemetry.libraries import Libraries, LibraryMutes
from quota.counter import QuotaCounter
from quota.entity import Identity, Kind
from quota.ledger import Account, Ledger
from quota.trial import Trial

BYTES = (Kind.PRODUCE, Kind.FETCH)
KINDS = tuple(Kind)
EACH = 5
"""Totals of a client for each kind: amount, throttled requests and their delay, and those of queued ones."""
MAX_LIBRARIES = 30


class ClientSeries:
    """The clients and counters that have series of their own, at most `most` of each, and the totals of all others."""

    def __init__(self, ledger: Ledger, most: int) -> None:
        self._ledger = ledger
        width = EACH * len(KINDS)
        self._clients: TopKSeries[Identity] = TopKSeries(  # throttled first, then by bytes
            most, width + 2, lambda gain: (sum(gain[2:width:EACH]), gain[0] + gain[EACH])
        )
        self._groups: dict[Kind, TopKSeries[QuotaCounter]] = {
            kind: TopKSeries(most, 5, lambda gain: (gain[2] + gain[4], gain[0])) for kind in KINDS
        }
        self._capped: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._capped_seen: dict[QuotaCounter, int] = {}
        ledger.on_forget.append(self._forget_client)
        ledger.counters.on_forget.append(self._forget_group)

    def look(self, now_ms: float) -> Iterator[None]:
        """Take over the ledger's totals, step by step."""
        # Nothing is listed in advance: an object evicted between two steps was counted then, and is not seen here.
        yield from self._clients.look(map(_client_totals, self._ledger.accounts()), now_ms)
        for kind, fold in self._groups.items():
            yield from fold.look(map(self._look_at, self._ledger.groups(kind)), now_ms)

    def _look_at(self, group: QuotaCounter) -> tuple[QuotaCounter, Labels, Totals]:
        self._count_capped(group)
        return _group_totals(group)

    def families(self, now_ms: float) -> Iterator[Metric | None]:
        """The totals as of the last refresh; limits as they are now. None: other tasks may run."""
        yield from self._client_families()
        yield from self._group_families(int(now_ms))
        yield gauge("clients_folded", "Clients counted as `other` in this exposition.", self._clients.folded)

    def _forget_client(self, account: Account) -> None:
        self._clients.forget(*_client_totals(account))

    def _forget_group(self, group: QuotaCounter) -> None:
        self._groups[group.kind].forget(*_group_totals(group))
        self._count_capped(group)
        self._capped_seen.pop(group, None)

    def _count_capped(self, group: QuotaCounter) -> None:
        if group.capped:
            self._capped[group.kind] += group.capped - self._capped_seen.get(group, 0)
            self._capped_seen[group] = group.capped

    def _client_families(self) -> Iterator[Metric | None]:
        moved = _counter("bytes", "Bytes produced and fetched.", "kind")
        throttled = _counter("throttled_requests", "Requests delayed, by the quota that caused it.", "cause")
        seconds = _counter("throttle_seconds", "Delay imposed, by the quota that caused it.", "cause")
        text = "Delayed requests that waited before they were forwarded, by the quota that caused it."
        held = _counter("held_requests", text, "cause")
        text = "Delay of requests before they were forwarded, by the quota that caused it."
        held_seconds = _counter("held_seconds", text, "cause")
        busy = _counter("request_seconds", "Broker time of requests, estimated.")
        mutations = _counter("mutations", "Partitions created or deleted.")
        by_broker = _counter("broker_throttled_requests", "Responses with a throttle time of the broker's own quotas.")
        waits = _counter("broker_throttle_seconds", "Delay imposed by the brokers' own quotas.")
        for labels, totals in list(self._clients.series()):
            yield None
            count, delay_ms = totals[-2:]
            if count:
                by_broker.add_metric(labels, count)
                waits.add_metric(labels, delay_ms / 1000)
            for index, kind in enumerate(KINDS):
                amount, count, delay_ms, held_count, held_ms = totals[EACH * index : EACH * index + EACH]
                if kind in BYTES:
                    moved.add_metric([kind.value, *labels], amount)
                elif kind is Kind.REQUEST and amount:
                    busy.add_metric(labels, amount / 1000)
                elif amount:
                    mutations.add_metric(labels, amount)
                if kind in BYTES or count:
                    throttled.add_metric([kind.value, *labels], count)
                    seconds.add_metric([kind.value, *labels], delay_ms / 1000)
                if count:  # a client is throttled before it is queued: rates see the first wait
                    held.add_metric([kind.value, *labels], held_count)
                    held_seconds.add_metric([kind.value, *labels], held_ms / 1000)
        yield from (moved, throttled, seconds, held, held_seconds, busy, mutations, by_broker, waits)

    def _group_families(self, now: int) -> Iterator[Metric | None]:
        text = "The limit: bytes/s (produce, fetch), percent of a thread (request), partitions/s (mutation)."
        limit = _gauge("quota_limit", text, "mode")
        observed = _gauge("quota_observed", "The rate in the window, in the unit of the limit.", "mode")
        tokens = _gauge("quota_tokens", "Mutation tokens left, negative when overdrawn.", "mode")
        used = _gauge("quota_utilisation_ratio", "Used share of the limit; above 1: over the limit.", "mode")
        left = _gauge("throttle_remaining_seconds", "Time until the group's latest delay ends.")
        text = "Debt of a group that outlasts its latest delay, else 0; the next requests wait for it."
        owed = _gauge("throttle_owed_seconds", text)
        text = "Connections whose next request waits because the quota is overdrawn, except Fetch and ShareFetch."
        waiting = _gauge("quota_waiting_connections", text)
        limited = [
            (kind, labels, group)
            for kind, fold in self._groups.items()
            for labels, group in fold.shown()
            if group.limit is not None
        ]
        for kind, labels, group in limited:
            yield None
            mode = [kind.value, *labels, "shadow" if group.shadow else "enforce"]
            limit.add_metric(mode, group.limit or 0.0)
            (tokens if kind is Kind.MUTATION else observed).add_metric(mode, group.observed(now))
            used.add_metric(mode, group.utilisation(now) or 0.0)
            trial = group.candidate
            if trial is not None and trial.limit is not None:
                mode = [kind.value, *labels, "candidate"]
                limit.add_metric(mode, trial.limit)
                used.add_metric(mode, group.trial_utilisation(trial, now) or 0.0)
            left.add_metric([kind.value, *labels], max(group.throttled_until - now, 0) / 1000)
            owed.add_metric([kind.value, *labels], group.owed_ms(now) / 1000)
            waiting.add_metric([kind.value, *labels], group.waiting)
        yield from (limit, observed, tokens, used, left, owed, waiting)
        yield from self._trial_families()
        yield by("throttle_capped", "Delays cut to max_mute.", "cause", self._capped)

    def _trial_families(self) -> Iterator[Metric | None]:
        text = "Requests that a shadow quota or candidate would have delayed or refused."
        requests = _counter("would_throttle_requests", text, "kind", "limit")
        text = "Time that a shadow quota or candidate would have delayed the group."
        seconds = _counter("would_throttle_seconds", text, "kind", "limit")
        for kind, fold in self._groups.items():
            yield None
            for labels, (_, *totals) in list(fold.series()):
                for name, (count, delay_ms) in zip(("shadow", "candidate"), (totals[:2], totals[2:]), strict=True):
                    if count:
                        requests.add_metric([kind.value, name, *labels], count)
                        seconds.add_metric([kind.value, name, *labels], delay_ms / 1000)
        yield from (requests, seconds)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"kquota_{name}", text, labels=[*labels, "user", "client_id"])


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kquota_{name}", text, labels=["kind", "user", "client_id", *labels])


def _labels(user: str, client_id: str) -> Labels:
    return (label(user), label(client_id))


def _client_totals(account: Account) -> tuple[Identity, Labels, Totals]:
    meters = account.meters
    totals: list[float] = []
    for kind in KINDS:
        meter = meters[kind]
        totals += (meter.amount, meter.throttled, meter.throttle_ms, meter.queued, meter.queued_ms)
    totals += (account.broker_throttled, account.broker_throttle_ms)
    return account.identity, _labels(*account.identity), tuple(totals)


def _group_totals(group: QuotaCounter) -> tuple[QuotaCounter, Labels, Totals]:
    active = group.usage.charges if group.limit is not None else 0  # without a limit there is nothing to show
    totals = (float(active), *_trial_totals(group.shadowed), *_trial_totals(group.candidate))
    return group, _labels(*group.key.tags), totals


def _trial_totals(trial: Trial | None) -> tuple[float, float]:
    return (0.0, 0.0) if trial is None else (float(trial.throttled), float(trial.throttle_ms))


class LibrarySeries:
    """Those that ignored throttles longest have series of their own, then those muted most; the rest is `other`."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._fold: TopKSeries[tuple[str, str]] = TopKSeries(MAX_LIBRARIES, 4, lambda gain: (gain[3], gain[0]))
        libraries.on_forget.append(lambda gone: self._fold.forget(*_library_totals(gone)))

    def look(self, now_ms: float) -> Iterator[None]:
        """Take over the totals, step by step."""
        yield from self._fold.look(map(_library_totals, self._libraries), now_ms)

    def families(self) -> Iterator[Metric]:
        """The totals as of the last refresh."""
        families = (
            ("mutes", "Observed mutes (200 ms or more), by the library's own name.", 1.0),
            ("mute_seconds", "Total length of the mutes counted in kquota_library_mutes_total.", 1000.0),
            ("mutes_ignored", "Mutes in whose second half the client kept sending.", 1.0),
            ("ignored_seconds", "Total length of the mutes counted in kquota_library_mutes_ignored_total.", 1000.0),
        )
        for index, (name, text, unit) in enumerate(families):
            values = {labels: totals[index] / unit for labels, totals in self._fold.series()}
            yield labelled(CounterMetricFamily, f"library_{name}", text, "library version", values)


def _library_totals(one: LibraryMutes) -> tuple[tuple[str, str], Labels, Totals]:
    totals = (float(one.mutes), one.mute_ms, float(one.ignored), one.ignored_ms)
    return (one.library, one.version), (label(one.library), label(one.version)), totals
