"""The loopback room: the proxy's own loop on real sockets of this machine, with scripted peers; no other process."""

from __future__ import annotations

import pytest

from quota import compiled


@pytest.fixture
def data_path() -> str:
    """What this process's data path runs as. (tests/system/test_one_source.py runs what matters as the other one.)"""
    return "pure" if compiled.WHY_NOT else "compiled"
