"""Plots as SVG text (matplotlib): part of the page, visible without a script or a network."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib

matplotlib.use("svg")  # before pyplot, which we do not use: figures of our own need no display and no clean-up
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis.columns import HOUR_S, MAX_ROWS, only_row, some_rows, sums
from analysis.intake import Quality
from analysis.words import size
from config.visible import visible

COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#f2cc8f", "#6d597a", "#3d405b", "#b56576", "#8d99ae")
SIZES = {"bytes": "", "bytes per second": "/s"}
"""Labels of values that are written as sizes, and what follows these."""
SERIES = Sequence[tuple[datetime, float]]


def _axes(height: float = 3.2) -> Any:
    """Axes of a figure of their own; matplotlib accepts datetimes, its types only numbers."""
    return Figure(figsize=(9.6, height), layout="constrained").add_subplot()


def _svg(axes: Any, *, legend: bool) -> str:
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    out = io.StringIO()
    # Fixed ids and no date: the same figures make the same page.
    with matplotlib.rc_context({"svg.hashsalt": "kquota", "svg.fonttype": "none", "font.family": "sans-serif"}):
        # Transparent: the page's colours, light or dark, are behind it.
        axes.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def steps(
    series: Mapping[str, SERIES], label: str, step_s: int, quality: Quality, level: Mapping[str, float] | None = None
) -> str:
    """Values of time buckets of `step_s`, a line per name, none where there is no bucket; `level`: horizontal lines."""
    axes = _axes()
    first, last = (datetime.fromtimestamp(one / 1000, UTC) for one in (quality.first_ms, quality.last_ms))
    step = timedelta(seconds=step_s)
    for (name, points), colour in zip(series.items(), COLOURS * 4, strict=False):
        times: list[datetime] = []
        values: list[float] = []
        for when, value in sorted(points):
            if times and when > times[-1]:
                times += [times[-1], when]
                values += [0.0, 0.0]
            times += [max(when, first), min(when + step, max(last, when))]
            values += [value, value]
        axes.plot(times, values, label=_plain(name), color=colour, linewidth=1.4)
    if first < last:
        axes.set_xlim(first, last)
    return _over_time(axes, label, level or {})


def per_hour(hours: DataFrame, columns: Mapping[str, str], label: str, quality: Quality, times: int = 1) -> str:
    """Columns of a table of :meth:`Context.hours`: `times` as much, per second that the records cover. A step of the
    plot is an hour, or as many hours as leave at most MAX_ROWS steps."""
    ends = only_row(hours.selectExpr("unix_timestamp(min(hour))", "unix_timestamp(max(hour))"))
    first, last = (one or 0 for one in ends)
    step_s = HOUR_S * ((last - first) // HOUR_S // MAX_ROWS + 1)
    start = f"timestamp_seconds(floor((unix_timestamp(hour) - {first}) / {step_s}) * {step_s} + {first}) AS hour"
    summed = hours.groupBy(F.expr(start)).agg(*sums([*columns.values(), "observed_seconds"]))
    rows = some_rows(summed.orderBy("hour"))
    series = {
        name: [(row["hour"], row[column] * times / row["observed_seconds"]) for row in rows]
        for name, column in columns.items()
    }
    return steps(series, label, step_s, quality)


def outlook(
    seen: SERIES, ahead: Sequence[tuple[datetime, float, float, float]], label: str, level: float | None
) -> str:
    """Past days and the forecast (mean, and the bounds around it), towards `level`."""
    axes = _axes()
    days = [when for when, _ in sorted(seen)]
    axes.plot(days, [value for _, value in sorted(seen)], label="was", color=COLOURS[0], linewidth=1.4)
    after = [row[0] for row in ahead]
    axes.plot(after, [row[1] for row in ahead], label="forecast", color=COLOURS[1], linewidth=1.4)
    low, high = [row[2] for row in ahead], [row[3] for row in ahead]
    axes.fill_between(after, low, high, color=COLOURS[1], alpha=0.25, linewidth=0)
    return _over_time(axes, label, {} if level is None else {"limit": level})


def bars(values: Mapping[str, Mapping[str, float]], label: str) -> str:
    """Horizontal stacked bars: name -> part -> value."""
    axes = _axes(max(1.6, 0.34 * len(values) + 1.2))
    names = [_short(name) for name in values]
    parts = list(dict.fromkeys(part for row in values.values() for part in row))
    left = [0.0] * len(names)
    places = list(range(len(names)))
    for part, colour in zip(parts, COLOURS * 4, strict=False):
        widths = [row.get(part, 0.0) for row in values.values()]
        axes.barh(places, widths, left=left, label=part, color=colour)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: _figure(value, label))
    axes.set_xlabel(label)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return _svg(axes, legend=len(parts) > 1)


def _over_time(axes: Any, label: str, levels: Mapping[str, float]) -> str:
    """The plot with horizontal lines, dates below and values from 0 on the left."""
    for name, value in levels.items():
        axes.axhline(value, color="#c1121f", linestyle="--", linewidth=1.1, label=_plain(name))
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    if label in SIZES:
        axes.yaxis.set_major_formatter(lambda value, _: _figure(value, label))
    axes.grid(color="#dddddd", linewidth=0.6)
    return _svg(axes, legend=bool(axes.get_legend_handles_labels()[1]))


def _figure(value: float, label: str) -> str:
    return size(value) + SIZES[label] if label in SIZES else f"{value:,.6g}"


def _short(name: str, most: int = 42) -> str:
    """Names of one team's clients differ at their end as often as at the beginning: the middle is left out."""
    half = most // 2
    return _plain(name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}")


def _plain(name: str) -> str:
    # matplotlib takes text between two dollar signs for a formula.
    return visible(name).replace("$", r"\$")
