"""Our alerting and recording rules, and a real Prometheus that evaluates them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.lab.kafka.ports import free_ports
from tests.support.programs import program
from tests.support.sidecars import Sidecar, get
from tests.support.waiting import answered

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "kquota.rules.yaml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@contextmanager
def prometheus(running: Sidecar, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes this sidecar every second, with our rules; its URL."""
    (port,) = free_ports(1)
    target = {"targets": [running.admin.removeprefix("http://")], "labels": {"namespace": "shop", "pod": "shop-0"}}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "kquota", "static_configs": [target]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [program("prometheus", "prometheus"), f"--config.file={folder}/prometheus.yaml", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def value(url: str, query: str) -> float | None:
    """The value of the one series that a query gives; None if there is none yet, or Prometheus is not up yet."""
    answer = answered(lambda: get(f"{url}/api/v1/query", params={"query": query}))
    found = answer.json()["data"]["result"] if answer is not None and answer.status_code == 200 else []
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else None
