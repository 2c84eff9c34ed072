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
from proxy.app.metrics.families import by, counter, gauge, labelled
from proxy.core.telemetry.observer import LATENCY_BUCKETS_S, Counters
from proxy.core.wire.schema import API_NAMES
from proxy.net.listen.balancers import OUTCOMES
from quota.connections import Cause, ConnectionGate, EntityType

_PLAIN: Final = {
    "connections_open": (gauge, "Open client connections."),
    "connections_muted": (gauge, "Muted client connections."),
    "connections_waiting": (gauge, "Client connections whose next request waits for its group's debt."),
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
        yield metric(name, text, getattr(counters, name))
    yield from _connection_limits(gate, most)
    yield by("connections_closed", "Client connections closed.", "reason", counters.connections_closed)
    yield by("parse_errors", "Connections closed for malformed input.", "kind", counters.parse_errors)
    headers = {outcome: counters.proxy_headers[outcome] for outcome in OUTCOMES}
    yield by("proxy_headers", "Connections from balancers (PROXY protocol).", "outcome", headers)
    checks = {outcome: counters.node_checks[outcome] for outcome in ("same", "other", "unknown", "unanswered")}
    yield by("upstream_node_checks", "Brokers asked whether they are the ones dialled.", "outcome", checks)
    apis: Counter[str] = Counter()
    for key, count in counters.requests.items():
        apis[API_NAMES.get(key, "unknown")] += count
    yield by("requests", "Requests received, by API.", "api", apis)
    latency = counters.upstream_latency
    sums = list(accumulate(latency.counts))
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    histogram = HistogramMetricFamily(
        "kquota_upstream_latency_seconds",
        "Time from forwarding a request to the start of its response, without requests that wait.",
    )
    histogram.add_metric([], list(zip(bounds, sums, strict=True)), latency.sum_s)
    yield histogram
    text = "Open connections with TLS passed through."
    yield gauge("passthrough_connections", text, counters.passthrough_open)
    text = "Connections with TLS passed through."
    yield counter("passthrough_connections_opened", text, counters.passthrough_opened)
    passed = {kind: counters.passthrough_bytes[kind] for kind in ("produce", "fetch")}
    yield by("passthrough_bytes", "Bytes of TLS passed through.", "kind", passed)
    turns = counters.long_turns
    yield by("long_turns", "Turns of the event loop above 5 ms of CPU.", "what", turns.counts)
    yield gauge("longest_turn_seconds", "CPU time of the longest of these.", turns.longest_cpu_s)


def _connection_limits(gate: ConnectionGate, most: int) -> Iterator[Metric]:
    modes = (("enforce", gate.refused), ("shadow", gate.shadow_refused))
    refused = {(cause.value, mode): counts[cause] for mode, counts in modes for cause in Cause}
    text = "Connections over a connection limit."
    yield labelled(CounterMetricFamily, "connections_refused", text, "reason mode", refused)
    for scope, named in ((EntityType.USER, "user"), (EntityType.IP, "address")):
        text, counts = f"Open client connections, by {named}.", dict(_most_open(gate.open(scope), most))
        yield labelled(GaugeMetricFamily, f"{scope}_connections", text, scope.value, counts)
    text = "Addresses and users with a creation rate in memory."
    tracked = {scope.value: gate.tracked(scope) for scope in EntityType}
    yield labelled(GaugeMetricFamily, "connection_rates_tracked", text, "scope", tracked)


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
