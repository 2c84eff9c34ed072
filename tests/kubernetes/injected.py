"""Injection by one label, installed on the node: the webhook's release, and another chart's with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, IMAGES
from tests.support.waiting import until

SYSTEM: Final = "kquota-system"
ORDERS: Final = "orders"
LENIENT: Final = "lenient"
LABEL: Final = "kquota.io/injection=enabled"
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
    workloads.namespace(node, SYSTEM, **{"kquota.io/injection": "enabled"})
    release = Release(node, chart, SYSTEM, "kquota")
    release.helm("install", values(), "--wait", "--timeout=180s")
    yield release
    stop_webhook(node)  # which does not keep it from being uninstalled
    release.uninstall()


def stop_webhook(node: Node) -> None:
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=0")
    until(lambda: not node.pods(SYSTEM, WEBHOOK_POD), limit_s=90)


def start_webhook(node: Node) -> None:
    node.kubectl("scale", "deployment/kquota-webhook", "--namespace", SYSTEM, "--replicas=2")
    node.kubectl("rollout", "status", "--namespace", SYSTEM, "deployment/kquota-webhook", "--timeout=150s")


@pytest.fixture(scope="module")
def lenient(node: Node, webhook: Release) -> str:
    workloads.namespace(node, LENIENT)
    node.kubectl("label", "--overwrite", "namespace", LENIENT, LABEL, "kquota.io/failure-policy=Ignore")
    return LENIENT


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
    release.helm("install", release.values)
    release.pod(ORDERS_POD)
    yield release
    release.uninstall()
