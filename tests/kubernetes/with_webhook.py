"""Injection on a real node: pods of charts that know nothing of kquota, by the label of their namespace.

The second half is transparent mode: the application keeps its brokers' addresses, an init container redirects them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, IMAGES, deployment, job, metrics, name_of_pod, producer, statuses
from tests.support.waiting import until

SYSTEM: Final = "kquota-system"
ORDERS: Final = "orders"
DIRECT: Final = "direct"
LABEL: Final = "kquota.io/injection=enabled"


def values(namespace: str, **config: Any) -> dict[str, Any]:
    return {
        **IMAGES,
        "config": {"upstream": {"bootstrap": [BROKER]}, "drain_timeout_s": 20} | config,
        "quotas": [{"client-id": "<default>", "producer_byte_rate": RATE}],
        "webhook": {"enabled": True, "namespaces": [namespace], "replicas": 2},
    }


@pytest.fixture(scope="module")
def webhook(node: Node, chart: Path) -> Iterator[Release]:
    workloads.namespace(node, SYSTEM)
    workloads.namespace(node, ORDERS)
    release = Release(node, chart, SYSTEM, "kquota")
    began = time.monotonic()
    release.helm("install", values(ORDERS), "--wait", "--timeout=180s")
    print(f"helm install --wait of the webhook: {time.monotonic() - began:.1f} s")
    node.kubectl("label", "namespace", ORDERS, LABEL)
    yield release
    release.uninstall()


def test_deployment_of_another_chart_gets_its_sidecar(node: Node, webhook: Release) -> None:
    began = time.monotonic()
    node.apply(deployment("orders", producer("orders")), namespace=ORDERS)
    orders = Release(node, Path(), ORDERS)
    pod = orders.pod("app=orders")
    print(f"applied to ready: {time.monotonic() - began:.1f} s")
    assert pod["metadata"]["labels"]["kquota.io/injected"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota"]
    until(lambda: throttled_s(node, pod) > 5, limit_s=90)
    orders.settled_rate(pod, RATE)
    webhook.helm("upgrade", values(ORDERS) | {"quotas": [{"client-id": "orders", "producer_byte_rate": 3 * RATE}]})
    orders.settled_rate(pod, 3 * RATE)
    assert {one["restartCount"] for one in statuses(orders.pod("app=orders")).values()} == {0}


def test_job_of_another_chart_completes(node: Node, webhook: Release) -> None:
    node.apply(job("nightly", producer("orders-nightly", "--records=2000")), namespace=ORDERS)
    node.kubectl("wait", "--namespace", ORDERS, "job/nightly", "--for=condition=complete", "--timeout=120s")
    (pod,) = node.pods(ORDERS, "app=nightly")
    assert {name: one["state"]["terminated"]["exitCode"] for name, one in statuses(pod).items()} == {
        "kquota": 0,
        "app": 0,
    }
    found = workloads.read_topic(node, "orders-nightly")[name_of_pod(pod)]
    assert found == {"records": 2000, "missing": [], "repeated": []}


def test_pod_that_opts_out_and_other_namespaces_are_left_alone(node: Node, webhook: Release) -> None:
    plain = deployment("plain", workloads.container("client", ["sleep", "infinity"]), terminationGracePeriodSeconds=1)
    plain["spec"]["template"]["metadata"]["labels"]["kquota.io/inject"] = "false"
    node.apply(plain, namespace=ORDERS)
    pod = workloads.ready_pod(node, ORDERS, "app=plain")
    assert pod["metadata"]["labels"]["kquota.io/injection-skipped"] == "opted-out"
    assert "initContainers" not in pod["spec"]
    node.apply(plain, namespace="kafka")
    pod = workloads.ready_pod(node, "kafka", "app=plain")
    assert "kquota.io/injection-skipped" not in pod["metadata"]["labels"]
    for namespace in (ORDERS, "kafka"):
        node.kubectl("delete", "deployment", "plain", "--namespace", namespace)


def test_without_the_webhook_pods_wait_and_it_comes_back_by_itself(node: Node, webhook: Release) -> None:
    """failurePolicy Fail: no pod without a sidecar; the webhook's own pods are exempt."""
    chosen = "app.kubernetes.io/component=webhook"
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=0")
    until(lambda: not node.pods(SYSTEM, chosen), limit_s=90)
    node.kubectl("delete", "pod", "--namespace", ORDERS, "--selector=app=orders", "--timeout=90s")

    def refused() -> bool:
        events = node.kubectl("get", "events", "--namespace", ORDERS, "--field-selector=reason=FailedCreate")
        return "failed calling webhook" in events

    until(refused, limit_s=60)
    assert not node.pods(ORDERS, "app=orders")
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=2")
    pod = workloads.ready_pod(node, ORDERS, "app=orders")
    assert pod["metadata"]["labels"]["kquota.io/injected"]
    node.kubectl("delete", "deployment", "orders", "--namespace", ORDERS, "--timeout=90s")


def throttled_s(node: Node, pod: dict[str, Any]) -> float:
    found = metrics(node, pod)
    return sum(value for name, value in found.items() if name.startswith("kquota_throttle_seconds_total"))


def test_transparent_mode_redirects_what_the_application_connects_to(node: Node, chart: Path, webhook: Release) -> None:
    """The init container needs NET_ADMIN, so the namespace allows it; the application knows the brokers alone."""
    workloads.namespace(node, DIRECT)
    node.kubectl("label", "--overwrite", "namespace", DIRECT, "pod-security.kubernetes.io/enforce=privileged")
    release = Release(node, chart, DIRECT, "direct")
    settings = values(DIRECT, mode="transparent", transparent={"networks": ["10.98.0.0/24"]})
    settings["redirect"] = IMAGES["redirect"] | {"ports": [9092], "networks": ["10.98.0.0/24"]}
    release.helm("install", settings, "--wait", "--timeout=180s")
    node.kubectl("label", "namespace", DIRECT, LABEL)
    node.apply(deployment("direct", producer("direct", bootstrap=BROKER)), namespace=DIRECT)
    pod = release.pod("app=direct")
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota-redirect", "kquota"]
    until(lambda: throttled_s(node, pod) > 5, lambda: release.sidecar_log(pod), 90)
    release.settled_rate(pod, RATE)
    node.kubectl("delete", "deployment", "direct", "--namespace", DIRECT, "--timeout=90s")
    release.uninstall()
