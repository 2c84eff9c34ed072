"""The loopback room: the proxy's own loop on real sockets of this machine, with scripted peers; no other process."""

from __future__ import annotations

import pytest

from proxy import lane


@pytest.fixture(params=["compiled", "pure"])
def data_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Proxies of this process with their compiled lane, and without: the test runs once with each."""
    kind: str = request.param
    if kind == "pure":
        monkeypatch.setattr("proxy.io.connection.lane_for", lambda *_: None)
        monkeypatch.setattr("proxy.io.reactor.loop_for", lambda *_: None)
    elif not lane.COMPILED:
        pytest.skip(f"the lane is not compiled: {lane.WHY_NOT}")  # in CI tests/system/test_lane_build.py fails then
    return kind
