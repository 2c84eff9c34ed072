"""The result as a picture (PNG): what each way to the broker costs, with the least and the most of all rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.report.stats import Spread
from benchmarks.report.tables import HAPROXY, Samples

PANELS: Final = (
    ("fetch", "cpu_s_per_gb", "Fetch: CPU of the proxy, s per GB"),
    ("produce", "cpu_s_per_gb", "Produce, 128 KB batches: CPU, s per GB"),
    ("small", "cpu_us_per_request", "Small requests, 4 000/s: CPU, µs each"),
    ("busy", "cpu_us_per_request", "Small requests, 32 connections: CPU, µs each"),
    ("small", "p50_us", "Small requests, 4 000/s: median latency, µs"),
    ("fetch", "mb_per_s", "Fetch: throughput, MB/s (more is better)"),
)
"""Scenario, metric, title."""
OURS: Final = "#2563eb"
OTHERS: Final = "#94a3b8"


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Write the picture of a result."""
    figure_of(result).savefig(file, metadata={"Software": "kquota benchmarks"})


def figure_of(result: Mapping[str, Any]) -> Figure:
    """The picture; panels of what was not measured stay empty."""
    samples = Samples(result)
    figure = Figure(figsize=(12, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"kquota compared with other ways to the broker: medians and range of the rounds ({result['started'][:10]})"
    )
    for axes, (scenario, metric, title) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        axes.set_title(title, fontsize=10)
        _bars(axes, [(one, Spread.of(samples.of(scenario, metric, one["key"]).values())) for one in result["variants"]])
    return figure


def _bars(axes: Axes, rows: list[tuple[Mapping[str, Any], Spread | None]]) -> None:
    """One bar for each variant that has the figure, and a line where HAProxy's ends."""
    known = [(one, spread) for one, spread in rows if spread is not None]
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    if not known:
        axes.set_axis_off()
        return
    labels = [one["title"] for one, _ in known]
    medians = [spread.median for _, spread in known]
    errors = [
        [spread.median - spread.low for _, spread in known],
        [spread.high - spread.median for _, spread in known],
    ]
    colours = [OURS if "kquota" in one["key"] else OTHERS for one, _ in known]
    axes.barh(labels, medians, xerr=errors, color=colours, ecolor="#475569", capsize=2)
    axes.invert_yaxis()
    for one, spread in known:
        if one["key"] == HAPROXY:
            axes.axvline(spread.median, color="#475569", linewidth=0.8, linestyle="--")
