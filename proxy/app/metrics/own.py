"""Metrics of the sidecar itself: its health, what is in force, where limits come from, what it remembers."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.app.common.version import kquota_version
from proxy.app.export.exporter import ExportState
from proxy.app.metrics.families import by, counter, gauge
from proxy.app.sources.quota_source import SourceState
from proxy.app.sources.watch import ReloadState
from proxy.net.listen.server import Proxy
from quota import compiled
from quota.connections import EntityType
from quota.entity import Kind
from quota.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Status:
    """State that only the running proxy knows."""

    ready: bool
    cluster_reached: bool
    draining: bool


def own_families(status: Status, reloads: ReloadState, ledger: Ledger) -> Iterator[Metric]:
    """The process, its configuration, and how much it remembers."""
    yield gauge("kquota_ready", "1 when /readyz says ready.", status.ready)
    yield gauge("kquota_cluster_reached", "1 when a broker answered the last time.", status.cluster_reached)
    yield gauge("kquota_draining", "1 while shutting down.", status.draining)
    yield counter("kquota_config_reloads", "Configurations loaded after the first.", reloads.reloads)
    yield counter("kquota_config_reload_failures", "Changed configurations refused.", reloads.failures)
    yield gauge(
        "kquota_config_last_reload_successful", "0 while a refused configuration is on disk.", reloads.successful
    )
    yield gauge(
        "kquota_config_last_reload_success_timestamp_seconds",
        "When the configuration in force was loaded.",
        reloads.success_at_s,
    )
    yield gauge(
        "kquota_config_restart_required",
        "1 when the file changed settings that only a restart applies.",
        bool(reloads.restart_settings),
    )
    table = ledger.table
    alone = (
        one
        for one in table.connections.entries
        if one.entity_type is EntityType.IP or table.get(one.name, None) is None
    )
    quotas = len(table.entries) + sum(1 for _ in alone)
    yield gauge("kquota_config_quotas", "Quota entries in force.", quotas)
    yield gauge("kquota_clients_known", "Clients in memory.", ledger.clients)
    counters = GaugeMetricFamily("kquota_counters", "Counters in memory, by kind of quota.", labels=["kind"])
    overflowed = CounterMetricFamily(
        "kquota_clients_overflowed",
        "Clients that share an overflow counter, for lack of room.",
        labels=["kind"],
    )
    for kind in Kind:
        counters.add_metric([kind.value], ledger.counters.count(kind))
        overflowed.add_metric([kind.value], ledger.counters.overflowed[kind])
    yield from (counters, overflowed)
    build = GaugeMetricFamily("kquota_build_info", "Always 1.", labels=["version", "python", "data_path"])
    data_path = "pure" if compiled.WHY_NOT else "compiled"
    build.add_metric([kquota_version(), platform.python_version(), data_path], 1)
    yield build


def held_families(proxy: Proxy, ledger: Ledger) -> Iterator[Metric]:
    """What is held for clients now, gauges that return to their former values when the clients are gone; must be called
    inside the event loop."""
    yield gauge("kquota_tasks", "Tasks of the event loop.", trio.lowlevel.current_statistics().tasks_living)
    yield gauge("kquota_pipes_open", "Kernel pipes for large bodies.", proxy.pipes_open)
    yield gauge("kquota_fetch_reservations", "Fetches at brokers with reserved bytes.", ledger.reservations)


def broker_families(proxy: Proxy) -> Iterator[Metric]:
    """The brokers, and the ports that stand for them."""
    brokers = proxy.brokers()
    without = sum(local_port is None for *_, local_port in brokers)
    yield gauge("kquota_brokers", "Brokers of the cluster, as last seen.", len(brokers))
    yield gauge("kquota_brokers_without_port", "Brokers that clients do not hear of, for want of a port.", without)
    yield gauge("kquota_broker_ports", "Ports for brokers; 0 in transparent mode.", proxy.broker_ports)


def source_families(state: SourceState, alterations: Mapping[str, int]) -> Iterator[Metric]:
    """Where the limits come from, and alterations of them by outcome."""
    yield by("kquota_quota_alterations", "AlterClientQuotas requests.", "outcome", alterations)
    yield gauge(
        "kquota_quota_overlay_entities", "Users, client-ids and addresses in the overlay.", state.overlay_entities
    )
    yield gauge(
        "kquota_quota_overlay_last_load_successful",
        "0 while a refused overlay file is on disk.",
        state.overlay_successful,
    )
    yield counter("kquota_quota_source_polls", "Polls of the cluster's quotas.", state.polls)
    yield counter(
        "kquota_quota_source_poll_failures",
        "Failed polls of the cluster's quotas.",
        state.poll_failures,
    )
    yield counter(
        "kquota_quota_source_changes",
        "Polls that found changed quotas.",
        state.changes,
    )
    yield gauge(
        "kquota_quota_source_last_poll_successful", "0 while the cluster's quotas cannot be read.", state.successful
    )
    yield gauge("kquota_quota_source_last_success_timestamp_seconds", "When quotas were last read.", state.success_at_s)
    yield gauge("kquota_quota_source_unusable", "Limits of the cluster that are not enforced.", state.unusable)


def export_families(state: ExportState) -> Iterator[Metric]:
    """Usage records and their sinks."""
    now_s = time.time()
    told = [
        (CounterMetricFamily, "records", "Usage records delivered."),
        (CounterMetricFamily, "errors", "Failed attempts to deliver usage records."),
        (CounterMetricFamily, "dropped", "Usage records lost: buffer full, or shutdown."),
        (GaugeMetricFamily, "pending_bytes", "Size of waiting usage records."),
        (GaugeMetricFamily, "last_success_timestamp_seconds", "When usage records were last delivered; 0: never."),
        (GaugeMetricFamily, "lag_seconds", "Age of the oldest waiting usage record."),
    ]
    for family, name, text in told:
        metric = family(f"kquota_export_{name}", text, labels=["sink"])
        for sink, worker in state.sinks.items():
            metric.add_metric([sink], worker.lag_s(now_s) if name == "lag_seconds" else getattr(worker, name))
        yield metric
    yield counter("kquota_export_files_deleted", "Complete files deleted because of keep_bytes.", state.files_deleted)
    yield counter(
        "kquota_export_folded_clients",
        "Clients in a record of `other`, summed over intervals.",
        state.folded,
    )
    yield counter("kquota_export_failures", "Intervals lost by an internal error.", state.failures)
