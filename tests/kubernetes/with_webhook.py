"""Injection on a real node: pods of charts that know nothing of kquota, by one label of their namespace.

The webhook makes its own certificate, brings the configuration, and takes quotas of a namespace into it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, IMAGES, container, deployment, job, name_of_pod, statuses, throttled_s
from tests.support.waiting import until

SYSTEM: Final = "kquota-system"
ORDERS: Final = "orders"
LENIENT: Final = "lenient"
LABEL: Final = "kquota.io/injection=enabled"
SECRET: Final = "kquota-webhook-certificate"
WEBHOOK_POD: Final = "app.kubernetes.io/component=webhook"
ORDERS_POD: Final = "app.kubernetes.io/name=orders"


def values(rate: float = RATE) -> dict[str, Any]:
    return {
        **IMAGES,
        "config": {"upstream": {"bootstrap": [BROKER]}, "drain_timeout_s": 20},
        "quotas": [{"client-id": "<default>", "producer_byte_rate": rate}],
        "webhook": {"enabled": True},
    }


@pytest.fixture(scope="module")
def webhook(node: Node, chart: Path) -> Iterator[Release]:
    workloads.namespace(node, SYSTEM)
    release = Release(node, chart, SYSTEM, "kquota")
    began = time.monotonic()
    release.helm("install", values(), "--wait", "--timeout=180s")
    print(f"helm install --wait of the webhook: {time.monotonic() - began:.1f} s")
    yield release
    release.uninstall()


@pytest.fixture(scope="module")
def orders(node: Node, webhook: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart that `helm create` makes, with an image of ours: written by the makers of Helm, not by us."""
    folder = tmp_path_factory.mktemp("charts")
    node.helm("create", folder / "orders")
    workloads.namespace(node, ORDERS)
    node.kubectl("label", "--overwrite", "namespace", ORDERS, LABEL)
    release = Release(node, folder / "orders", ORDERS, "orders")
    release.values = {
        "image": {"repository": "localhost/client", "tag": "test", "pullPolicy": "Never"},
        "livenessProbe": None,
        "readinessProbe": None,
        "securityContext": workloads.RESTRICTED,
    }
    began = time.monotonic()
    release.helm("install", release.values)
    release.pod(ORDERS_POD)
    print(f"helm install of another chart to Ready: {time.monotonic() - began:.1f} s")
    yield release
    release.uninstall()


def authorities(node: Node) -> set[str]:
    """What the API server trusts when it calls the webhook."""
    (configuration,) = [
        one
        for one in node.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations").json()["items"]
        if one["metadata"]["name"].startswith("kquota")
    ]
    return {one["clientConfig"].get("caBundle", "") for one in configuration["webhooks"]}


def test_one_label_is_enough_for_the_chart_of_others(node: Node, webhook: Release, orders: Release) -> None:
    pod = orders.pod(ORDERS_POD)
    assert pod["metadata"]["labels"]["kquota.io/injected"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota"]
    assert [one["name"] for one in pod["spec"]["containers"]] == ["orders"]
    until(lambda: throttled_s(node, pod) > 5, lambda: orders.sidecar_log(pod), 90)
    print(f"{orders.settled_rate(pod, RATE):,.0f} of {RATE:,.0f} B/s")


def test_changed_quotas_reach_namespace_without_upgrade(node: Node, webhook: Release, orders: Release) -> None:
    pod = orders.pod(ORDERS_POD)
    webhook.helm("upgrade", values(3 * RATE))
    orders.settled_rate(pod, 3 * RATE)
    webhook.helm("upgrade", values())
    orders.settled_rate(pod, RATE)
    after = orders.pod(ORDERS_POD)
    assert name_of_pod(after) == name_of_pod(pod)
    assert {one["restartCount"] for one in statuses(after).values()} == {0}


def test_job_of_another_chart_completes(node: Node, webhook: Release, orders: Release) -> None:
    node.apply(job("nightly", workloads.producer("orders-nightly", "--records=2000")), namespace=ORDERS)
    node.kubectl("wait", "--namespace", ORDERS, "job/nightly", "--for=condition=complete", "--timeout=120s")
    (pod,) = node.pods(ORDERS, "app=nightly")
    assert {name: one["state"]["terminated"]["exitCode"] for name, one in statuses(pod).items()} == {
        "kquota": 0,
        "app": 0,
    }
    found = workloads.read_topic(node, "orders-nightly")[name_of_pod(pod)]
    assert found == {"records": 2000, "missing": [], "repeated": []}


def test_failure_policy_is_each_namespaces_own(node: Node, webhook: Release, orders: Release) -> None:
    """`Fail`: no pod without a sidecar; `Ignore`: pods without. The webhook comes back by itself, as its own pods are
    exempt, here with a new certificate: its Secret is gone as well."""
    workloads.namespace(node, LENIENT)
    node.kubectl("label", "namespace", LENIENT, LABEL, "kquota.io/failure-policy=Ignore")
    before = authorities(node)
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=0")
    until(lambda: not node.pods(SYSTEM, WEBHOOK_POD), limit_s=90)
    node.kubectl("delete", "secret", SECRET, "--namespace", SYSTEM)
    sleeping = container("client", ["sleep", "infinity"])
    node.apply(deployment("plain", sleeping, terminationGracePeriodSeconds=1), namespace=LENIENT)
    assert "initContainers" not in workloads.ready_pod(node, LENIENT, "app=plain")["spec"]
    began = time.monotonic()
    node.kubectl("delete", "pod", "--namespace", ORDERS, f"--selector={ORDERS_POD}", "--timeout=90s")

    def refused() -> bool:
        events = node.kubectl("get", "events", "--namespace", ORDERS, "--field-selector=reason=FailedCreate")
        return "failed calling webhook" in events

    until(refused, limit_s=60)
    assert not node.pods(ORDERS, ORDERS_POD)
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=2")
    node.kubectl("rollout", "status", "--namespace", SYSTEM, "deployment/kquota-webhook", "--timeout=150s")
    # The controller doubles its pause after each refusal: once more as long as it has been refused, at most.
    pod = workloads.ready_pod(node, ORDERS, ORDERS_POD, time.monotonic() - began + workloads.POD_LIMIT_S)
    assert pod["metadata"]["labels"]["kquota.io/injected"]
    authority = base64.b64decode(node.object("secret", SECRET, SYSTEM)["data"]["ca.crt"])
    assert all(base64.b64decode(one).startswith(authority) for one in authorities(node))
    assert authorities(node) != before
