"""Loopback tests: the proxy's own loop on real sockets of this machine, with scripted peers; no other process."""

import pytest

from proxy.app.sources import follow
from tests.support.certificates import Authority, Issued


@pytest.fixture
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read often, and a file system may take its time."""
    for name, seconds in (("POLL_S", 0.01), ("SETTLE_S", 0.005), ("ANSWER_TIMEOUT_S", 30.0)):
        monkeypatch.setattr(follow, name, seconds)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def host(issuer: Authority) -> Issued:
    return issuer.issue("host", "127.0.0.1", "localhost", common_name="kquota")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))
