"""Metrics by client library: which ones comply with throttle times. The number of names is bounded."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from proxy.app.common.top_k import Labels, TopKSeries, Totals, label
from proxy.app.metrics.families import labelled
from proxy.core.telemetry.libraries import Libraries, LibraryMutes

MOST = 30
"""Libraries and versions with series of their own."""


class LibrarySeries:
    """Those that ignored throttles longest have series of their own, then those muted most; the rest is `other`."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._fold: TopKSeries[tuple[str, str]] = TopKSeries(MOST, 4, _weight)
        libraries.on_forget.append(lambda gone: self._fold.forget(*_totals(gone)))

    def look(self, now_ms: float) -> Iterator[None]:
        """Take over the totals, step by step."""
        yield from self._fold.look(map(_totals, self._libraries), now_ms)

    def families(self) -> Iterator[Metric]:
        """The totals as of the last refresh."""
        told = (
            ("mutes", "Observed mutes (200 ms or more), by the library's own name.", 1.0),
            ("mute_seconds", "Total length of the mutes counted in kquota_library_mutes_total.", 1000.0),
            ("mutes_ignored", "Mutes in whose second half the client kept sending.", 1.0),
            ("ignored_seconds", "Total length of the mutes counted in kquota_library_mutes_ignored_total.", 1000.0),
        )
        for index, (name, text, unit) in enumerate(told):
            values = {labels: totals[index] / unit for labels, totals in self._fold.series()}
            yield labelled(CounterMetricFamily, f"library_{name}", text, "library version", values)


def _totals(one: LibraryMutes) -> tuple[tuple[str, str], Labels, Totals]:
    totals = (float(one.mutes), one.mute_ms, float(one.ignored), one.ignored_ms)
    return (one.library, one.version), (label(one.library), label(one.version)), totals


def _weight(gain: Totals) -> tuple[float, ...]:
    return (gain[3], gain[0])
