"""What goes wrong on nodes: a sidecar killed, out of memory or stuck, kubelet and runtime restarted, a drain."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import GRACE_S, RATE, Release, installed, shop_values
from tests.kubernetes.node import NAME, Node
from tests.kubernetes.workloads import container_id, is_ready, metrics, name_of_pod, statuses
from tests.support.waiting import until

NAMESPACE: Final = "faults"
MEMORY: Final = "160Mi"
FILLED: Final = "/var/lib/kquota/filled"
QUICK_PROBES: Final[dict[str, dict[str, Any]]] = {
    "readiness": {"path": "/readyz", "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 2},
    "liveness": {"periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 3},
}
SETTINGS: Final[dict[str, Any]] = {
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": MEMORY}},
    "probes": QUICK_PROBES,
    "state": {"volume": {"emptyDir": {"medium": "Memory"}}},
}


@pytest.fixture(scope="module")
def release(node: Node, shop: Path) -> Iterator[Release]:
    with installed(node, shop, NAMESPACE, shop_values(topic="faults", **SETTINGS)) as running:
        yield running


@pytest.fixture
def pod(release: Release) -> dict[str, Any]:
    found = release.pod()
    release.await_progress(found)
    return found


def restarted(node: Node, before: dict[str, Any]) -> dict[str, Any]:
    """The pod, once its sidecar has been restarted and it is ready again; the application was not touched."""
    count = statuses(before)["kquota"]["restartCount"]

    def look() -> dict[str, Any] | None:
        (now,) = node.pods(NAMESPACE, "app=shop")
        return now if statuses(now)["kquota"]["restartCount"] > count and is_ready(now) else None

    after: dict[str, Any] = until(look, lambda: workloads.describe(node, NAMESPACE), 120)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert container_id(after, "app") == container_id(before, "app")
    return after


@pytest.mark.parametrize("fault", ["killed", "out of memory", "stuck"])
def test_broken_sidecar_is_restarted_and_the_application_goes_on(
    node: Node, release: Release, pod: dict[str, Any], fault: str
) -> None:
    began = time.monotonic()
    where = ["--namespace", NAMESPACE, name_of_pod(pod), "--container=kquota", "--", "python3", "-c"]
    if fault == "killed":
        node.kill(container_id(pod, "kquota"), signal.SIGKILL)
    elif fault == "stuck":  # readiness goes first, then liveness; the application's records wait for it
        node.kill(container_id(pod, "kquota"), signal.SIGSTOP)
        until(lambda: not is_ready(node.pods(NAMESPACE, "app=shop")[0]), limit_s=60)
    else:  # a volume in memory counts for the container that writes to it; the kernel ends its largest process
        fill = f"file = open('{FILLED}', 'wb'); [file.write(bytes(2**20)) for _ in range(1000)]"
        node.try_kubectl("exec", *where, fill)
    after = restarted(node, pod)
    print(f"{fault} to ready again: {time.monotonic() - began:.1f} s")
    ended = statuses(after)["kquota"]["lastState"]["terminated"]
    if fault == "out of memory":
        node.kubectl("exec", *where, f"import os; os.remove('{FILLED}')")
        assert ended["reason"] == "OOMKilled", ended
    if fault != "stuck":
        assert ended["exitCode"] == 137, ended
    release.await_progress(after)
    assert not [line for line in release.said(after) if line["what"] == "failed"]


def test_missing_broker_makes_pods_unready_not_restarted(
    node: Node, shop: Path, release: Release, pod: dict[str, Any]
) -> None:
    """A pod with the chart's own readiness stays in its Services meanwhile."""
    readiness = {name: value for name, value in QUICK_PROBES["readiness"].items() if name != "path"}
    steady_values = shop_values(topic="steady", probes=QUICK_PROBES | {"readiness": readiness})
    (broker,) = node.pods("kafka", "app=kafka")
    with installed(node, shop, "steady", steady_values) as steady:
        other = steady.pod()
        steady.await_progress(other)
        node.kill(container_id(broker, "kafka"), signal.SIGSTOP)
        try:
            until(lambda: not is_ready(node.pods(NAMESPACE, "app=shop")[0]), limit_s=90)
            until(lambda: metrics(node, other)["kquota_ready"] == 0, limit_s=90)
            time.sleep(10)  # longer than liveness takes to give up
            (now,) = node.pods("steady", "app=shop")
        finally:
            node.kill(container_id(broker, "kafka"), signal.SIGCONT)
        (condition,) = [one for one in now["status"]["conditions"] if one["type"] == "Ready"]
        before = [one for one in other["status"]["conditions"] if one["type"] == "Ready"]
        assert [condition] == before  # since the start, without a break
        assert statuses(steady.pod())["kquota"]["restartCount"] == 0
        steady.await_progress(other)
    after = release.pod()
    assert statuses(after)["kquota"]["restartCount"] == statuses(pod)["kquota"]["restartCount"]
    release.await_progress(after)


def test_running_pods_survive_kubelet_and_runtime_restart(node: Node, release: Release, pod: dict[str, Any]) -> None:
    for name, number in (("kubelet", signal.SIGKILL), ("containerd", signal.SIGKILL)):
        node.stop(name, number)
    time.sleep(3)
    node.start("containerd")
    last = [name_of_pod(pod), "--container=app", "--tail=1"]

    def kubelet_is_back() -> bool:
        """It ends as long as the runtime is not ready; its service would start it again."""
        if not node.order("state", name="kubelet")["running"]:
            node.start("kubelet")
        return node.kubelet_answers() and node.try_kubectl("logs", "--namespace", NAMESPACE, *last).returncode == 0

    until(kubelet_is_back, lambda: node.log("kubelet"), 120)
    release.await_progress(pod)
    after = release.pod()
    assert {name: container_id(after, name) for name in statuses(after)} == {
        name: container_id(pod, name) for name in statuses(pod)
    }
    # The kubelet is at work again: it brings a changed ConfigMap to the pod that it found running.
    release.helm("upgrade", shop_values(2 * RATE, "faults", **SETTINGS))
    release.settled_rate(after, 2 * RATE)
    release.helm("upgrade", release.values)
    release.settled_rate(after, RATE)


def test_drain_of_a_node_with_throttled_clients_loses_nothing(
    node: Node, release: Release, pod: dict[str, Any]
) -> None:
    release.settled_rate(pod, RATE, 0.3)
    with release.following(pod, "app", "kquota") as said:
        began = time.monotonic()
        node.kubectl("drain", NAME, f"--pod-selector=shop={NAMESPACE}", "--delete-emptydir-data", "--timeout=120s")
        took = time.monotonic() - began
    print(f"drained in {took:.1f} s of {GRACE_S} s: {said['app'][-1]} {said['kquota'][-1]}")
    try:
        assert took < GRACE_S
        done = json.loads(said["app"][-1].split(" ", 1)[1])
        workloads.assert_exactly(node, "faults", done, name_of_pod(pod))
        waiting = until(lambda: [one for one in node.pods(NAMESPACE) if one["status"]["phase"] == "Pending"])
        assert "spec" in waiting[0]
        assert "nodeName" not in waiting[0]["spec"]
    finally:
        node.kubectl("uncordon", NAME)
    release.await_progress(release.pod())
