"""Alerting and recording rules: checked and unit-tested by promtool, explained in the runbook, fed with our metrics."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.exposition import everything
from tests.support.programs import program
from tests.support.prometheus_tools import FOLDER, ROOT, RULES, rules


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


def promtool_test(given: dict[str, Any], known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One test as promtool reads it, of the same alerts at other times."""
    checks = []
    for name, alert in given["alerts"].items():
        rule, when = known[name], alert["when"]
        annotations = rule["annotations"] | {key: alert[key] for key in ("summary", "description") if key in alert}
        labels = rule["labels"] | {"instance": "a:9404"} | alert.get("labels", {})
        expected = {"exp_labels": {key: labels[key] for key in labels if labels[key]}, "exp_annotations": annotations}
        checks += [{"alertname": name, "eval_time": at} for at in when.get("quiet", [])]
        checks.append({"alertname": name, "eval_time": when["fires"], "exp_alerts": [expected]})
    return {
        "name": given["name"],
        "interval": given.get("interval", "1m"),
        "input_series": [{"series": name, "values": values} for name, values in given["series"].items()],
        "promql_expr_test": given.get("promql_expr_test", []),
        "alert_rule_test": checks,
    }


def test_each_alert_fires_exactly_when_due(promtool: str, tmp_path: Path) -> None:
    given = yaml.safe_load((ROOT / "tests/system/kquota.rules.test.yaml").read_text())
    known = {rule["alert"]: rule for rule in alerts()}
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    (file := tmp_path / "test.yaml").write_text(
        yaml.safe_dump(tests | {"tests": [promtool_test(one, known) for one in given]})
    )
    assert "SUCCESS" in run(promtool, "test", "rules", str(file))
    assert {name for one in given for name in one["alerts"]} == known.keys()


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
