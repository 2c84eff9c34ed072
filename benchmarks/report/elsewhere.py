"""Targets that other programs measure: what their last stored results say, in a line each, with the file named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.stats import Spread
from benchmarks.suites.accuracy import TOLERANCE
from benchmarks.suites.control import PAUSE_MS

START_S = 1.5
RELOAD_MS = 200.0


def lines(folder: Path) -> list[str]:
    """Of the newest result of each kind in this folder, by the dates in their names; kinds without one have no line."""
    found = []
    for kind, read in _KINDS.items():
        files = sorted(folder.glob(f"????-??-??-{kind}.json"))
        if files:
            result = json.loads(files[-1].read_text(encoding="utf-8"))
            found += [f"{line} (`{files[-1].name}`)" for line in read(result)]
    return found


def _accuracy(result: Mapping[str, Any]) -> list[str]:
    off = [abs(one["ratio"] - 1) for one in result["figures"]]
    within = sum(share <= TOLERANCE for share in off)
    verdict = "met" if within == len(off) else "**missed**"
    return [
        f"quota accuracy over 60 s, within {TOLERANCE:.0%} of the limit: {within} of {len(off)} groups, "
        f"the worst {max(off):.1%} off: {verdict}"
    ]


def _control(result: Mapping[str, Any]) -> list[str]:
    reloads, entries = result["reloads"], f"{result['entries']:,} quota entries"
    return [
        _judged("start to ready, s", [one["wall_s"] for one in result["starts"]], START_S, 2),
        _judged(f"reload of {entries}, ms", [one["took_ms"] for one in reloads], RELOAD_MS, 0),
        _pauses("answers", [one["answers"] for one in reloads]),
        _pauses("turns of the event loop", result["loop"]),
    ]


def _judged(title: str, values: Sequence[float], limit: float, digits: int) -> str:
    spread = Spread.of(values)
    if spread is None:
        return f"{title}: not measured"
    shown = f"{spread.median:.{digits}f} ({spread.low:.{digits}f}–{spread.high:.{digits}f})"
    return f"{title}: {shown}, target ≤ {limit:g}: {'met' if spread.median <= limit else '**missed**'}"


def _pauses(what: str, reloads: Sequence[Mapping[str, Any]]) -> str:
    """No pause is the target, so that the median says too little: all are counted. A machine has its own, so that as
    long a quiet time is counted as well. Rare things that come by chance scatter by the square root of how many they
    are, and the difference of two counts a and b by sqrt(a + b): one within twice that is not told from chance. What
    there is while another program computes for as long is said, and changes nothing about the verdict."""
    there, before = (sum(one[name]["over_5ms"] for one in reloads) for name in ("reload", "quiet"))
    others = [one["elsewhere"]["over_5ms"] for one in reloads if "elsewhere" in one]
    beside = f"; while another program computes for as long: {sum(others)}" if others else ""
    if not there:
        verdict = "met"
    elif there - before <= 2 * math.sqrt(there + before):
        verdict = "not told apart from the machine's own"
    else:
        verdict = "**missed**"
    worst_ms = max((one["reload"]["worst_ms"] for one in reloads), default=0.0)
    return (
        f"{what} of more than {PAUSE_MS:g} ms during {len(reloads)} reloads: {there}, the longest {worst_ms:.1f} ms "
        f"(in as long a time before: {before}{beside}), target 0: {verdict}"
    )


_KINDS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {"accuracy": _accuracy, "control": _control}
