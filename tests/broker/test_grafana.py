"""The Grafana dashboards: every query finds something in a Prometheus that scrapes a real sidecar."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.prometheus_tools import prometheus, rules, value
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import get, sidecar
from tests.support.waiting import until

FOLDER = Path(__file__).resolve().parents[2] / "deploy/grafana"
EMPTY_HERE = {
    "Throttles of the brokers' own quotas",  # this cluster has no quotas of its own
    "by the brokers themselves",
    "mutations",  # no client creates topics
    "tokens: {{user}} / {{client_id}} {{pod}}",
    "Connections refused, by limit",  # no limit is reached
    "Limits on trial",  # one event: of a series that begins with it, rate() sees nothing
    "Effect of limits on trial",
}
"""Panels or legends that may have nothing to show in this test."""
CHOSEN = {"namespace": ".*", "pod": ".*", "user": "ANONYMOUS", "client_id": "greedy"}
"""A client whose counter covers all users."""


def panels() -> list[tuple[str, dict[str, Any]]]:
    pages = sorted(FOLDER.glob("*.json"))
    return [(page.stem, panel) for page in pages for panel in json.loads(page.read_text())["panels"]]


@pytest.mark.long
def test_every_query_finds_something_in_a_real_prometheus(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    quotas = [
        {"client-id": "greedy", "producer_byte_rate": 20_000, "candidate": {"producer_byte_rate": 10_000}},
        {"client-id": "<default>", "producer_byte_rate": "1M", "request_percentage": 500},
        {"client-id": "shared", "producer_byte_rate": "1M", "scope": "fleet"},
        {"ip": "<default>", "connection_creation_rate": 1000},
    ]
    fleet = {"id": "grafana", "topic": "kquota-fleet-grafana"}
    with sidecar(kafka.bootstrap, quotas, fleet=fleet) as running, prometheus(running, tmp_path) as url:
        with RawClient(f"127.0.0.1:{running.port}", "greedy") as client:
            name = client.topic(topic)
            series = 'kquota_throttle_seconds_total{client_id="greedy",cause="produce"}==bool 0'
            until(lambda: value(url, series), "its series")
            client.ask(produce_message(9, name, [b"x" * 250_000]))
            # Whether it waits is known before the mute ends; it says no library.
            until(lambda: value(url, 'kquota_library_mutes_total{library="unknown"}'), "its library")
        with socket.create_connection(("127.0.0.1", running.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.recv(1)
        ratio = 'kquota:throttle:ratio_rate5m{client_id="greedy",cause="produce"}'
        until(lambda: value(url, f"{ratio} > 0"), "the recorded rate")

        def empty() -> set[str]:
            with RawClient(f"127.0.0.1:{running.port}", "shared") as client:
                client.ask(produce_message(9, client.topic(topic), [b"x" * 1000]))  # a group in use has a share
            found = set()
            for page, panel in panels():
                for target in panel["targets"]:
                    query = re.sub(r"\$(\w+)", lambda one: CHOSEN[one[1]], target["expr"])
                    answer = get(f"{url}/api/v1/query", params={"query": query}).json()
                    assert answer["status"] == "success", (page, panel["title"], query, answer)
                    if not answer["data"]["result"]:
                        found.add(panel["title"] if panel["title"] in EMPTY_HERE else target["legendFormat"])
            return found - EMPTY_HERE

        # Rates need two scrapes of a series: what has just happened is seen a moment later.
        until(lambda: not empty(), "something in every panel")
        assert empty() == set()
        groups = get(f"{url}/api/v1/rules").json()["data"]["groups"]
        health = {one["name"]: (one["health"], one.get("lastError", "")) for group in groups for one in group["rules"]}
        assert health == {one.get("alert") or one["record"]: ("ok", "") for one in rules()}
