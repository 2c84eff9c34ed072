"""Metrics of TLS handshakes, certificates, and the files that are followed next to the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.app.metrics.families import by
from proxy.app.sources.security import Security
from proxy.core.telemetry.observer import Counters


def security_families(security: Security, counters: Counters) -> Iterator[Metric]:
    """One series per side, or per section of the configuration."""
    yield by("kquota_tls_handshakes", "TLS handshakes done.", "peer", counters.tls_handshakes)
    failed = CounterMetricFamily(
        "kquota_tls_handshake_failures", "TLS handshakes that failed.", labels=["peer", "reason"]
    )
    for (peer, reason), count in sorted(counters.tls_handshake_failures.items()):
        failed.add_metric([peer, reason], count)
    expiry = GaugeMetricFamily(
        "kquota_tls_certificate_expiry_timestamp_seconds",
        "Expiry of the first certificate of the sidecar's chain.",
        labels=["setting"],
    )
    for side in security.sides:
        if side.expires_at_s is not None:
            expiry.add_metric([side.setting], side.expires_at_s)
    reloads = CounterMetricFamily("kquota_files_reloads", "Changed files loaded.", labels=["setting"])
    refused = CounterMetricFamily("kquota_files_reload_failures", "Changed files refused.", labels=["setting"])
    good = GaugeMetricFamily(
        "kquota_files_last_reload_successful", "0 while refused files are on disk.", labels=["setting"]
    )
    for one in security.follower.followed:
        reloads.add_metric([one.setting], one.reloads)
        refused.add_metric([one.setting], one.failures)
        good.add_metric([one.setting], one.successful)
    yield from (failed, expiry, reloads, refused, good)
