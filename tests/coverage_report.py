"""Branch coverage by package, against a floor for each: `make coverage`.

The unit and loopback rooms are measured, with the Python code (compiled modules cannot be seen into): they take
minutes. They reach little of what in `proxy.app` starts processes and of `proxy.net.listen.transparent`, which the
system and broker rooms test, and nothing of `analysis`, which has the Spark room: `make coverage COVERAGE_ROOMS=spark`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FLOORS: Final[Mapping[str, Mapping[str, float]]] = {
    "unit loopback": {"quota": 95, "proxy": 85, "config": 94},
}
"""Rooms, and the percentage of lines and branches of each package that they have to reach. Raise one when it is passed
by more than three; lower one only with a reason in the commit."""


@dataclass(slots=True)
class Reached:
    """Of one package or file: lines and branches, those reached and all."""

    reached: int = 0
    all: int = 0

    def add(self, summary: Mapping[str, Any]) -> None:
        """One file's figures in coverage's JSON report."""
        self.reached += summary["covered_lines"] + summary["covered_branches"]
        self.all += summary["num_statements"] + summary["num_branches"]

    @property
    def percent(self) -> float:
        """100 for a package without code."""
        return 100.0 * self.reached / self.all if self.all else 100.0


def by_package(files: Mapping[str, Any]) -> dict[str, Reached]:
    """The figures of each package, and of each folder in it, by path."""
    found: dict[str, Reached] = {}
    for name, file in files.items():
        parts = Path(name).parts[:-1]
        for depth in range(1, min(len(parts), 2) + 1):
            found.setdefault("/".join(parts[:depth]), Reached()).add(file["summary"])
    return dict(sorted(found.items()))


def lines_of(packages: Mapping[str, Reached], floors: Mapping[str, float]) -> Iterable[str]:
    """A table for a terminal."""
    yield f"{'package':24} {'reached':>8} {'floor':>6}  lines and branches"
    for name, one in packages.items():
        floor = f"{floors[name]:.0f}" if name in floors else ""
        yield f"{'  ' * name.count('/') + name:24} {one.percent:7.1f}% {floor:>6}  {one.reached} of {one.all}"


def below(packages: Mapping[str, Reached], floors: Mapping[str, float]) -> list[str]:
    """What is wrong: a package below its floor, or a floor of a package that is not there."""
    wrong = [f"{name}: there is no such package" for name in floors if name not in packages]
    return wrong + [
        f"{name}: {packages[name].percent:.1f} % of lines and branches are reached, {floor:.0f} % at least are expected"
        for name, floor in floors.items()
        if name in packages and packages[name].percent < floor
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a package is below its floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="what `coverage json` wrote")
    parser.add_argument(
        "--rooms", default="unit loopback", help="which were measured; others than these have no floors"
    )
    given = parser.parse_args(arguments)
    packages = by_package(json.loads(given.report.read_text())["files"])
    floors = FLOORS.get(given.rooms, {})
    print(*lines_of(packages, floors), sep="\n")
    wrong = below(packages, floors)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
