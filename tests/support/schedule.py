"""Which tests stay together when several processes share them: those of a file, as they share its fixtures.

Two exceptions: all files that use a Spark session are two groups, so that two processes have a session and the
others none (a session's first ten reports take some 45 s of a core more than later ones, all of these files in one
process longer than everything else beside them), and a file whose clusters have nothing in common is several groups.
Groups begin in the order in which their tests are collected.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling

SESSION: Final = "tests/spark/conftest.py"
SESSIONS: Final = (
    (
        "test_analysis_plans",
        "test_analysis_levels",
        "test_analysis_audit",
        "test_report_csv",
        "test_analysis_jobs",
        "test_analysis_compact",
        "test_analysis_fleet",
    ),
    (),
)
"""Files with a Spark session that share one; the last group has all others."""
NO_SESSION: Final = ("test_analysis_cli", "test_analysis_cluster", "test_stream_kills")
"""Files of the Spark room that have no session: two start Spark as programs, one does without it."""
SPLIT: Final = {"test_transparency": re.compile(r"\[(kafka3|kafka_391)\b")}
"""Files that are split, and what of a test's parameters names its part."""


def group_of(nodeid: str) -> str:
    """The group of one test."""
    file, _, test = nodeid.partition("::")
    path = Path(file)
    if path.parent.name == "spark" and path.stem not in NO_SESSION:
        shared = (number for number, files in enumerate(SESSIONS) if path.stem in files)
        return f"{SESSION}::{next(shared, len(SESSIONS) - 1)}"
    part = SPLIT[path.stem].search(test) if path.stem in SPLIT else None
    return f"{file}::{part[1]}" if part else file


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadfile` with these groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
