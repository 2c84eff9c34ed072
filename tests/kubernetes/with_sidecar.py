"""A pod with the sidecar on a real node: order of start and end, limits, Jobs, changed quotas, bad files."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import GRACE_S, RATE, Release, installed, kquota, shop_values
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import metrics, name_of_pod, statuses
from tests.support.waiting import until

NAMESPACE: Final = "shop"
KUBELET_S: Final = 150
"""Longer than the kubelet takes to bring a changed ConfigMap."""
BAD: Final = [
    {"client-id": "<default>", "producer_byte_rate": 500_000},
    {"client-id": "<default>", "producer_byte_rate": 1},
]
"""Two entries for one client-id: words that the chart's schema knows, in a file that kquota refuses."""


@pytest.fixture(scope="module")
def release(node: Node, shop: Path) -> Iterator[Release]:
    with installed(node, shop, NAMESPACE, shop_values()) as running:
        yield running


@pytest.fixture
def pod(release: Release) -> dict[str, Any]:
    return release.pod()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_sidecar_is_started_before_the_application(pod: dict[str, Any]) -> None:
    parts = statuses(pod)
    assert parts["kquota"]["started"], parts["kquota"]
    assert at(parts["kquota"]["state"]["running"]["startedAt"]) <= at(parts["app"]["state"]["running"]["startedAt"])
    assert {one["restartCount"] for one in parts.values()} == {0}
    (ready,) = [one for one in pod["status"]["conditions"] if one["type"] == "Ready"]
    took = at(ready["lastTransitionTime"]) - at(pod["metadata"]["creationTimestamp"])
    print(f"created to Ready: {took.total_seconds():.0f} s")


def test_image_holds_compiled_kquota_and_little_else(node: Node, pod: dict[str, Any]) -> None:
    code = "import importlib.util as i; from quota import compiled; print(compiled.description(), "
    code += "[name for name in ('pip', 'setuptools', 'pyspark', 'tests', 'Cython') if i.find_spec(name)])"
    where = ["--namespace", NAMESPACE, name_of_pod(pod), "--container=kquota"]
    assert node.kubectl("exec", *where, "--", "python3", "-c", code) == "compiled []\n"


def test_sidecar_has_no_privileges(node: Node, pod: dict[str, Any]) -> None:
    """What the kernel says of the process, under the Pod Security Standard "restricted"."""
    ask = "print(open('/proc/1/status').read()); open('/etc/x', 'w')"
    where = ["--namespace", NAMESPACE, name_of_pod(pod), "--container=kquota"]
    done = node.try_kubectl("exec", *where, "--", "python3", "-c", ask)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["65532"] * 4, status
    assert status["Gid"].split() == ["65532"] * 4, status
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}, status
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), status
    assert "Read-only file system: '/etc/x'" in done.stderr, done.stderr


def test_top_and_explain_find_the_sidecar_by_its_pod(node: Node, release: Release, pod: dict[str, Any]) -> None:
    release.settled_rate(pod, RATE, 0.3)
    name = f"{NAMESPACE}/{name_of_pod(pod)}"
    top = kquota(node, "top", "--pod", name, "--json")
    assert "orders" in top, top
    answer = kquota(node, "explain", "--pod", name, "--client-id", "orders")
    assert "producer_byte_rate" in answer, answer


def test_changed_configmap_applies_without_restart(node: Node, release: Release, pod: dict[str, Any]) -> None:
    release.helm("upgrade", shop_values(3 * RATE))
    began = time.monotonic()
    until(lambda: "configuration reloaded" in release.sidecar_log(pod), lambda: release.sidecar_log(pod), KUBELET_S)
    print(f"in force {time.monotonic() - began:.1f} s after helm upgrade")
    release.settled_rate(pod, 3 * RATE)
    after = release.pod()
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert {one["restartCount"] for one in statuses(after).values()} == {0}
    release.helm("upgrade", shop_values())
    release.settled_rate(pod, RATE)


def test_bad_file_is_stopped_before_anything_changes(node: Node, release: Release, pod: dict[str, Any]) -> None:
    before = node.object("configmap", "shop-kquota", NAMESPACE)["metadata"]["resourceVersion"]
    done = release.try_upgrade(shop_values(quotas=BAD))
    assert done.returncode != 0
    assert "pre-upgrade hooks failed" in done.stderr, done.stderr
    answer = node.kubectl("logs", "--namespace", NAMESPACE, "shop-kquota-check")
    assert "kquota.yaml" in answer, answer
    assert "quotas" in answer, answer
    assert node.object("configmap", "shop-kquota", NAMESPACE)["metadata"]["resourceVersion"] == before
    assert metrics(node, pod)["kquota_config_last_reload_successful"] == 1


def test_bad_file_that_got_past_the_check_stops_new_pods_alone(
    node: Node, release: Release, pod: dict[str, Any]
) -> None:
    release.helm("upgrade", shop_values(quotas=BAD, check={"enabled": False}))
    until(lambda: metrics(node, pod)["kquota_config_last_reload_successful"] == 0, limit_s=KUBELET_S)
    release.settled_rate(pod, RATE)
    node.kubectl("scale", "deployment/shop", "--namespace", NAMESPACE, "--replicas=2")

    def refused() -> dict[str, Any] | None:
        found = [one for one in node.pods(NAMESPACE, "app=shop") if name_of_pod(one) != name_of_pod(pod)]
        return found[0] if found and statuses(found[0]).get("kquota", {}).get("restartCount", 0) >= 1 else None

    new = until(refused, lambda: workloads.describe(node, NAMESPACE), 120)
    ended = statuses(new)["kquota"]["lastState"]["terminated"]
    assert ended["exitCode"] == 2, ended
    assert "quotas" in ended["message"], ended
    assert "running" not in statuses(new)["app"]["state"]
    node.kubectl("scale", "deployment/shop", "--namespace", NAMESPACE, "--replicas=1")
    release.helm("upgrade", shop_values())
    until(lambda: metrics(node, pod)["kquota_config_last_reload_successful"] == 1, limit_s=KUBELET_S)
    until(lambda: len(node.pods(NAMESPACE, "app=shop")) == 1, limit_s=KUBELET_S)
    assert {one["restartCount"] for one in statuses(release.pod()).values()} == {0}


def test_job_with_a_sidecar_completes(node: Node, shop: Path) -> None:
    workloads.namespace(node, "nightly")
    nightly = Release(node, shop, "nightly", "nightly")
    job = ["--topic=nightly", "--records=3000", "--client-id=nightly"]
    nightly.helm("install", shop_values() | {"replicas": 0, "job": job})
    node.kubectl("wait", "--namespace=nightly", "job/nightly", "--for=condition=complete", "--timeout=150s")
    (pod,) = node.pods("nightly", "app=nightly")
    assert pod["status"]["phase"] == "Succeeded"
    parts = {name: one["state"]["terminated"] for name, one in statuses(pod).items()}
    assert {name: one["exitCode"] for name, one in parts.items()} == {"kquota": 0, "app": 0}
    assert at(parts["app"]["finishedAt"]) <= at(parts["kquota"]["finishedAt"])
    workloads.assert_records(node, "nightly", 3000, name_of_pod(pod))
    nightly.uninstall()


def test_sidecar_ends_after_the_application(node: Node, release: Release, pod: dict[str, Any]) -> None:
    """What the application still holds when it gets SIGTERM is acknowledged through the sidecar."""
    release.settled_rate(pod, RATE, 0.3)
    with release.following(pod, "app", "kquota") as said:
        began = time.monotonic()
        node.kubectl("delete", "pod", name_of_pod(pod), "--namespace", NAMESPACE, "--timeout=90s")
        took = time.monotonic() - began
    done = json.loads(said["app"][-1].split(" ", 1)[1])
    ends = {container: lines[-1].split()[0] for container, lines in said.items()}
    assert ends["app"] < ends["kquota"]
    assert took < GRACE_S
    workloads.assert_exactly(node, "shop", done, name_of_pod(pod))
