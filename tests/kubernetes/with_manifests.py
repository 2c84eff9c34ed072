"""The manifests for people without Helm, applied as they are but for the images and the brokers."""

from __future__ import annotations

import secrets
from typing import Final

from tests.kubernetes import workloads
from tests.kubernetes.image_store import name_of
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, deployment, producer, statuses
from tests.support.chart_tools import PLAIN
from tests.support.waiting import until

REPLACED: Final = {
    "image: kquota:0.2.0": f"image: {name_of('kquota')}",
    'image: "kquota:0.2.0"': f"image: {name_of('kquota')}",
    'image: "apache/kafka:4.2.0"': f"image: {name_of('kafka')}",
    "- kafka-0.kafka:9092": f"- {BROKER}",
    "      - kafka-1.kafka:9092\n": "",
    "--num-records=100000": "--num-records=30000",
}


def apply(node: Node, name: str, namespace: str) -> None:
    text = (PLAIN / name).read_text()
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    workloads.namespace(node, namespace)
    node.kubectl("apply", "--namespace", namespace, "--filename", "-", given=text)


def test_the_demo_of_sidecar_yaml_is_throttled_and_completes(node: Node) -> None:
    apply(node, "sidecar.yaml", "plain-sidecar")
    node.kubectl("wait", "--namespace=plain-sidecar", "job", "--all", "--for=condition=complete", "--timeout=180s")
    (pod,) = node.pods("plain-sidecar")
    assert {one["state"]["terminated"]["exitCode"] for one in statuses(pod).values()} == {0}
    where = ["--namespace=plain-sidecar", workloads.name_of_pod(pod)]
    assert "30000 records sent" in node.kubectl("logs", *where, "--container=producer")
    assert "throttling begins" in node.kubectl("logs", *where, "--container=kquota")
    node.kubectl("delete", "namespace", "plain-sidecar", "--wait=false")


def test_clients_get_through_the_gateway_of_gateway_yaml(node: Node) -> None:
    workloads.namespace(node, "plain-gateway")
    key = f"--from-literal=key={secrets.token_hex(32)}"  # as the manifest's first lines say
    node.kubectl("create", "secret", "generic", "kquota-fleet", "--namespace=plain-gateway", key)
    apply(node, "gateway.yaml", "plain-gateway")
    node.kubectl("rollout", "status", "--namespace=plain-gateway", "deployment/kquota", "--timeout=150s")
    shop = deployment("shop", producer("plain-gateway", bootstrap="kquota:9092"))
    node.apply(shop, namespace="plain-gateway")
    pod = workloads.ready_pod(node, "plain-gateway", "app=shop")

    def acknowledged() -> bool:
        lines = workloads.log_lines(node, "plain-gateway", workloads.name_of_pod(pod), "app", "--tail=1")
        return bool(lines) and lines[-1]["acknowledged"] > 1000

    until(acknowledged, lambda: workloads.describe(node, "plain-gateway"), 90)
    node.kubectl("delete", "namespace", "plain-gateway", "--wait=false")
