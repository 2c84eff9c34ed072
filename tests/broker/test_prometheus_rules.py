"""Alerting and recording rules: checked and unit-tested by promtool, explained in the runbook, fed with our metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.kafka import KafkaCluster
from deploy.kafka.ports import free_ports
from tests.corpus.job import wait_for
from tests.support.exposition import everything
from tests.support.programs import program
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import Sidecar, sidecar

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "kquota.rules.yaml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@pytest.fixture(scope="module")
def promtool() -> str:
    return program("promtool", "prometheus")


def run(promtool: str, *arguments: str) -> str:
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_the_rules(promtool: str) -> None:
    assert f"{len(rules())} rules found" in run(promtool, "check", "rules", RULES.name)


def test_each_alert_fires_when_it_shall_and_only_then(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "kquota.rules.test.yaml")
    tests = yaml.safe_load((FOLDER / "kquota.rules.test.yaml").read_text())["tests"]
    checks = [check for test in tests for check in test.get("alert_rule_test", [])]
    firing = {check["alertname"] for check in checks if check.get("exp_alerts")}
    assert firing == {rule["alert"] for rule in alerts()}


def test_a_broken_rule_is_noticed(promtool: str, tmp_path: Path) -> None:
    for name in (RULES.name, "kquota.rules.test.yaml"):
        shutil.copy(FOLDER / name, tmp_path)
    text = RULES.read_text()
    (tmp_path / RULES.name).write_text(text.replace("ratio_rate5m) > 0.25", "ratio_rate5m) > 0.75"))
    command = [promtool, "test", "rules", "kquota.rules.test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "KquotaClientThrottledForLong" in done.stdout + done.stderr


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_a_severity_and_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (\S+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower() for heading in headings]
    assert anchor == rule["alert"].lower()
    assert {"summary", "description"} <= rule["annotations"].keys()


def test_rules_use_metrics_that_exist() -> None:
    documented = set(re.findall(r"^\| `(kquota_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        used = set(re.findall(r"\bkquota[_:][\w:]+", rule["expr"]))
        assert used, rule
        assert used <= documented | recorded, rule


async def test_promtool_has_no_complaint_about_names_types_and_help(promtool: str) -> None:
    text = await everything()

    def check(data: bytes) -> tuple[int, str]:
        done = subprocess.run([promtool, "check", "metrics"], input=data, capture_output=True, timeout=60, check=False)
        return done.returncode, (done.stdout + done.stderr).decode()

    assert check(text) == (0, "")
    code, complaint = check(text.replace(b"kquota_quota_limit", b"kquota_quotaLimit"))
    assert code != 0
    assert "snake_case" in complaint


# --- a real Prometheus


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
    command = [
        program("prometheus", "prometheus"),
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
    ]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def value(url: str, query: str) -> float | None:
    """The value of the one series that a query gives; None if there is none yet, or Prometheus is not up yet."""
    try:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=10)
    except httpx.TransportError:
        return None
    found = answer.json()["data"]["result"] if answer.status_code == 200 else []
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else None


def test_a_real_prometheus_scrapes_the_sidecar_and_evaluates_every_rule(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    quotas = [{"client-id": "greedy", "producer_byte_rate": 20_000}]
    with sidecar(kafka.bootstrap, quotas) as running, prometheus(running, tmp_path) as url:
        assert wait_for("a first scrape", lambda: value(url, 'up{job="kquota"}')) == 1
        seconds = 'kquota_throttle_seconds_total{client_id="greedy",cause="produce"}'
        with RawClient(f"127.0.0.1:{running.port}", "greedy") as client:
            name = client.topic(topic)
            # Known before it is throttled: of a series that begins above zero, rate() cannot see the beginning.
            assert wait_for("its series", lambda: value(url, f"{seconds} == bool 0")) == 1
            # 250 000 B in 10 s are 25 000 B/s, (25 000 - 20 000) / 20 000 * 10 s = 2.5 s
            told = client.ask(produce_message(9, name, [b"x" * 250_000])).message
        assert told.throttle_time_ms > 1000  # what is left of it once the broker has answered
        assert wait_for("the throttle", lambda: value(url, f"{seconds} > 0")) == pytest.approx(2.5, rel=0.02)
        ratio = 'kquota:throttle:ratio_rate5m{client_id="greedy",cause="produce",namespace="shop",pod="shop-0"}'
        assert wait_for("the recorded rate", lambda: value(url, f"{ratio} > 0")) > 0
        found = httpx.get(f"{url}/api/v1/rules", timeout=10).json()["data"]["groups"]
        health = {
            rule["name"]: (rule["health"], rule.get("lastError", "")) for group in found for rule in group["rules"]
        }
        assert health == {rule.get("alert") or rule["record"]: ("ok", "") for rule in rules()}
        near = wait_for("the alert on its way", lambda: value(url, 'ALERTS{alertname="KquotaQuotaNearlyUsedUp"}'))
        assert near == 1
