"""Which tests stay together when several processes share them: those of a file, as they share its fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xdist.scheduler import LoadScopeScheduling

from tests.lab.releases import OLD

SECURED: Final = ("test_sasl_clients", "test_sasl_own_login", "test_tls_brokers", "test_kafkas_quota_test")
"""Files that share a broker with logins, TLS and ACLs."""
OF_OLD: Final = ("kafka_391", OLD)
"""In the names of tests at a broker of the oldest release, which they share."""
NO_SESSION: Final = ("test_analysis_cli", "test_analysis_cluster")
"""Files of the Spark folder that have no session: they start Spark as programs."""


def group_of(nodeid: str) -> str:
    name, _, test = nodeid.partition("::")
    file = Path(name)
    if file.parent.name == "broker" and any(word in test for word in OF_OLD):
        return "tests/broker, the oldest release"
    if file.stem in SECURED:
        return "tests/broker, secured"
    return "tests/spark" if file.parent.name == "spark" and file.stem not in NO_SESSION else name


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """`--dist loadfile` with these groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
