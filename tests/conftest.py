"""The folder says which kind a test is, and is its marker. tests/README.md says which kind goes where.

Nothing heavy is imported here, so that a run of unit tests alone stays quick.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import hypothesis
import pytest
import structlog

# A checkout runs what is written there, unless asked for what has been compiled from it (quota/compiled.py): tests ask,
# for whatever runs in this process and in those that it starts. KQUOTA_PURE=1 runs them with the Python code.
os.environ.setdefault("KQUOTA_PURE", "0")
# jsonschema would make 38 grammars of URIs for checks of formats, which no test asks for: a second of each process.
cast("dict[str, Any]", sys.modules)["rfc3987_syntax"] = None

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    from tests.support.certificates import Authority

HERE: Final = Path(__file__).parent

FOLDERS: Final = ("unit", "loopback", "system", "broker", "spark")

BEGUN_FIRST: Final = (
    "test_analysis_plans", "test_analysis_jobs", "test_analysis_cluster", "test_soak", "test_transparency",
    "test_fleet", "test_mutations_clients", "test_quota_admin_kafka", "test_throttle_on_the_wire", "test_sasl_clients",
    "test_mutations_brokers", "test_demo", "test_project_tools", "test_export", "test_faults", "test_transparent_kafka",
    "test_ui", "test_benchmarks_tiny", "test_tls_brokers", "test_compiled_build",
)  # fmt: skip
"""Files that take longest: no worker is left with one of them at the end while the others have none."""

SPARK_LIMIT_S = 900
"""A test that is stopped while it waits for Java breaks all later ones of its worker: better late."""


hypothesis.settings.register_profile("dev", deadline=None)
# The same examples in every run: a change fails for what it changed, and not for what chance found in old code.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors; the one exception is a client library's own habit, named here."""
    # kafka-python reads its schemas with a function that Python 3.11 deprecates and Python 3.13 takes back.
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")
    if "PYTEST_XDIST_WORKER" in os.environ:
        share_ports(
            int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        )


def share_ports(worker: int, workers: int) -> None:
    """Give this worker a part of the range of ports, so that no two choose the same one before either has bound it."""
    from tests.lab.kafka.ports import RANGE, port_range

    low, high = port_range()
    width = (high - low + 1) // workers
    os.environ[RANGE] = f"{low + worker * width}-{low + (worker + 1) * width - 1}"


def folder_of(path: Path) -> str | None:
    first = path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""
    return first if first in FOLDERS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever a Spark session collects comes over a socket that PySpark leaves to the garbage collector to close
    (`pyspark.util._load_from_socket`), and so does kafka-python with its wake-up pair when no broker answers
    (`kafka.net.selector`). For tests with a session or with brokers, and only for them, that is no error.
    """
    items.sort(key=begun)
    for item in items:
        folder = folder_of(item.path)
        if folder is not None:
            item.add_marker(folder)
        if folder in ("broker", "spark"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if folder == "spark" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_LIMIT_S))


def begun(item: pytest.Item) -> int:
    name = item.path.stem
    return BEGUN_FIRST.index(name) if name in BEGUN_FIRST else len(BEGUN_FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Files stay together, but for the exceptions of tests/support/schedule.py."""
    from tests.support.schedule import Groups

    return Groups(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """What is there before the first test stays: the collections of garbage between files need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Sidecars that run inside a test set up logging (`proxy.app.common.logs`): the next test finds it as ever."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_to_the_garbage_collector() -> Iterator[None]:
    """What a file's tests forgot to close fails them, not whichever test happens to run when it is collected."""
    with warnings.catch_warnings():
        # Of the file before, what a client library's thread held on to until after its end (kafka-python's sockets).
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    yield
    gc.collect()
    gc.freeze()  # the next file's collections look at its own objects, not at all that was imported so far


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    from tests.support.certificates import Authority

    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=("openssl", "python"))
def tls_by(request: pytest.FixtureRequest) -> Iterator[str]:
    """Sidecars in this process do TLS by calling OpenSSL, then by Python's `ssl`."""
    from tests.support.tls_pairs import IMPLEMENTATIONS, done_by

    if request.param not in IMPLEMENTATIONS:
        pytest.skip(f"TLS is done by {', '.join(IMPLEMENTATIONS)} alone here")
    with done_by(request.param):
        yield request.param
