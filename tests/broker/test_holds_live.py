"""Requests that wait before they are forwarded, as a real sidecar shows them: JSON, text, metrics, the page."""

import re
import time
from typing import Any

from typer.testing import CliRunner

from proxy.app.cli.main import app
from tests.lab.kafka import KafkaCluster
from tests.support.browser import Browse, text
from tests.support.raw_client import RawClient, produce_message
from tests.support.sidecars import sidecar
from tests.support.waiting import in_background, until

RATE = 20_000


def test_counts_waiting_request_on_new_connection(kafka: KafkaCluster, topic: str, browse: Browse) -> None:
    quotas = [{"client-id": "greedy", "producer_byte_rate": RATE}]
    names = {"user": "ANONYMOUS", "client_id": "greedy"}
    group = {"kind": "produce", "user": "", "client_id": "greedy"}
    with (
        sidecar(kafka.bootstrap, quotas, max_mute="1s") as running,
        RawClient(f"127.0.0.1:{running.port}", "greedy") as first,
        RawClient(f"127.0.0.1:{running.port}", "greedy") as second,
        browse() as driver,
    ):
        name = first.topic(topic)
        second.topic(topic)
        explain = ["explain", "--admin", running.admin, "--client-id", "greedy"]
        top = ["top", "--once", "--admin", running.admin]
        # All that is looked at has to fit into the debt: what takes its time only once is done before.
        for arguments in (explain, top):
            CliRunner().invoke(app, arguments)
        driver.get(f"{running.admin}/ui")
        until(lambda: text(driver, "#status").startswith("ready"), "the page")
        # 20 s' worth: (40 - 20) / 20 * 10 s is 10 s of debt, of which 1 s is announced
        begun_at = time.monotonic()
        answer = first.ask(produce_message(9, name, [b"x" * 20 * RATE]), 60)
        took_ms = (answer.first_byte_at - begun_at) * 1000
        assert 999 - took_ms <= answer.message.throttle_time_ms <= 1000  # what is left of it when the response comes
        asked_at = time.monotonic()
        answer_of_second = in_background(second.ask, produce_message(9, name, [b"x" * 100]), 60)

        def waiting() -> list[dict[str, Any]]:
            return [one for one in running.get("/connections")["connections"] if one["state"] == "waiting"]

        until(waiting, "a connection that waits")
        seen_at = time.monotonic()
        until(lambda: "1 waiting" in text(driver, "#groups"), "its counter")
        until(lambda: "waits" in text(driver, "#connections"), "its connection")
        until(lambda: "1 connection waits, the next passes in" in text(driver, "#held"), "its line")
        assert ", 1 waiting" in text(driver, "#status")
        (one,) = waiting()
        assert (one["waiting_for"], one["muted_for_ms"]) == ("produce", 0)
        assert one["waited_ms"] >= 0
        (row,) = [each for each in running.get("/quotas")["groups"] if each["kind"] == "produce"]
        assert row["waiting"] == 1
        assert 0 < row["next_ms"] <= 10_000
        shown = CliRunner().invoke(app, explain).stdout
        assert "1 waiting for the group's debt" in shown
        assert re.search(r"1 connection waits; the next passes in \d.*s; the group owes \d", shown), shown
        shown = CliRunner().invoke(app, top).stdout
        assert "1 waiting)" in shown.splitlines()[0]
        assert "1 waiting" in shown.split("produce", 1)[1]
        assert running.metric("kquota_connections_waiting") == 1
        assert running.metric("kquota_quota_waiting_connections", **group) == 1
        assert running.metric("kquota_held_requests_total", cause="produce", **names) == 0
        waited_s = answer_of_second.result(60).last_byte_at - asked_at
        assert waited_s < 20
        time.sleep(1.1)  # an exposition is kept for a second
        assert running.metric("kquota_throttle_capped_total", cause="produce") >= 1
        assert running.metric("kquota_connections_waiting") == 0
        assert running.metric("kquota_quota_waiting_connections", **group) == 0
        assert running.metric("kquota_held_requests_total", cause="produce", **names) == 1
        held_s = running.metric("kquota_held_seconds_total", cause="produce", **names)
        # The first was charged after `begun_at`, and the second came before `seen_at`. A debt of up to 200 ms delays
        # no request.
        assert begun_at + 9.7 - seen_at < held_s <= waited_s
        shown = CliRunner().invoke(app, explain).stdout
        assert re.search(r"waited \d.*s before it was forwarded: the group was in debt", shown)
