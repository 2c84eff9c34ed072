"""Prometheus metrics, gathered when Prometheus comes by: the data path only ever adds to plain integers.

The only module that knows prometheus_client. Every metric is described in docs/metrics.md. A scrape works in steps of
about a millisecond and lets traffic through in between; scrapes that come faster than one a second share one answer.
"""

from __future__ import annotations

import heapq
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from operator import itemgetter

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from deploy.export import ExportState
from deploy.fold import OTHER, Fold, Labels, Totals, label
from deploy.quota_source import SourceState
from deploy.watch import ReloadState
from proxy.observer import LATENCY_BUCKETS_S, Counters
from proxy.wire.schema import API_NAMES
from quota.connections import Cause, Scope
from quota.entity import Identity, Kind
from quota.group import Group
from quota.ledger import Account, Ledger
from quota.trial import Trial

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every Prometheus reads; our names need nothing newer."""
SHORTEST_INTERVAL_MS = 1000.0
BYTES = (Kind.PRODUCE, Kind.FETCH)
KINDS = tuple(Kind)
PORTION = 50


def kquota_version() -> str:
    """The installed version; "unknown" when run from a source tree that is not installed."""
    try:
        return version("kquota")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class Status:
    """What only the running proxy knows."""

    ready: bool
    cluster_reached: bool
    draining: bool


class _Family(Collector):
    """One family as a registry of its own, so that families can be written one by one."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


class Metrics:
    """Everything under /metrics."""

    def __init__(
        self,
        ledger: Ledger,
        counters: Counters,
        reloads: ReloadState,
        status: Callable[[], Status],
        *,
        max_groups: int,
        source: SourceState | None = None,
        alterations: Mapping[str, int] | None = None,
        export: Callable[[], ExportState] | None = None,
    ) -> None:
        """`alterations` are AlterClientQuotas requests by outcome; `export` tells of usage records, if any are made."""
        self._export = export
        self._ledger = ledger
        self._counters = counters
        self._source = source or SourceState("file")
        self._alterations: Mapping[str, int] = {} if alterations is None else alterations
        self._reloads = reloads
        self._status = status
        self._max_groups = max_groups
        self._clients: Fold[Identity] = Fold(max_groups, 3 * len(KINDS) + 2, _client_weight)
        self._groups: dict[Kind, Fold[Group]] = {kind: Fold(max_groups, 5, _group_weight) for kind in KINDS}
        self._capped = dict.fromkeys(KINDS, 0)
        self._capped_seen: dict[Group, int] = {}
        ledger.on_forget.append(self._forget_client)
        ledger.counters.on_forget.append(self._forget_group)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._lock = trio.Lock()
        self._text: bytes | None = None
        self._text_ms = 0.0
        self.admin_evicted = 0
        """Admin connections closed because too many were open."""

    async def text(self, now_ms: float) -> bytes:
        """The exposition. One gathering at a time; an answer younger than a second is given again."""
        async with self._lock:
            if self._text is None or now_ms - self._text_ms >= SHORTEST_INTERVAL_MS:
                await self._look(now_ms)
                parts = []
                for family in self.families(now_ms):
                    for part in _written(family):
                        parts.append(part)
                        await trio.lowlevel.checkpoint()
                parts.append(generate_latest(self._process))
                self._text, self._text_ms = b"".join(parts), now_ms
            return self._text

    async def expire(self, now_ms: float) -> int:
        """Let the ledger forget what is idle, in steps; others get their turn in between."""
        forgotten = 0
        for count in self._ledger.sweep(now_ms):
            forgotten += count
            await trio.lowlevel.checkpoint()
        return forgotten

    def _forget_client(self, account: Account) -> None:
        self._clients.forget(*_client_totals(account))

    def _forget_group(self, group: Group) -> None:
        self._groups[group.kind].forget(*_group_totals(group))
        self._count_capped(group)
        self._capped_seen.pop(group, None)

    def _count_capped(self, group: Group) -> None:
        if group.capped:
            self._capped[group.kind] += group.capped - self._capped_seen.get(group, 0)
            self._capped_seen[group] = group.capped

    async def _look(self, now_ms: float) -> None:
        for _ in self.look(now_ms):
            await trio.lowlevel.checkpoint()

    def look(self, now_ms: float) -> Iterator[None]:
        """Take over the ledger's totals, step by step."""
        # Nothing is listed in advance: what is forgotten between two steps has been counted then, and is not seen here.
        yield from self._clients.look(map(_client_totals, self._ledger.accounts()), now_ms)
        for kind, fold in self._groups.items():
            yield from fold.look(map(self._look_at, self._ledger.groups(kind)), now_ms)

    def _look_at(self, group: Group) -> tuple[Group, Labels, Totals]:
        self._count_capped(group)
        return _group_totals(group)

    def families(self, now_ms: float) -> Iterator[Metric]:
        """Every metric as it stands after the last look."""
        yield from self._client_families()
        yield from self._group_families(int(now_ms))
        yield from self._traffic_families()
        yield from self._source_families()
        if self._export is not None:
            yield from _export_families(self._export())
        yield from self._own_families()

    def _client_families(self) -> Iterator[Metric]:
        names = ["user", "client_id"]
        moved = CounterMetricFamily("kquota_bytes", "Bytes produced and fetched.", labels=["kind", *names])
        throttled = CounterMetricFamily(
            "kquota_throttled_requests", "Requests delayed, by the quota that caused it.", labels=["cause", *names]
        )
        seconds = CounterMetricFamily(
            "kquota_throttle_seconds", "Delay imposed, by the quota that caused it.", labels=["cause", *names]
        )
        busy = CounterMetricFamily("kquota_request_seconds", "Broker time used.", labels=names)
        mutations = CounterMetricFamily("kquota_mutations", "Partitions created or deleted.", labels=names)
        told = CounterMetricFamily(
            "kquota_broker_throttled_requests", "Responses in which the broker itself said to wait.", labels=names
        )
        waits = CounterMetricFamily(
            "kquota_broker_throttle_seconds", "Delay that brokers imposed by quotas of their own.", labels=names
        )
        for labels, totals in self._clients.series():
            count, delay_ms = totals[-2:]
            if count:
                told.add_metric(labels, count)
                waits.add_metric(labels, delay_ms / 1000)
            for index, kind in enumerate(KINDS):
                amount, count, delay_ms = totals[3 * index : 3 * index + 3]
                if kind in BYTES:
                    moved.add_metric([kind.value, *labels], amount)
                elif amount:
                    (busy if kind is Kind.REQUEST else mutations).add_metric(
                        labels, amount / 1000 if kind is Kind.REQUEST else amount
                    )
                if kind in BYTES or count:
                    throttled.add_metric([kind.value, *labels], count)
                    seconds.add_metric([kind.value, *labels], delay_ms / 1000)
        yield from (moved, throttled, seconds, busy, mutations, told, waits)

    def _group_families(self, now: int) -> Iterator[Metric]:
        names = ["kind", "user", "client_id"]
        limit = GaugeMetricFamily(
            "kquota_quota_limit",
            "The limit: bytes/s (produce, fetch), percent of a thread (request), partitions/s (mutation).",
            labels=[*names, "mode"],
        )
        observed = GaugeMetricFamily(
            "kquota_quota_observed", "What the limit is compared with, in the same unit.", labels=[*names, "mode"]
        )
        tokens = GaugeMetricFamily("kquota_quota_tokens", "Mutation tokens left.", labels=[*names, "mode"])
        used = GaugeMetricFamily(
            "kquota_quota_utilisation_ratio", "Used share of the limit; above 1: over it.", labels=[*names, "mode"]
        )
        left = GaugeMetricFamily(
            "kquota_throttle_remaining_seconds", "Until the latest delay of the group ends.", labels=names
        )
        owed = GaugeMetricFamily(
            "kquota_throttle_owed_seconds", "Delay carried over because max_mute cut it.", labels=names
        )
        for kind, labels, group in self._limited_groups():
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
            owed.add_metric([kind.value, *labels], max(group.owed_until - now, 0) / 1000)
        yield from (limit, observed, tokens, used, left, owed)
        yield from self._trial_families(names)
        capped = CounterMetricFamily(
            "kquota_throttle_capped", "Delays cut to max_mute; the rest is carried over.", labels=["cause"]
        )
        for kind in KINDS:
            capped.add_metric([kind.value], self._capped[kind])
        yield capped

    def _trial_families(self, names: list[str]) -> Iterator[Metric]:
        """Limits that are measured, not applied."""
        requests = CounterMetricFamily(
            "kquota_would_throttle_requests",
            "Requests that a limit on trial would have delayed or refused.",
            labels=[*names, "limit"],
        )
        seconds = CounterMetricFamily(
            "kquota_would_throttle_seconds",
            "Time that a limit on trial would have held the group up.",
            labels=[*names, "limit"],
        )
        for kind, fold in self._groups.items():
            for labels, (_, *totals) in fold.series():
                for name, (count, delay_ms) in zip(("shadow", "candidate"), (totals[:2], totals[2:]), strict=True):
                    if count:
                        requests.add_metric([kind.value, *labels, name], count)
                        seconds.add_metric([kind.value, *labels, name], delay_ms / 1000)
        yield from (requests, seconds)

    def _limited_groups(self) -> Iterator[tuple[Kind, Labels, Group]]:
        for kind, fold in self._groups.items():
            for labels, group in fold.shown():
                if group.limit is not None:
                    yield kind, labels, group

    def _traffic_families(self) -> Iterator[Metric]:
        counters = self._counters
        yield _gauge("kquota_connections_open", "Client connections open now.", counters.connections_open)
        yield _gauge(
            "kquota_connections_muted",
            "Client connections not read now because of a throttle.",
            counters.connections_muted,
        )
        yield _gauge(
            "kquota_connections_held", "Refused connections held until their delay is over.", counters.connections_held
        )
        yield _counter(
            "kquota_connections_not_held",
            "Refused connections closed at once because too many were held.",
            counters.connections_not_held,
        )
        yield from self._connection_limits()
        yield _counter("kquota_connections_opened", "Client connections accepted.", counters.connections_opened)
        yield _by("kquota_connections_closed", "Client connections closed.", "reason", counters.connections_closed)
        yield _by(
            "kquota_parse_errors", "Connections closed over bytes that are not Kafka's.", "kind", counters.parse_errors
        )
        apis = {API_NAMES.get(key, "unknown"): 0 for key in counters.requests}
        for key, count in counters.requests.items():
            apis[API_NAMES.get(key, "unknown")] += count
        yield _by("kquota_requests", "Requests received, by API.", "api", apis)
        yield _counter("kquota_upstream_connects", "Connections made to brokers.", counters.upstream_connects)
        yield _counter(
            "kquota_upstream_connect_failures",
            "Connections to brokers that failed.",
            counters.upstream_connect_failures,
        )
        latency = counters.upstream_latency
        sums = list(accumulate(latency.counts))
        bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
        histogram = HistogramMetricFamily(
            "kquota_upstream_latency_seconds", "Request forwarded until its response began; waiting requests left out."
        )
        histogram.add_metric([], list(zip(bounds, sums, strict=True)), latency.sum_s)
        yield histogram
        yield _counter(
            "kquota_fetches_answered", "Fetches over quota, answered empty by the sidecar.", counters.fetches_answered
        )
        yield _counter("kquota_fetches_shaped", "Fetches forwarded with a lowered max_bytes.", counters.fetches_shaped)
        yield _counter(
            "kquota_addresses_rewritten", "Broker addresses replaced in responses.", counters.addresses_rewritten
        )
        yield _counter("kquota_accept_failures", "Connections the system could not accept.", counters.accept_failures)

    def _connection_limits(self) -> Iterator[Metric]:
        gate = self._ledger.connections
        refused = CounterMetricFamily(
            "kquota_connections_refused", "Connections over a limit of connections.", labels=["reason", "mode"]
        )
        for mode, counts in (("enforce", gate.refused), ("shadow", gate.shadow_refused)):
            for cause in Cause:
                refused.add_metric([cause.value, mode], counts[cause])
        yield refused
        for scope, text in ((Scope.USER, "user"), (Scope.IP, "address")):
            family = GaugeMetricFamily(
                f"kquota_{scope}_connections", f"Client connections open now, by {text}.", labels=[scope.value]
            )
            for name, count in self._most_open(gate.open(scope)):
                family.add_metric([name], count)
            yield family
        rates = GaugeMetricFamily(
            "kquota_connection_rates_tracked", "Addresses and users whose creation rate is kept.", labels=["scope"]
        )
        for scope in Scope:
            rates.add_metric([scope.value], gate.tracked(scope))
        yield rates

    def _most_open(self, counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Those with the most connections, and the rest as `other`: gauges need no memory of who had a series."""
        most = heapq.nlargest(self._max_groups, counts.items(), key=itemgetter(1))
        rest = sum(counts.values()) - sum(count for _, count in most)
        by_label: Counter[str] = Counter()
        for name, count in most:
            by_label[label(name)] += count
        if rest:
            by_label[OTHER] += rest
        yield from by_label.items()

    def _source_families(self) -> Iterator[Metric]:
        state = self._source
        yield _by("kquota_quota_alterations", "AlterClientQuotas requests.", "outcome", self._alterations)
        yield _gauge(
            "kquota_quota_overlay_entities", "Users, client-ids and addresses in the overlay.", state.overlay_entities
        )
        yield _gauge(
            "kquota_quota_overlay_last_load_successful",
            "0 while a refused overlay file is on disk.",
            state.overlay_successful,
        )
        yield _counter("kquota_quota_source_polls", "Times that the cluster was asked for its quotas.", state.polls)
        yield _counter("kquota_quota_source_poll_failures", "Of these, without an answer.", state.poll_failures)
        yield _counter("kquota_quota_source_changes", "Of these, with other quotas than before.", state.changes)
        yield _gauge(
            "kquota_quota_source_last_poll_successful", "0 while the cluster's quotas cannot be read.", state.successful
        )
        yield _gauge(
            "kquota_quota_source_last_success_timestamp_seconds", "When quotas were last read.", state.success_at_s
        )
        yield _gauge("kquota_quota_source_unusable", "Limits of the cluster that are not enforced.", state.unusable)

    def _own_families(self) -> Iterator[Metric]:
        status, reloads = self._status(), self._reloads
        yield _gauge("kquota_ready", "1 when /readyz says ready.", status.ready)
        yield _gauge("kquota_cluster_reached", "1 when a broker answered the last time.", status.cluster_reached)
        yield _gauge("kquota_draining", "1 while shutting down.", status.draining)
        yield _counter("kquota_config_reloads", "Configurations put in force after the first.", reloads.reloads)
        yield _counter("kquota_config_reload_failures", "Changed configurations that were refused.", reloads.failures)
        yield _gauge(
            "kquota_config_last_reload_successful", "0 while a refused configuration is on disk.", reloads.successful
        )
        yield _gauge(
            "kquota_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was loaded.",
            reloads.success_at_s,
        )
        yield _gauge(
            "kquota_config_restart_required",
            "1 when the file changed settings that only a restart applies.",
            bool(reloads.restart_settings),
        )
        table = self._ledger.table
        alone = (one for one in table.connections.entries if one.scope is Scope.IP or table.get(one.name, None) is None)
        quotas = len(table.entries) + sum(1 for _ in alone)
        yield _gauge("kquota_config_quotas", "Quota entries in force.", quotas)
        yield _gauge("kquota_clients_known", "Clients that the ledger remembers.", self._ledger.clients)
        counters = GaugeMetricFamily("kquota_counters", "Counters kept, by kind of quota.", labels=["kind"])
        overflowed = CounterMetricFamily(
            "kquota_clients_overflowed",
            "Clients led to a shared counter because there was no room for one of their own.",
            labels=["kind"],
        )
        for kind in KINDS:
            counters.add_metric([kind.value], self._ledger.counters.count(kind))
            overflowed.add_metric([kind.value], self._ledger.counters.overflowed[kind])
        yield from (counters, overflowed)
        yield _gauge("kquota_clients_folded", "Clients counted as `other` in this exposition.", self._clients.folded)
        yield _counter("kquota_admin_evicted", "Admin connections closed to make room.", self.admin_evicted)
        build = GaugeMetricFamily("kquota_build_info", "Always 1.", labels=["version", "python"])
        build.add_metric([kquota_version(), platform.python_version()], 1)
        yield build


def _labels(user: str, client_id: str) -> Labels:
    return (label(user), label(client_id))


def _client_totals(account: Account) -> tuple[Identity, Labels, Totals]:
    meters = account.meters
    totals: list[float] = []
    for kind in KINDS:
        meter = meters[kind]
        totals += (meter.amount, meter.throttled, meter.throttle_ms)
    totals += (account.broker_throttled, account.broker_throttle_ms)
    return account.identity, _labels(*account.identity), tuple(totals)


def _group_totals(group: Group) -> tuple[Group, Labels, Totals]:
    active = group.usage.charges if group.limit is not None else 0  # without a limit there is nothing to show
    totals = (float(active), *_trial_totals(group.shadowed), *_trial_totals(group.candidate))
    return group, _labels(*group.key.tags), totals


def _trial_totals(trial: Trial | None) -> tuple[float, float]:
    return (0.0, 0.0) if trial is None else (float(trial.throttled), float(trial.throttle_ms))


def _client_weight(gain: Totals) -> tuple[float, ...]:
    """Throttled clients first, then by bytes."""
    return (sum(gain[2 : 3 * len(KINDS) : 3]), gain[0] + gain[3])


def _group_weight(gain: Totals) -> tuple[float, ...]:
    return (gain[2] + gain[4], gain[0])


def _written(family: Metric) -> Iterator[bytes]:
    """A family as text, in portions of about a millisecond."""
    samples = family.samples
    for start in range(0, max(len(samples), 1), PORTION):
        part = Metric(family.name, family.documentation, family.type)
        part.samples = samples[start : start + PORTION]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Family(part))
        text = generate_latest(registry)
        yield text if start == 0 else text[text.index(b"\n", text.index(b"\n") + 1) + 1 :]  # HELP and TYPE once


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _export_families(state: ExportState) -> Iterator[Metric]:
    now_s = time.time()
    told = [
        (CounterMetricFamily, "records", "Usage records delivered."),
        (CounterMetricFamily, "errors", "Attempts to deliver that failed."),
        (CounterMetricFamily, "dropped", "Usage records lost because the buffer was full."),
        (GaugeMetricFamily, "pending_bytes", "Usage records that wait."),
        (GaugeMetricFamily, "last_success_timestamp_seconds", "When records were last delivered; 0: never."),
        (GaugeMetricFamily, "lag_seconds", "Age of the oldest record that waits."),
    ]
    for family, name, text in told:
        metric = family(f"kquota_export_{name}", text, labels=["sink"])
        for sink, worker in state.sinks.items():
            metric.add_metric([sink], worker.lag_s(now_s) if name == "lag_seconds" else getattr(worker, name))
        yield metric
    yield _counter("kquota_export_files_deleted", "Complete files deleted because of keep_bytes.", state.files_deleted)
    yield _counter("kquota_export_failures", "Failures to put an interval together.", state.failures)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _by(name: str, text: str, by: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[by])
    for value in sorted(values):
        family.add_metric([value], values[value])
    return family
