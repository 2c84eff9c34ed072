"""A gateway on a real node: two replicas behind a Service, a rolling update, a disruption budget that holds."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import NAME, Node
from tests.kubernetes.workloads import BROKER, IMAGES, deployment, is_ready, name_of_pod, producer
from tests.support.waiting import until

NAMESPACE: Final = "gateway"
CHOSEN: Final = "app.kubernetes.io/component=gateway"


def values(version: str = "1") -> dict[str, Any]:
    return {
        **IMAGES,
        "mode": "gateway",
        "config": {"upstream": {"bootstrap": [BROKER]}, "drain_timeout_s": 20},
        "gateway": {"podAnnotations": {"example.com/version": version}},
        "quotas": [{"client-id": "<default>", "producer_byte_rate": RATE}],
    }


@pytest.fixture(scope="module")
def gateway(node: Node, chart: Path) -> Iterator[Release]:
    workloads.namespace(node, NAMESPACE)
    release = Release(node, chart, NAMESPACE, "gateway")
    release.helm("install", values(), "--wait", "--timeout=180s")
    yield release
    release.uninstall()


def test_helm_test_passes(node: Node, gateway: Release) -> None:
    said = node.helm("test", "gateway", "--namespace", NAMESPACE)
    assert "Succeeded" in said, said


def test_rolling_update_loses_and_repeats_no_record(node: Node, gateway: Release) -> None:
    names = [f"shop-{number}" for number in range(3)]
    for name in names:
        application = producer("gateway", f"--client-id={name}", bootstrap="gateway-kquota:9092")
        node.apply(deployment(name, application), namespace=NAMESPACE)
    pods = [gateway.pod(f"app={name}") for name in names]
    for pod in pods:
        gateway.await_progress(pod)
    before = {name_of_pod(one) for one in node.pods(NAMESPACE, CHOSEN)}
    assert len(before) == 2
    began = time.monotonic()
    gateway.helm("upgrade", values("2"), "--wait", "--timeout=240s")
    until(lambda: not before & {name_of_pod(one) for one in node.pods(NAMESPACE, CHOSEN)}, limit_s=120)
    print(f"both replicas replaced in {time.monotonic() - began:.1f} s")
    for pod in pods:
        gateway.await_progress(pod)
        with gateway.following(pod, "app") as said:
            node.kubectl("delete", "deployment", pod["metadata"]["labels"]["app"], "--namespace", NAMESPACE)
        done = json.loads(said["app"][-1].split(" ", 1)[1])
        workloads.assert_exactly(node, "gateway", done, name_of_pod(pod))


def test_disruption_budget_lets_one_replica_go_at_a_time(node: Node, gateway: Release) -> None:
    first, second = sorted(name_of_pod(one) for one in node.pods(NAMESPACE, CHOSEN))
    node.kubectl("cordon", NAME)
    try:
        assert evict(node, first) == ""
        assert "disruption budget" in evict(node, second)
    finally:
        node.kubectl("uncordon", NAME)
    until(lambda: [is_ready(one) for one in node.pods(NAMESPACE, CHOSEN)] == [True, True], limit_s=180)


def evict(node: Node, pod: str) -> str:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    done = node.try_kubectl("create", "--raw", path, "--filename", "-", given=json.dumps(body))
    return done.stderr if done.returncode else ""
