"""Real Kafka clusters as fixtures, started when the first test asks, for the folders that need them."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.lab.releases import NEW, OLD

if TYPE_CHECKING:
    from tests.lab.kafka import KafkaCluster
    from tests.support.certificates import Authority

JavaTool = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def _cluster(brokers: int, version: str) -> Iterator[KafkaCluster]:
    from tests.lab.kafka import KafkaCluster

    # pytest captures this: it is shown only when the start fails.
    with KafkaCluster.start(brokers, version, progress=print) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker, the default version. Shared: use topics and groups of your own, see `topic`."""
    with _cluster(1, NEW) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_of() -> Iterator[Callable[[str], KafkaCluster]]:
    """One broker of the release that it is called with, started by the first call."""
    with ExitStack() as stack:
        yield cache(lambda version: stack.enter_context(_cluster(1, version)))


@pytest.fixture(scope="session")
def kafka_391() -> Iterator[KafkaCluster]:
    """One broker of the oldest release, shared as `kafka` is (schedule.py)."""
    with _cluster(1, OLD) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers, the default version. A test that stops one starts it again."""
    with _cluster(3, NEW) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_secure(authority: Authority) -> Iterator[KafkaCluster]:
    """One broker, the default version, with listeners for SASL and TLS and ACLs (secure_tools.py); shared as well."""
    from tests.support.secure_tools import secure_cluster

    with secure_cluster(authority) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def java_tool() -> JavaTool:
    from tests.lab.kafka import run_tool

    return run_tool


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses, so that tests can share a cluster."""
    return f"{re.sub('[^a-zA-Z0-9._-]', '-', request.node.name)[:60]}-{uuid.uuid4().hex[:8]}"
