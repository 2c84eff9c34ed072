"""Coverage by package: the sums, and what a floor says (tests/coverage_report.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import coverage_report
from tests.coverage_report import below, by_package, lines_of


def file(lines: int, of_lines: int, branches: int, of_branches: int) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": lines,
            "num_statements": of_lines,
            "covered_branches": branches,
            "num_branches": of_branches,
        }
    }


FILES = {
    "quota/rate.py": file(80, 100, 20, 20),
    "quota/counter.py": file(60, 60, 10, 20),
    "proxy/wire/walk.py": file(10, 10, 0, 0),
    "proxy/errors.py": file(0, 10, 0, 0),
    "proxy/io/a/deep.py": file(5, 5, 0, 0),
}


def test_lines_and_branches_are_added_up_by_package() -> None:
    packages = by_package(FILES)
    assert {name: (one.reached, one.all) for name, one in packages.items()} == {
        "proxy": (15, 25),
        "proxy/io": (5, 5),
        "proxy/wire": (10, 10),
        "quota": (170, 200),
    }
    assert packages["quota"].percent == 85.0
    assert list(lines_of(packages, {"quota": 80}))[-1] == "quota                       85.0%     80  170 of 200"


def test_a_floor_that_is_not_reached_is_named() -> None:
    packages = by_package(FILES)
    assert below(packages, {"quota": 85, "proxy": 60}) == []
    assert below(packages, {"quota": 86, "config": 10}) == [
        "config: there is no such package",
        "quota: 85.0 % of lines and branches are reached, 86 % at least are expected",
    ]


def test_the_exit_code_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage_report, "FLOORS", {"unit loopback": {"quota": 85, "deploy": 10}})
    (report := tmp_path / "report.json").write_text(json.dumps({"files": FILES}))
    assert coverage_report.main([str(report)]) == 1
    assert "deploy: there is no such package" in capsys.readouterr().out
    assert coverage_report.main([str(report), "--rooms", "system"]) == 0


def test_each_package_of_the_sidecar_has_a_floor() -> None:
    assert sorted(coverage_report.FLOORS["unit loopback"]) == ["config", "deploy", "proxy", "quota"]
