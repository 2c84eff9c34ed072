"""What became of the tests of a suite, and what the sidecar changes about it. No processes here."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNFINISHED = "unfinished"
    """It had begun, and the run was over before it said how it ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    seconds: float = 0.0


NEVER_BEGUN: Final = Ended(Outcome.UNFINISHED)
Results = Mapping[str, Ended]

GO_LINE: Final = re.compile(r"^(=== RUN|--- (?:PASS|FAIL|SKIP):)\s+(\w+)(?: \((\d+\.\d+)s\))?$")
GO_ENDS: Final = {"--- PASS:": Outcome.PASSED, "--- FAIL:": Outcome.FAILED, "--- SKIP:": Outcome.SKIPPED}
LIBRDKAFKA_ENDS: Final = {
    "PASSED": Outcome.PASSED,
    "FAILED": Outcome.FAILED,
    "SKIPPED": Outcome.SKIPPED,
    "RUNNING": Outcome.UNFINISHED,
}


def of_go(output: str) -> dict[str, Ended]:
    found: dict[str, Ended] = {}
    for line in output.splitlines():
        if not (match := GO_LINE.match(line)):
            continue
        word, name, seconds = match.groups()
        if word in GO_ENDS:
            found[name] = Ended(GO_ENDS[word], float(seconds or 0))
        else:
            found.setdefault(name, Ended(Outcome.UNFINISHED))
    return found


def of_librdkafka(report: str, numbers: Collection[str]) -> dict[str, Ended]:
    """The tests with these numbers in the JSON report of librdkafka's test-runner. It lists all others as skipped."""
    tests = json.loads(report)["tests"]
    return {
        name: Ended(LIBRDKAFKA_ENDS[one["state"]], float(one["duration"]))
        for name, one in tests.items()
        if name[:4] in numbers and one["state"] in LIBRDKAFKA_ENDS
    }


@dataclass(slots=True)
class Row:
    name: str
    direct: list[Ended] = field(default_factory=list)
    through: list[Ended] = field(default_factory=list)

    @property
    def suspect(self) -> bool:
        """It has passed at the broker in each try, and never through the sidecar."""
        passed = [one.outcome is Outcome.PASSED for one in self.direct]
        return bool(passed) and all(passed) and not any(one.outcome is Outcome.PASSED for one in self.through)

    @property
    def differs(self) -> bool:
        """The tries did not all end in the same way."""
        return len({one.outcome for one in (*self.direct, *self.through)}) > 1


def side_by_side(direct: Results, through: Results) -> list[Row]:
    """One row per test of either run, by name; a test that one run does not know of never began there."""
    names = sorted({*direct, *through})
    return [Row(name, [direct.get(name, NEVER_BEGUN)], [through.get(name, NEVER_BEGUN)]) for name in names]


def count(rows: Sequence[Row]) -> str:
    ends = [(row.direct[0].outcome, row.through[0].outcome) for row in rows]
    answer = [f"{sum(end == (one, one) for end in ends)} {one} both ways" for one in Outcome if (one, one) in ends]
    answer += [f"{sum(row.differs for row in rows)} ended differently" if any(row.differs for row in rows) else ""]
    return f"{len(rows)} tests: " + ", ".join(filter(None, answer))


def table(rows: Sequence[Row]) -> str:
    """Those that did not pass, or took seconds, or ended differently, as a table of Markdown."""
    lines = ["| test | direct | through the sidecar |", "|---|---|---|"]
    for row in rows:
        slow_or_worse = (one.outcome is not Outcome.PASSED or one.seconds >= 1 for one in (*row.direct, *row.through))
        if row.differs or any(slow_or_worse):
            lines.append(f"| {row.name} | {tries(row.direct)} | {tries(row.through)} |")
    return "\n".join(lines)


def tries(ends: Sequence[Ended]) -> str:
    """For example "failed 2.1 s, passed 3.4 s"."""
    return ", ".join(
        one.outcome if one.outcome is Outcome.SKIPPED else f"{one.outcome} {one.seconds:.1f} s" for one in ends
    )
