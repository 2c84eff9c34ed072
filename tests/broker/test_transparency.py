"""Real client work gives the same results through the sidecar as without it, and no connection goes around it."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proxy.core.wire.apis import api_name
from tests.corpus import ITEMS
from tests.corpus.connections import Connection, ConnectionWatch
from tests.lab.kafka import KafkaCluster
from tests.lab.releases import NEW, OLD, RUN
from tests.support.raw_client import RawClient
from tests.support.sidecars import sidecar
from tests.support.waiting import until

CLUSTERS = [pytest.param(version, marks=[] if version == NEW else [pytest.mark.long]) for version in RUN]
"""The new one has three brokers (most other tests have one of it), the others have one."""
MARK = "KQUOTA_TEST_CORPUS"
LIMIT_S = 600.0
pytestmark = pytest.mark.timeout(900)


def offered_items(cluster: KafkaCluster) -> list[str]:
    """Items whose needs its brokers meet."""
    from kafka.protocol.metadata import ApiVersionsRequest

    with RawClient(cluster.bootstrap[0]) as client:
        answer = client.ask(ApiVersionsRequest(version=0)).message
    newest = {api_name(each.api_key): each.max_version for each in answer.api_keys}
    return [
        name for name, entry in ITEMS.items() if all(newest.get(api, -1) >= least for api, least in entry.needs.items())
    ]


@dataclass
class Run:
    """What both processes found on one cluster."""

    version: str
    """Of its brokers."""
    direct: dict[str, Any]
    through: dict[str, Any]
    learned_direct: set[tuple[str, str, int]]
    learned_through: set[tuple[str, str, int]]
    connected_direct: set[Connection]
    connected_through: set[Connection]
    connected_python: set[tuple[str, int]]
    """Addresses that Python itself says the clients through the sidecar connected to."""
    brokers: set[tuple[str, int]]
    sidecar: set[tuple[str, int]]
    metrics: dict[tuple[str, str], float]
    """(metric, its first label's value or "") -> value, of the sidecar's metrics without buckets."""


@pytest.fixture(scope="module", params=CLUSTERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The corpus run on a cluster, once for all tests."""
    version: str = request.param
    shared = {NEW: "kafka3", OLD: "kafka_391"}
    cluster: KafkaCluster = (
        request.getfixturevalue(shared[version]) if version in shared else request.getfixturevalue("kafka_of")(version)
    )
    return run_corpus(cluster, offered_items(cluster), tmp_path_factory.mktemp(version))


def await_coordinator(cluster: KafkaCluster) -> None:
    """Have the offsets topic made before many clients at once ask for it."""
    from kafka.protocol.metadata import FindCoordinatorRequest

    def found() -> bool:
        with RawClient(cluster.bootstrap[0]) as client:
            return bool(client.ask(FindCoordinatorRequest(version=1, key="corpus", key_type=0)).message.error_code == 0)

    until(found, "a group coordinator")


def run_corpus(cluster: KafkaCluster, items: list[str], folder: Path) -> Run:
    await_coordinator(cluster)
    with sidecar(cluster.bootstrap) as proxy, ConnectionWatch(MARK) as watch:
        marks = {way: f"{way}-{uuid.uuid4().hex[:6]}" for way in ("direct", "through")}
        children = {
            "direct": _start(",".join(cluster.bootstrap), marks["direct"], cluster, items, folder),
            "through": _start(proxy.bootstrap, marks["through"], cluster, items, folder),
        }
        try:
            for way, child in children.items():
                code = child.wait(LIMIT_S)
                log = (folder / f"{marks[way]}.log").read_text()
                assert code == 0, log[-5000:]
                print(log)  # pytest shows it with a failure
                assert "Exception ignored" not in log, log  # warnings are errors, also where they cannot be caught
        finally:
            for child in children.values():
                if child.poll() is None:
                    child.kill()
                    child.wait()
        # The children have ended, the sidecar learns of it in its own time.
        until(lambda: proxy.metric("kquota_connections_open") == 0, "all connections to be closed")
        found = {way: json.loads((folder / f"{mark}.json").read_text()) for way, mark in marks.items()}
        learned = {way: {(who, host, port) for who, host, port in found[way]["learned"]} for way in found}
        return Run(
            version=cluster.version,
            direct=found["direct"]["results"],
            through=found["through"]["results"],
            learned_direct=learned["direct"],
            learned_through=learned["through"],
            connected_direct=watch.seen(marks["direct"]),
            connected_through=watch.seen(marks["through"]),
            connected_python={(host, port) for host, port in found["through"]["connected"]},
            brokers={(node.host, node.port) for node in cluster.nodes},
            sidecar=proxy.broker_addresses(),
            metrics={(one.name, next(iter(one.labels.values()), "")): one.value for one in proxy.samples()},
        )


def _start(bootstrap: str, mark: str, cluster: KafkaCluster, items: list[str], folder: Path) -> subprocess.Popen[bytes]:
    # kafka-python 3 uses functions that Python 3.11 deprecates, and leaves a socket open when it is closed while it
    # connects; everything else is an error, as in pytest itself.
    warnings = ["-W", "error", "-W", "ignore:unclosed <socket:ResourceWarning"]
    for name in ("open_text", "read_text"):
        warnings += ["-W", f"ignore:{name} is deprecated:DeprecationWarning"]
    job = {"bootstrap": bootstrap, "prefix": mark, "version": cluster.version, "brokers": len(cluster.nodes)}
    arguments = [json.dumps(job), str(folder / f"{mark}.json"), *items]
    command = [sys.executable, *warnings, "-m", "tests.corpus", *arguments]
    with (folder / f"{mark}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, MARK: mark}, cwd=Path(__file__).parents[2]
        )


def test_corpus_has_the_same_results(run: Run) -> None:
    assert run.direct.keys() == run.through.keys() >= {name for name, entry in ITEMS.items() if not entry.needs}
    for name, direct in run.direct.items():
        through = run.through[name]
        assert "failure" not in direct, f"{name} without the sidecar:\n{direct['failure']}"
        assert "failure" not in through, f"{name} through the sidecar:\n{through['failure']}"
        assert direct["result"] not in (None, [], {}), name
        assert through["result"] == direct["result"], name


def test_retries_are_rare_and_not_the_sidecars(run: Run) -> None:
    """Clients have bad moments of their own; through the sidecar at most one more than directly."""
    again = {
        way: {name for name, found in results.items() if "first_failure" in found}
        for way, results in (("direct", run.direct), ("through", run.through))
    }
    assert len(again["through"]) <= len(again["direct"]) + 1, again
    assert len(again["direct"]) <= 3, again


def test_no_connection_goes_around_the_sidecar(run: Run) -> None:
    around = {each for each in run.connected_through if (each.host, each.port) not in run.sidecar}
    assert around == set()
    assert run.connected_python <= run.sidecar
    assert len(run.connected_python) == len(run.brokers) + 1
    programs = {each.program for each in run.connected_through}
    assert {"java", "python"} <= {program.split("3")[0] for program in programs}, "JVMs and Python were both watched"
    # The watch does see connections to brokers where there are some, and clients do go to every broker.
    assert {(each.host, each.port) for each in run.connected_direct} == run.brokers
    assert len({each.port for each in run.connected_through}) == len(run.brokers) + 1  # and the bootstrap listener


def test_clients_learn_only_the_sidecars_addresses(run: Run) -> None:
    assert {(host, port) for _, host, port in run.learned_direct} == run.brokers
    assert {each for each in run.learned_through if each[1:] not in run.sidecar} == set()
    # The same questions were answered with as many addresses.
    assert len({each[1:] for each in run.learned_through}) == len(run.brokers)
    assert sorted(each[0] for each in run.learned_through) == sorted(each[0] for each in run.learned_direct)


def test_sidecar_counts_no_errors(run: Run) -> None:
    metrics = run.metrics
    closed = {label for (name, label), count in metrics.items() if name == "kquota_connections_closed_total" and count}
    assert closed <= {"client_closed", "client_reset"}
    assert sum(count for (name, _), count in metrics.items() if name == "kquota_parse_errors_total") == 0
    assert metrics["kquota_upstream_connect_failures_total", ""] == 0
    asked = {label for (name, label), count in metrics.items() if name == "kquota_requests_total" and count}
    assert {"Produce", "Fetch", "Metadata", "FindCoordinator", "DescribeCluster", "ApiVersions", "EndTxn"} <= asked
    share = {"ShareFetch", "ShareAcknowledge", "ShareGroupHeartbeat"}
    assert asked & share == (share if run.version != OLD else set()), "a preview in 4.0"
    assert "ConsumerGroupHeartbeat" in asked
