"""Shared fixtures: real Kafka clusters, started when the first test asks and stopped at the end of the session.

Nothing heavy is imported here, so that a run of unit tests alone stays quick.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest
import structlog

# A checkout runs what is written there, unless asked for what has been compiled from it (quota/compiled.py): tests ask,
# for whatever runs in this process and in those that it starts. KQUOTA_PURE=1 runs them with the Python code.
os.environ.setdefault("KQUOTA_PURE", "0")

from proxy import lane

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

    from deploy.kafka import KafkaCluster
    from tests.certificates import Authority

    JavaTool = Callable[..., subprocess.CompletedProcess[str]]


LONG: Final = (
    "test_soak",
    "test_faults_system",
    "test_analysis_stream",
    "test_faults",
    "test_request_time_on_the_wire",
    "test_sasl_clients",
    "test_transparency",
    "test_transparency_brokers",
    "test_analysis_plans",
    "test_analysis_cluster",
    "test_analysis_cli",
    "test_export",
    "test_demo",
)
"""Files that take minutes, begun first: at the end no worker is left with one of them while the others have none."""

SPARK_LIMIT_S = 900
"""A test that is ended in the middle of a word with Java takes all later ones of its worker with it: better late."""


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors; the one exception is a client library's own habit, named here."""
    # kafka-python reads its schemas with a function that Python 3.11 deprecates and Python 3.13 takes back.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real brokers and clients on a small, busy machine stumble now and then: two more tries, told in the summary.

    In CI every other test has one more, as many of them start processes and wait for them. A defect of ours fails each
    time; one that comes and goes shows as R in the summary of run after run.

    Whatever a Spark session collects comes over a socket that PySpark leaves to the garbage collector to close
    (`pyspark.util._load_from_socket`), and so does kafka-python with its wake-up pair when no broker answers
    (`kafka.net.selector`). For files with a session or with brokers, and only for them, that is no error.
    """
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    leaving = {
        item.path for item in items if "spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("broker")
    }
    for item in items:
        if item.path in leaving:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_LIMIT_S))
        if item.get_closest_marker("broker") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2))
        elif os.environ.get("CI"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Sidecars that run inside a test set up the process's logs (`deploy.logs`): the next test finds them as ever."""
    yield
    structlog.reset_defaults()


@pytest.fixture(params=["compiled", "pure"])
def data_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Proxies of this process with their compiled lane, and without: the test runs once with each."""
    kind: str = request.param
    if kind == "pure":
        monkeypatch.setattr("proxy.connection.lane_for", lambda *_: None)
        monkeypatch.setattr("proxy.reactor.loop_for", lambda *_: None)
    elif not lane.COMPILED:
        pytest.skip(f"the lane is not compiled: {lane.WHY_NOT}")  # in CI tests/test_lane_build.py fails then
    return kind


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_to_the_garbage_collector() -> Iterator[None]:
    """What a file's tests forgot to close fails them, not whichever test happens to run when it is collected."""
    with warnings.catch_warnings():
        # Of the file before, what a client library's thread held on to until after its end (kafka-python's sockets).
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    yield
    gc.collect()


@contextmanager
def _cluster(brokers: int, version: str) -> Iterator[KafkaCluster]:
    from deploy.kafka import KafkaCluster

    # pytest captures this: it is shown only when the start fails.
    with KafkaCluster.start(brokers, version, progress=print) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker, the default version. Shared: use topics and groups of your own, see `topic`."""
    with _cluster(1, "4.2.0") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_391() -> Iterator[KafkaCluster]:
    """One broker of the last 3.9 release, which still serves the old protocol versions. It, and those below, ends with
    the file that wants it: a broker that nobody asks anything takes 4 % of a core."""
    with _cluster(1, "3.9.1") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers, the default version. Whoever stops one starts it again before the test ends."""
    with _cluster(3, "4.2.0") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Issues the certificates of the secured cluster and of its clients."""
    from tests.certificates import Authority

    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka_secure(authority: Authority) -> Iterator[KafkaCluster]:
    """One broker, the default version, with SASL_PLAINTEXT, SASL_SSL and SSL listeners and ACLs: tests/secure_tools.py.

    `bootstrap` is the operator's plain listener, `bootstrap_of("SASL_SSL")` and so on are what clients use.
    """
    from tests.secure_tools import secure_cluster

    with secure_cluster(authority) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def java_tool() -> JavaTool:
    """`deploy.kafka.run_tool`: Kafka's own Java programs."""
    from deploy.kafka import run_tool

    return run_tool


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name no other test uses, so that tests can share a cluster."""
    import re
    import uuid

    return f"{re.sub('[^a-zA-Z0-9._-]', '-', request.node.name)[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for all tests of the jobs. Without a Java that can run it they fail: they are never skipped."""
    from analysis.session import open_session

    small = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Queries over a handful of rows: compiling them takes longer than interpreting them. What is submitted to a
        # cluster (test_analysis_cluster.py) is compiled.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    session = open_session("local[2]", "1g", small)
    yield session
    session.stop()
