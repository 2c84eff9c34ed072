"""Prometheus scrapes the sidecars of pods that the API server knows; the shipped rules raise an alert, and end it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from deploy.kubernetes.chart import CHART
from tests.kubernetes.installed import Release, installed, shop_values
from tests.kubernetes.node import ADDRESS, Node
from tests.kubernetes.with_sidecar import BAD
from tests.kubernetes.workloads import name_of_pod
from tests.support.waiting import until

NAMESPACE: Final = "monitored"
URL: Final = f"http://{ADDRESS}:9090"
RULES: Final = CHART / "files/rules/rules.yaml"


@pytest.fixture(scope="module")
def release(node: Node, shop: Path) -> Iterator[Release]:
    values = shop_values(topic="monitored", prometheusAnnotations=True)
    with installed(node, shop, NAMESPACE, values) as running:
        yield running


def targets(node: Node) -> list[dict[str, Any]]:
    """What discovery finds in the API server: by pods' annotations, and by the name of a container's port."""
    found = []
    for pod in node.get("/api/v1/pods").raise_for_status().json()["items"]:
        labels = {"namespace": pod["metadata"]["namespace"], "pod": name_of_pod(pod)}
        address, annotations = pod["status"].get("podIP"), pod["metadata"].get("annotations", {})
        if address and annotations.get("prometheus.io/scrape") == "true":
            port, path = (annotations[f"prometheus.io/{name}"] for name in ("port", "path"))
            more = {"job": "annotation", "__metrics_path__": path}
            found.append({"targets": [f"{address}:{port}"], "labels": labels | more})
        # A native sidecar is an init container: whoever looks for ports has to look there as well.
        containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
        ports = [port for one in containers for port in one.get("ports", []) if port.get("name") == "metrics"]
        if address and "kquota.io/config" in pod["metadata"].get("labels", {}):
            found += [
                {"targets": [f"{address}:{port['containerPort']}"], "labels": labels | {"job": "port"}}
                for port in ports
            ]
    return found


@pytest.fixture(scope="module")
def prometheus(node: Node, release: Release) -> Iterator[str]:
    """Debian's Prometheus. It is built without discovery by Kubernetes: what it follows is written by `targets`."""
    folder = node.folder / "prometheus"
    folder.mkdir(exist_ok=True)
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "pods", "file_sd_configs": [{"files": [f"{folder}/targets.json"]}]}],
    }
    (folder / "targets.json").write_text(json.dumps(targets(node)))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    node.start(
        "prometheus", "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={ADDRESS}:9090", "--log.level=warn",
    )  # fmt: skip
    yield URL
    node.stop("prometheus", signal.SIGKILL)


def asked(node: Node, path: str, **query: str) -> Any:
    """The data of an answer; None as long as there is none."""
    try:
        answer = node.http(f"{URL}/api/v1/{path}", **query)
    except httpx.TransportError:
        return None
    return answer.json()["data"] if answer.status_code == 200 else None  # 503 while it starts


def test_sidecars_are_found_and_scraped(node: Node, release: Release, prometheus: str) -> None:
    pod = name_of_pod(release.pod())

    def up() -> dict[str, str]:
        found = asked(node, "query", query=f'up{{namespace="{NAMESPACE}", pod="{pod}"}}') or {"result": []}
        return {one["metric"]["job"]: one["value"][1] for one in found["result"]}

    def explain() -> str:
        return f"{up()}\n{asked(node, 'targets')}\n{node.log('prometheus')}"

    until(lambda: up() == {"annotation": "1", "port": "1"}, explain, 90)


def test_alert_of_a_refused_file_fires_and_ends(node: Node, release: Release, prometheus: str) -> None:
    def state() -> str:
        alerts = (asked(node, "alerts") or {"alerts": []})["alerts"]
        found = {
            one["state"]
            for one in alerts
            if one["labels"]["alertname"] == "KquotaReloadRefused" and one["labels"]["namespace"] == NAMESPACE
        }
        return "".join(found)

    assert state() == ""
    more = {key: release.values["kquota"][key] for key in ("prometheusAnnotations",)}
    release.helm("upgrade", shop_values(topic="monitored", quotas=BAD, check={"enabled": False}, **more))
    until(lambda: state() == "firing", lambda: f"{state()}: {node.log('prometheus')}", 180)
    release.helm("upgrade", release.values)
    until(lambda: state() == "", state, 90)
