"""Metrics of the sidecar itself: its health, what is in force and where that is from, its files, records and fleet."""

from __future__ import annotations

import heapq
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice
from operator import attrgetter, itemgetter
from typing import Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from proxy.app.common.top_k import OTHER, label
from proxy.app.common.version import kquota_version
from proxy.app.export.exporter import Exporter
from proxy.app.fleet.member import Member
from proxy.app.metrics.families import by, counter, gauge, labelled
from proxy.app.sources.quota_source import SourceState
from proxy.app.sources.security import Security
from proxy.app.sources.watch import ReloadState
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.session.exchange import LATENCY_BUCKETS_S
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.schema import API_NAMES
from proxy.net.listen.balancers import OUTCOMES
from proxy.net.listen.server import Proxy
from quota import compiled
from quota.connections import Cause, ConnectionGate, EntityType
from quota.entity import Kind
from quota.ledger import Ledger


def own_families(proxy: Proxy, reloads: ReloadState, ledger: Ledger, *, ready: bool) -> Iterator[Metric]:
    """The process, its configuration, and how much it remembers. Must be called inside the event loop."""
    table, counters = ledger.table, ledger.counters
    addresses = sum(
        one.entity_type is EntityType.IP or table.get(one.name, None) is None for one in table.connections.entries
    )
    yield gauge("ready", "1 when /readyz says ready.", ready)
    text = "1 when the cluster answered kquota's latest Metadata request."
    yield gauge("cluster_reached", text, proxy.cluster.reached)
    yield gauge("draining", "1 while shutting down.", proxy.state == "draining")
    yield counter("config_reloads", "Configurations loaded after the first.", reloads.reloads)
    yield counter("config_reload_failures", "Changed configurations refused.", reloads.failures)
    text = "0 while a refused configuration is on disk."
    yield gauge("config_last_reload_successful", text, reloads.successful)
    text = "When the configuration in force was loaded."
    yield gauge("config_last_reload_success_timestamp_seconds", text, reloads.success_at_s)
    text = "1 when the file changed settings that only a restart applies."
    yield gauge("config_restart_required", text, bool(reloads.restart_settings))
    yield gauge("config_quotas", "Quota entries in force.", len(table.entries) + addresses)
    yield gauge("clients_known", "Clients in memory.", ledger.clients)
    text, known = "Counters in memory, by kind of quota.", {kind: counters.count(kind) for kind in Kind}
    yield labelled(GaugeMetricFamily, "counters", text, "kind", known)
    text = "Clients that share an overflow counter, beyond limits.max_clients."
    yield labelled(CounterMetricFamily, "clients_overflowed", text, "kind", counters.overflowed)
    build = kquota_version(), platform.python_version(), "pure" if compiled.WHY_NOT else "compiled"
    yield labelled(GaugeMetricFamily, "build_info", "Always 1.", "version python data_path", {build: 1})
    # What is held for clients now: these return to their former values when the clients are gone.
    yield gauge("tasks", "Tasks of the event loop.", trio.lowlevel.current_statistics().tasks_living)
    yield gauge("pipes_open", "Open pipes for large requests and responses.", proxy.pipes_open)
    yield gauge(
        "fetch_reservations", "Fetch requests in flight for which quota bytes are reserved.", ledger.reservations
    )


def broker_families(proxy: Proxy) -> Iterator[Metric]:
    """The brokers, and the ports that stand for them."""
    brokers = proxy.cluster.all()
    without = sum(local_port is None for *_, local_port in brokers)
    yield gauge("brokers", "Brokers of the cluster, as last seen.", len(brokers))
    yield gauge("brokers_without_port", "Brokers without a port; clients see them as down.", without)
    yield gauge("broker_ports", "Ports for brokers; 0 in transparent mode.", proxy.broker_ports)


def source_families(state: SourceState, alterations: Mapping[str, int]) -> Iterator[Metric]:
    """Where the limits come from, and alterations of them by outcome."""
    yield by("quota_alterations", "AlterClientQuotas requests.", "outcome", alterations)
    text = "Users, client-ids and addresses in the overlay."
    yield gauge("quota_overlay_entities", text, state.overlay_entities)
    text = "0 while a refused overlay file is on disk."
    yield gauge("quota_overlay_last_load_successful", text, state.overlay_successful)
    yield counter("quota_source_polls", "Polls of the cluster's quotas.", state.polls)
    yield counter("quota_source_poll_failures", "Failed polls of the cluster's quotas.", state.poll_failures)
    yield counter("quota_source_changes", "Polls that found changed quotas.", state.changes)
    text = "0 while the cluster's quotas cannot be read."
    yield gauge("quota_source_last_poll_successful", text, state.successful)
    yield gauge("quota_source_last_success_timestamp_seconds", "When quotas were last read.", state.success_at_s)
    yield gauge("quota_source_unusable", "Limits of the cluster that are not enforced.", state.unusable)


def export_families(exporter: Exporter) -> Iterator[Metric]:
    """Usage records and their sinks."""
    last = "When usage records were last delivered; 0: never."
    for family, name, value, text in (
        (CounterMetricFamily, "records", "records", "Usage records delivered."),
        (CounterMetricFamily, "errors", "errors", "Failed attempts to deliver usage records."),
        (CounterMetricFamily, "dropped", "dropped", "Usage records lost: buffer full, or shutdown."),
        (GaugeMetricFamily, "pending_bytes", "pending_bytes", "Size of waiting usage records."),
        (GaugeMetricFamily, "last_success_timestamp_seconds", "last_success_s", last),
        (GaugeMetricFamily, "lag_seconds", "lag_s", "Age of the oldest waiting usage record."),
    ):
        values = {one.name: getattr(one, value) for one in exporter.workers}
        yield labelled(family, f"export_{name}", text, "sink", values)
    deleted, folded = exporter.files.deleted if exporter.files else 0, exporter.sampler.folded
    yield counter("export_files_deleted", "Complete files deleted because of keep_bytes.", deleted)
    yield counter("export_folded_clients", "Clients in a record of `other`, summed over intervals.", folded)
    yield counter("export_failures", "Intervals lost by an internal error.", exporter.failures)


def security_families(security: Security, counters: Counters) -> Iterator[Metric]:
    """TLS handshakes, certificates, and the files that are followed next to the configuration."""
    yield by("tls_handshakes", "TLS handshakes done.", "peer", counters.tls_handshakes)
    failed = dict(sorted(counters.tls_handshake_failures.items()))
    text = "TLS handshakes that failed."
    yield labelled(CounterMetricFamily, "tls_handshake_failures", text, "peer reason", failed)
    expiry = {side.setting: side.expires_at_s for side in security.sides if side.expires_at_s is not None}
    text = "Earliest expiry in the sidecar's chain (Unix time)."
    yield labelled(GaugeMetricFamily, "tls_certificate_expiry_timestamp_seconds", text, "setting", expiry)
    for family, name, value, text in (
        (CounterMetricFamily, "reloads", "reloads", "Changed files loaded."),
        (CounterMetricFamily, "reload_failures", "failures", "Changed files refused."),
        (GaugeMetricFamily, "last_reload_successful", "successful", "0 while refused files are on disk."),
    ):
        values = {one.setting: getattr(one, value) for one in security.follower.followed}
        yield labelled(family, f"files_{name}", text, "setting", values)


def fleet_families(member: Member | None, reserved: ReservedTopic | None, most: int) -> Iterator[Metric]:
    """Whether the fleet can be heard, and the shares of up to `most` groups in use here (docs/fleet.md)."""
    if reserved is not None:
        text = "Refused requests of clients for the fleet's topic, by API."
        yield by("fleet_refused_requests", text, "api", reserved.refused)
    if member is None:
        return
    fleet, state, shares = member.fleet, member.exchange.state, member.shares
    yield gauge("fleet_instances", "Known instances of the fleet, this one included.", fleet.known)
    yield gauge("fleet_lost", "1 while the instance has lost contact with its fleet.", fleet.lost)
    yield gauge("fleet_groups", "Quota groups of this instance with a fleet limit.", shares.count)
    records = {name: getattr(state, name) for name in ("sent", "received", "stale")}
    ignored = ("malformed", "other_version", "other_fleet", "bad_mac", "outdated")
    records |= {name: fleet.ignored[name] for name in ignored}
    records |= {name: getattr(fleet.view, name) for name in ("repeated", "refused")}
    yield by("fleet_records", "Records of the fleet's topic, by outcome.", "outcome", records)
    yield counter("fleet_sent_bytes", "Bytes of records published to the fleet's topic.", state.sent_bytes)
    yield counter("fleet_received_bytes", "Bytes of records read from the fleet's topic.", state.received_bytes)
    groups = {
        (group.kind.value, *group.key.tags): standing
        for group in islice(shares.active(), most)
        if (standing := shares.standing(group)) is not None
    }
    rates = {(scope.value, name): standing for scope, name, standing in islice(shares.rates(), most)}
    usage = "The fleet's usage of a limit, in the limit's unit (bytes/s, percent, partitions/s)."
    for name, value, text, labels, standings in (
        ("share", "share", "This instance's share of a fleet limit.", "kind user client_id", groups),
        ("usage", "usage", usage, "kind user client_id", groups),
        ("sharing", "instances", "Instances that use a fleet limit.", "kind user client_id", groups),
        ("connection_share", "share", "This instance's share of a fleet connection rate.", "scope entity", rates),
        ("connection_usage", "usage", "Connections per second accepted by the fleet.", "scope entity", rates),
    ):
        values = {names: getattr(standing, value) for names, standing in standings.items()}
        yield labelled(GaugeMetricFamily, f"fleet_{name}", text, labels, values)


_PLAIN: Final = {
    "connections.open": (gauge, "Open client connections."),
    "connections.muted": (gauge, "Muted client connections."),
    "connections.waiting": (gauge, "Client connections whose next request waits because their quota is overdrawn."),
    "connections.held": (gauge, "Refused connections that stay open for their delay."),
    "connections.not_held": (counter, "Refused connections closed at once, over limits.max_held_connections."),
    "connections.opened": (counter, "All client connections so far, refused ones included."),
    "accept_failures": (counter, "Connections the system could not accept."),
    "upstream_connects": (counter, "Connections to brokers."),
    "upstream_connect_failures": (counter, "Failed connections to brokers."),
    "throttled_responses": (counter, "Responses that carry the sidecar's throttle time."),
    "produces_refused": (counter, "Produce requests answered REQUEST_TIMED_OUT, shortly before their timeout."),
    "fetches_answered": (counter, "Fetches over quota answered with an empty response."),
    "fetches_shaped": (counter, "Fetches forwarded with a lower max_bytes."),
    "addresses_rewritten": (counter, "Broker addresses replaced in responses."),
}


def traffic_families(counters: Counters, gate: ConnectionGate, most: int) -> Iterator[Metric]:
    """The whole traffic; at most `most` users and addresses with open connections get a series."""
    for name, (metric, text) in _PLAIN.items():
        yield metric(name.replace(".", "_"), text, attrgetter(name)(counters))
    yield from _connection_limits(gate, most)
    yield by("connections_closed", "Client connections closed.", "reason", counters.connections.closed)
    yield by("parse_errors", "Connections closed for malformed input.", "kind", counters.parse_errors)
    headers = {outcome: counters.proxy_headers[outcome] for outcome in OUTCOMES}
    yield by("proxy_headers", "Connections from balancers (PROXY protocol).", "outcome", headers)
    checks = {outcome: counters.node_checks[outcome] for outcome in ("same", "other", "unknown", "unanswered")}
    yield by("upstream_node_checks", "Checks that a dialled address belongs to the expected broker.", "outcome", checks)
    apis: Counter[str] = Counter()
    for key, count in counters.counted.by_api().items():
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
    yield gauge("passthrough_connections", text, counters.passthrough.open)
    text = "Connections with TLS passed through."
    yield counter("passthrough_connections_opened", text, counters.passthrough.opened)
    passed = {kind: counters.passthrough.bytes[kind] for kind in ("produce", "fetch")}
    yield by("passthrough_bytes", "Bytes of TLS passed through.", "kind", passed)
    turns = counters.long_turns
    yield by("long_turns", "Event loop iterations above 5 ms of CPU.", "what", turns.counts)
    yield gauge("longest_turn_seconds", "CPU time of the longest event loop iteration.", turns.longest_cpu_s)


def _connection_limits(gate: ConnectionGate, most: int) -> Iterator[Metric]:
    modes = (("enforce", gate.refused), ("shadow", gate.shadow_refused))
    refused = {(cause.value, mode): counts[cause] for mode, counts in modes for cause in Cause}
    text = "Connections over a connection limit; mode shadow: not refused."
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
