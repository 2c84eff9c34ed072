"""What an outage does to new pods, running pods and Helm: the table of docs/injection.md, cell by cell."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import yaml

from tests.kubernetes import workloads
from tests.kubernetes.injected import ORDERS, ORDERS_POD, SYSTEM, WEBHOOK_POD, start_webhook, stop_webhook, values
from tests.kubernetes.installed import Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import container, container_id, is_ready, name_of_pod, statuses
from tests.support.chart_tools import manifest
from tests.support.waiting import until

READY_S = 90.0
ROUNDS = 12
"""Pods created while one replica of the webhook ends."""


def pod_of(name: str) -> str:
    spec = {"containers": [container("client", ["sleep", "infinity"])], "terminationGracePeriodSeconds": 1}
    return yaml.safe_dump(manifest("Pod", name, labels={"app": name}, spec=spec))


def new_pod(node: Node, namespace: str, name: str) -> str:
    """What becomes of a pod that is created now: its containers once it is ready, or the refusal."""
    began = time.monotonic()
    created = node.try_kubectl("create", f"--namespace={namespace}", "--filename=-", given=pod_of(name))
    if created.returncode != 0:
        return created.stderr
    try:
        found = statuses(workloads.ready_pod(node, namespace, f"app={name}", READY_S))
        print(f"{namespace}/{name} is ready after {time.monotonic() - began:.1f} s")
    finally:
        node.kubectl("delete", "pod", name, f"--namespace={namespace}", "--wait=false")
    return ", ".join(found)


@contextmanager
def undisturbed(orders: Release) -> Iterator[dict[str, Any]]:
    """The running pod is neither restarted nor unready while the block runs, and goes on after it."""
    pod = orders.pod(ORDERS_POD)
    ready = [one for one in pod["status"]["conditions"] if one["type"] == "Ready"]
    yield pod
    began = time.monotonic()
    orders.await_progress(pod)
    print(f"1 000 records more {time.monotonic() - began:.1f} s after the outage")
    after = orders.pod(ORDERS_POD)
    assert [one for one in after["status"]["conditions"] if one["type"] == "Ready"] == ready
    assert {name: container_id(after, name) for name in statuses(after)} == {
        name: container_id(pod, name) for name in statuses(pod)
    }


def repaired(node: Node, webhook: Release) -> None:
    """Upgrade and rollback pass, with the pod that checks the configuration, in a namespace with the label."""
    assert node.object("namespace", SYSTEM)["metadata"]["labels"]["kquota.io/injection"] == "enabled"
    began = time.monotonic()
    webhook.helm("upgrade", values())
    node.helm("rollback", "kquota", "--namespace", SYSTEM)
    print(f"helm upgrade and rollback: {time.monotonic() - began:.1f} s")


def test_webhook_is_down(node: Node, webhook: Release, orders: Release, lenient: str) -> None:
    with undisturbed(orders) as pod:
        stop_webhook(node)
        try:
            assert "failed calling webhook" in new_pod(node, ORDERS, "strict")
            assert new_pod(node, lenient, "lenient") == "app"
            orders.await_progress(pod)
            repaired(node, webhook)  # the chart's replicas are back
            node.kubectl("rollout", "status", f"--namespace={SYSTEM}", "deployment/kquota-webhook", "--timeout=150s")
        finally:
            start_webhook(node)
        assert new_pod(node, ORDERS, "afterwards") == "kquota, app"


def _is_created(node: Node, name: str) -> bool:
    create = ("create", f"--namespace={ORDERS}", "--filename=-", "--dry-run=server")
    return node.try_kubectl(*create, given=pod_of(name)).returncode == 0


def test_one_replica_of_the_webhook_ends(node: Node, webhook: Release, orders: Release) -> None:
    (first, _) = node.pods(SYSTEM, WEBHOOK_POD)
    with undisturbed(orders):
        node.kill(container_id(first, "webhook"), signal.SIGKILL)
        for number in range(ROUNDS):
            # Until its endpoint is gone a call may be refused by the killed replica: a controller asks again, as here.
            until(partial(_is_created, node, f"p{number}"), limit_s=15.0)
            time.sleep(0.6)


def test_kafka_is_down(node: Node, webhook: Release, orders: Release, lenient: str) -> None:
    (broker,) = node.pods("kafka", "app=kafka")
    with undisturbed(orders):
        node.kill(container_id(broker, "kafka"), signal.SIGSTOP)
        try:
            assert new_pod(node, ORDERS, "without-kafka") == "kquota, app"
            repaired(node, webhook)
        finally:
            node.kill(container_id(broker, "kafka"), signal.SIGCONT)


def test_dns_is_down(node: Node, webhook: Release, orders: Release, lenient: str) -> None:
    with undisturbed(orders) as pod:
        node.stop("coredns")
        try:
            assert new_pod(node, ORDERS, "without-dns") == "kquota, app"
            orders.await_progress(pod)
            repaired(node, webhook)
        finally:
            node.start("coredns")


def test_api_server_is_down(node: Node, webhook: Release, orders: Release) -> None:
    with undisturbed(orders) as pod:
        before = orders.said(pod, "--tail=1")[-1]
        node.stop("kube-apiserver", signal.SIGKILL)
        down = time.time()
        try:
            assert "refused" in new_pod(node, ORDERS, "without-api-server")
            assert webhook.try_upgrade(values()).returncode != 0
            time.sleep(15)
        finally:
            up = time.time()
            node.start("kube-apiserver")
            until(node.api_ready, limit_s=90)
        lines = [one for one in orders.said(pod) if down <= one["at"] <= up]
        assert lines[-1]["acknowledged"] > before["acknowledged"] + 1000
        until(lambda: is_ready(orders.pod(ORDERS_POD)), limit_s=90)
        assert new_pod(node, ORDERS, f"after-{name_of_pod(pod)[-5:]}") == "kquota, app"
