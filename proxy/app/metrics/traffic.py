"""Metrics of the traffic as a whole: connections, their limits, brokers, fetches."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.app.common.top_k import OTHER, label
from proxy.app.metrics.families import by, counter, gauge
from proxy.core.telemetry.observer import LATENCY_BUCKETS_S, Counters
from proxy.core.wire.schema import API_NAMES
from proxy.net.listen.balancers import OUTCOMES
from quota.connections import Cause, ConnectionGate, EntityType

_PLAIN: Final = {
    "connections_open": (gauge, "Open client connections."),
    "connections_muted": (gauge, "Muted client connections."),
    "connections_waiting": (
        gauge,
        "Client connections whose next request waits for its group's debt.",
    ),
    "connections_held": (gauge, "Refused connections that stay open for their delay."),
    "connections_not_held": (counter, "Refused connections closed at once (limits.max_held_connections)."),
    "connections_opened": (counter, "Client connections accepted."),
    "accept_failures": (counter, "Connections the system could not accept."),
    "upstream_connects": (counter, "Connections to brokers."),
    "upstream_connect_failures": (counter, "Failed connections to brokers."),
    "throttles_told": (counter, "Responses that carry a throttle time of the sidecar's."),
    "produces_refused": (counter, "Produce requests refused: REQUEST_TIMED_OUT."),
    "fetches_answered": (counter, "Fetches over quota answered with an empty response."),
    "fetches_shaped": (counter, "Fetches forwarded with a lower max_bytes."),
    "addresses_rewritten": (counter, "Broker addresses replaced in responses."),
}
"""Attributes of :class:`Counters`, and the metrics of the same names."""


def traffic_families(counters: Counters, gate: ConnectionGate, most: int) -> Iterator[Metric]:
    """The whole traffic; at most `most` users and addresses with open connections get a series."""
    for name, (metric, text) in _PLAIN.items():
        yield metric(f"kquota_{name}", text, getattr(counters, name))
    yield from _connection_limits(gate, most)
    yield by("kquota_connections_closed", "Client connections closed.", "reason", counters.connections_closed)
    yield by(
        "kquota_parse_errors",
        "Connections closed for malformed input.",
        "kind",
        counters.parse_errors,
    )
    headers = {outcome: counters.proxy_headers[outcome] for outcome in OUTCOMES}
    yield by("kquota_proxy_headers", "Connections from balancers (PROXY protocol).", "outcome", headers)
    checks = {outcome: counters.node_checks[outcome] for outcome in ("same", "other", "unknown", "unanswered")}
    yield by("kquota_upstream_node_checks", "Brokers asked whether they are the ones dialled.", "outcome", checks)
    requests = counters.requests
    apis = {API_NAMES.get(key, "unknown"): 0 for key in requests}
    for key, count in requests.items():
        apis[API_NAMES.get(key, "unknown")] += count
    yield by("kquota_requests", "Requests received, by API.", "api", apis)
    latency = counters.upstream_latency
    sums = list(accumulate(latency.counts))
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    histogram = HistogramMetricFamily(
        "kquota_upstream_latency_seconds",
        "Time from forwarding a request to the start of its response, without requests that wait.",
    )
    histogram.add_metric([], list(zip(bounds, sums, strict=True)), latency.sum_s)
    yield histogram
    yield gauge(
        "kquota_passthrough_connections", "Open connections with TLS passed through.", counters.passthrough_open
    )
    yield counter(
        "kquota_passthrough_connections_opened",
        "Connections with TLS passed through.",
        counters.passthrough_opened,
    )
    passed = {kind: counters.passthrough_bytes[kind] for kind in ("produce", "fetch")}
    yield by("kquota_passthrough_bytes", "Bytes of TLS passed through.", "kind", passed)
    turns = counters.long_turns
    yield by("kquota_long_turns", "Turns of the event loop above 5 ms of CPU.", "what", turns.counts)
    yield gauge("kquota_longest_turn_seconds", "CPU time of the longest of these.", turns.longest_cpu_s)


def _connection_limits(gate: ConnectionGate, most: int) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "kquota_connections_refused", "Connections over a connection limit.", labels=["reason", "mode"]
    )
    for mode, counts in (("enforce", gate.refused), ("shadow", gate.shadow_refused)):
        for cause in Cause:
            refused.add_metric([cause.value, mode], counts[cause])
    yield refused
    for scope, text in ((EntityType.USER, "user"), (EntityType.IP, "address")):
        family = GaugeMetricFamily(
            f"kquota_{scope}_connections", f"Open client connections, by {text}.", labels=[scope.value]
        )
        for name, count in _most_open(gate.open(scope), most):
            family.add_metric([name], count)
        yield family
    rates = GaugeMetricFamily(
        "kquota_connection_rates_tracked", "Addresses and users with a creation rate in memory.", labels=["scope"]
    )
    for scope in EntityType:
        rates.add_metric([scope.value], gate.tracked(scope))
    yield rates


def _most_open(counts: Mapping[str, int], limit: int) -> Iterator[tuple[str, int]]:
    """Those with the most connections, and the rest as `other`: gauges need not remember which clients had a series."""
    most = heapq.nlargest(limit, counts.items(), key=itemgetter(1))
    rest = sum(counts.values()) - sum(count for _, count in most)
    by_label: Counter[str] = Counter()
    for name, count in most:
        by_label[label(name)] += count
    if rest:
        by_label[OTHER] += rest
    yield from by_label.items()
