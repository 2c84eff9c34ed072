"""Prometheus finds the sidecars by asking the API server for pods."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.kubernetes import programs, workloads
from tests.kubernetes.installed import Release, installed, shop_values
from tests.kubernetes.node import ADDRESS, Node
from tests.kubernetes.workloads import name_of_pod
from tests.support.chart_tools import manifest
from tests.support.waiting import answered, until

NAMESPACE: Final = "monitored"
URL: Final = f"http://{ADDRESS}:9090"


@pytest.fixture(scope="module")
def release(node: Node, shop: Path) -> Iterator[Release]:
    values = shop_values(topic="monitored", prometheusAnnotations=True)
    with installed(node, shop, NAMESPACE, values) as running:
        yield running


def discovery(node: Node, namespaces: list[str]) -> dict[str, Any]:
    """How Prometheus finds pods: from the API server, as a service account that may look at pods and nothing else."""
    workloads.namespace(node, "monitoring")
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "prometheus"}
    node.apply(manifest("ServiceAccount", "prometheus"), namespace="monitoring")
    node.apply(
        manifest("ClusterRole", "prometheus", f"{rbac}/v1", rules=[rule]),
        manifest("ClusterRoleBinding", "prometheus", f"{rbac}/v1", subjects=[subject], roleRef=role),
    )
    token = node.kubectl("create", "token", "prometheus", "--namespace=monitoring").strip()
    return {
        "role": "pod",
        "api_server": f"https://{ADDRESS}:6443",
        "tls_config": {"ca_file": str(node.authority)},
        "authorization": {"credentials": token},
        "namespaces": {"names": namespaces},
    }


def scrape_configs(discovered: dict[str, Any]) -> list[dict[str, Any]]:
    """By pods' annotations, as Prometheus finds them without the operator; and by the port, as in the PodMonitor."""
    named = [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]
    annotation, ip = "__meta_kubernetes_pod_annotation_prometheus_io", "__meta_kubernetes_pod_ip"
    by_annotation = [
        {"source_labels": [f"{annotation}_scrape"], "action": "keep", "regex": "true"},
        {"source_labels": [f"{annotation}_path"], "target_label": "__metrics_path__"},
        {"source_labels": [ip, f"{annotation}_port"], "separator": ":", "target_label": "__address__"},
    ]
    by_port = [
        {"source_labels": ["__meta_kubernetes_pod_labelpresent_kquota_io_config"], "action": "keep", "regex": "true"},
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "action": "keep", "regex": "kquota-metrics"},
    ]
    return [
        {"job_name": name, "kubernetes_sd_configs": [discovered], "relabel_configs": [*chosen, *named]}
        for name, chosen in (("annotation", by_annotation), ("port", by_port))
    ]


@pytest.fixture(scope="module")
def prometheus(node: Node, release: Release) -> Iterator[str]:
    folder = node.folder / "prometheus"
    folder.mkdir(exist_ok=True)
    scraped = scrape_configs(discovery(node, [NAMESPACE, "kafka"]))
    config = {"global": {"scrape_interval": "2s"}, "scrape_configs": scraped}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    node.start(
        "prometheus", programs.prometheus(), f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address={ADDRESS}:9090", "--log.level=warn",
    )  # fmt: skip
    yield URL
    node.stop("prometheus", signal.SIGKILL)


def asked(node: Node, path: str, **query: str) -> Any:
    """The data of an answer; None as long as there is none."""
    answer = answered(lambda: node.http(f"{URL}/api/v1/{path}", **query))
    return answer.json()["data"] if answer is not None and answer.status_code == 200 else None  # 503 while it starts


def test_sidecars_are_found_and_scraped(node: Node, release: Release, prometheus: str) -> None:
    pod = name_of_pod(release.pod())

    def up() -> dict[str, str]:
        found = asked(node, "query", query=f'up{{namespace="{NAMESPACE}", pod="{pod}"}}') or {"result": []}
        return {one["metric"]["job"]: one["value"][1] for one in found["result"]}

    def explain() -> str:
        return f"{up()}\n{asked(node, 'targets')}\n{node.log('prometheus')}"

    until(lambda: up() == {"annotation": "1", "port": "1"}, explain, 90)
