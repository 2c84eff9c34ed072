"""A real Prometheus scrapes a sidecar and evaluates our rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.prometheus_tools import prometheus, rules, value
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import get, sidecar

pytestmark = pytest.mark.long


def test_prometheus_scrapes_and_evaluates_every_rule(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    quotas = [{"client-id": "greedy", "producer_byte_rate": 20_000}]
    with sidecar(kafka.bootstrap, quotas) as running, prometheus(running, tmp_path) as url:
        assert wait_for("a first scrape", lambda: value(url, 'up{job="kquota"}')) == 1
        seconds = 'kquota_throttle_seconds_total{client_id="greedy",cause="produce"}'
        with RawClient(f"127.0.0.1:{running.port}", "greedy") as client:
            name = client.topic(topic)
            # Known before it is throttled: of a series that begins above zero, rate() cannot see the beginning.
            assert wait_for("its series", lambda: value(url, f"{seconds} == bool 0")) == 1
            # 400 000 B in 10 s are 40 000 B/s, (40 000 - 20 000) / 20 000 * 10 s = 10 s
            told = client.ask(produce_message(9, name, [b"x" * 400_000])).message
        assert told.throttle_time_ms > 1000  # what is left of it once the broker has answered
        assert wait_for("the throttle", lambda: value(url, f"{seconds} > 0")) == pytest.approx(10, rel=0.02)
        ratio = 'kquota:throttle:ratio_rate5m{client_id="greedy",cause="produce",namespace="shop",pod="shop-0"}'
        assert wait_for("the recorded rate", lambda: value(url, f"{ratio} > 0")) > 0
        found = get(f"{url}/api/v1/rules").json()["data"]["groups"]
        health = {
            rule["name"]: (rule["health"], rule.get("lastError", "")) for group in found for rule in group["rules"]
        }
        assert health == {rule.get("alert") or rule["record"]: ("ok", "") for rule in rules()}
        # (It is on its way only until the client's silence outweighs its burst.)
        pending = 'max_over_time(ALERTS{alertname="KquotaQuotaNearlyUsedUp"}[5m])'
        assert wait_for("the alert on its way", lambda: value(url, pending)) == 1
