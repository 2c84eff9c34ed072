"""The accuracy measurement: its arithmetic on paper, and a short run against a real broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rig.accuracy_clients import Cell, Seen
from benchmarks.suites import accuracy
from benchmarks.suites.accuracy import Figures, Plan, Result, burst_windows, figures_of, phases, rate, settled_after

CELL = Cell("c", "produce", 1000.0, 2, "t", 100)


def seen(rates: list[tuple[float, float]], *, tick_s: float = 0.1, start_s: float = 50.0) -> Seen:
    """What a group would have got at these rates: (seconds, bytes/s), one after the other."""
    found, total, at = Seen(CELL), 0.0, start_s
    found.at_s, found.total_bytes, found.throttled = [at], [0], [0]
    for seconds, bytes_per_s in rates:
        for _ in range(round(seconds / tick_s)):
            at, total = at + tick_s, total + bytes_per_s * tick_s
            found.at_s.append(at)
            found.total_bytes.append(round(total))
            found.throttled.append(len(found.at_s))
    return found


def test_rate_between_two_moments_and_between_two_ticks() -> None:
    group = seen([(10, 1000), (10, 500)])
    assert rate(group, 50, 60) == pytest.approx(1000)
    assert rate(group, 55, 65) == pytest.approx(750)
    assert rate(group, 52.03, 52.07) == pytest.approx(1000)


def test_a_burst_of_nine_seconds_worth_at_once() -> None:
    # 10 000 bytes in the first second, 1000 of which the limit allows: 9000 / (1000 * 10 s)
    group = seen([(1, 10_000), (9, 0), (20, 1000)])
    assert burst_windows(group, 1000, 80, 10) == pytest.approx(0.9)
    assert burst_windows(seen([(30, 900)]), 1000, 80, 10) == pytest.approx(0, abs=0.01)


def test_settled_from_the_moment_on_at_which_any_five_seconds_are_right() -> None:
    group = seen([(1, 10_000), (10, 0), (40, 1000)])
    # 4.75 s of 1000 in five are right within 5 %: a quarter of a second before the pause ends
    assert settled_after(group, 1000, 50, 100) == pytest.approx(10.75, abs=0.26)
    assert settled_after(group, 2000, 50, 100) is None
    assert settled_after(seen([(60, 1000)]), 1000, 50, 100) == pytest.approx(0, abs=0.01)


def test_figures_of_a_group() -> None:
    group = seen([(1, 10_000), (10, 0), (89, 990), (28, 500), (14, 1000)])
    group.per_connection = {"30.0": [10_000, 20_000], "90.0": [40_000, 80_000]}
    got = figures_of(group, Plan(), (50 + 100, 50 + 128))
    assert got.ratio == pytest.approx(0.99)
    assert got.jain == pytest.approx((30 + 60) ** 2 / (2 * (30**2 + 60**2)))
    assert got.throttled == pytest.approx(600, abs=2)
    assert got.halved_s == pytest.approx(0, abs=0.3)
    assert got.doubled_s == pytest.approx(0, abs=0.3)


def test_every_group_is_measured_and_none_beside_too_many_others() -> None:
    plan = Plan()
    found = phases(plan)
    cells = [cell for phase in found for cell in phase]
    assert len({cell.client_id for cell in cells}) == 4 * 3 * 2 == len(cells)
    assert all(len(phase) == 1 or sum(cell.limit for cell in phase) <= 40e6 + 1 for phase in found)
    assert len(found) <= 8


def test_the_table_and_its_place(tmp_path: Path) -> None:
    good = Figures("produce", 0.1, 8, 1.0012, 0.9999, 0.91, 11.5, None, 2.0, 500)
    slow = replace(good, kind="fetch", ratio=0.5, throttled=0)
    project = {"commit": "abc", "uncommitted_changes": True, "data_path": "compiled"}
    figures = [slow, replace(good, ratio=1.03), good]
    text = accuracy.table(Result(Plan(), "2026-01-01T00:00:00Z", figures, {}, [0.5], project))
    assert "1 of 3 groups" in text
    assert "- commit abc with uncommitted changes; kquota's data path: compiled\n" in text
    assert "| 0.1 | produce | 8 | 1.0300 **missed** |" in text
    assert "| 0.1 | fetch | 8 | 0.5000 (never throttled) |" in text
    document = tmp_path / "d.md"
    document.write_text(f"before\n{accuracy.BEGIN}\nold\n{accuracy.END}\nafter")
    accuracy.put_into(document, text, "x.json")
    assert text in document.read_text()
    assert document.read_text().startswith("before\n")
    document.write_text("nothing")
    with pytest.raises(ValueError, match="no place"):
        accuracy.put_into(document, text, "x.json")


def test_the_document_has_a_place_for_the_table() -> None:
    text = (Path(__file__).parents[2] / accuracy.DOCUMENT).read_text()
    assert text.count(accuracy.BEGIN) == 1
