"""Transparent mode on a real node: the application keeps its brokers' addresses, an init container redirects them."""

from pathlib import Path
from typing import Final

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, IMAGES, deployment, producer, throttled_s
from tests.support.waiting import until

DIRECT: Final = "direct"
PODS: Final = "10.98.0.0/24"


def test_transparent_mode_redirects_the_application(node: Node, chart: Path) -> None:
    """The init container needs NET_ADMIN, so the namespace allows it; the application knows the brokers alone."""
    node.import_images("kquota-redirect")
    workloads.namespace(node, DIRECT)
    node.kubectl("label", "--overwrite", "namespace", DIRECT, "pod-security.kubernetes.io/enforce=privileged")
    release = Release(node, chart, DIRECT, "direct")
    settings = {
        **IMAGES,
        "config": {
            "upstream": {"bootstrap": [BROKER]},
            "drain_timeout_s": 20,
            "mode": "transparent",
            "transparent": {"networks": [PODS]},
        },
        "redirect": IMAGES["redirect"] | {"ports": [9092], "networks": [PODS]},
        "quotas": [{"client-id": "<default>", "producer_byte_rate": RATE}],
        "webhook": {"enabled": True, "namespaces": [DIRECT]},
    }
    release.helm("install", settings, "--wait", "--timeout=180s")
    node.kubectl("label", "namespace", DIRECT, "kquota.io/injection=enabled")
    node.apply(deployment("direct", producer("direct", bootstrap=BROKER)), namespace=DIRECT)
    pod = release.pod("app=direct")
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["kquota-redirect", "kquota"]
    until(lambda: throttled_s(node, pod) > 5, lambda: release.sidecar_log(pod), 90)
    release.settled_rate(pod, RATE)
    node.kubectl("delete", "deployment", "direct", "--namespace", DIRECT, "--timeout=90s")
    release.uninstall()
