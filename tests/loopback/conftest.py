"""The loopback room: the proxy's own loop on real sockets of this machine, with scripted peers; no other process."""

from __future__ import annotations

import pytest

from quota import compiled
from tests.support.certificates import Authority


@pytest.fixture
def data_path() -> str:
    """What this process's data path runs as. (tests/system/test_one_source.py runs what matters as the other one.)"""
    return "pure" if compiled.WHY_NOT else "compiled"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that both sides believe."""
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another one."""
    return Authority(tmp_path_factory.mktemp("stranger"))
