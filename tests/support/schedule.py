"""Which tests stay together when several processes share them: those of a file, as they share its fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling

NO_SESSION: Final = ("test_analysis_cli", "test_analysis_cluster")
"""Files of the Spark folder that have no session: they start Spark as programs."""


def group_of(nodeid: str) -> str:
    file = Path(nodeid.partition("::")[0])
    return "tests/spark" if file.parent.name == "spark" and file.stem not in NO_SESSION else str(file)


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadfile` with these groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
