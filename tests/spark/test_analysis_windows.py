"""Kafka's arithmetic in window functions: the numbers of Kafka's tests, and whatever `kquota simulate` says of the
same events.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from analysis.jobs.whatif import decisions
from analysis.levels import Candidate, load_candidate
from analysis.windows import BLOCK, bucket_delays, burst_delays, window_delays
from config.load import load_bytes
from config.table import to_table
from deploy.cli.check import summary_json
from deploy.cli.simulate import run as simulate
from quota.burst import WindowedBurst
from quota.entity import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

EVENTS = "user string, client_id string, t_ms bigint, order bigint, amount double"


def delays(spark: SparkSession, limit: float, *events: tuple[int, float]) -> list[int]:
    rows = [("g", t_ms, order, float(amount), float(limit)) for order, (t_ms, amount) in enumerate(events)]
    frame = spark.createDataFrame(rows, "g string, t_ms bigint, order bigint, amount double, limit double")
    return [row["throttle_ms"] for row in window_delays(frame, ["g"]).orderBy("order").collect()]


def test_quota_violation_as_in_clientquotamanagertest(spark: SparkSession) -> None:
    # 400 each second for ten seconds: no delay. Then 2300 at 10.5 s: 6300 B / 10.5 s = 600 B/s,
    # (600 - 500) / 500 * 10 500 ms = 2100 ms
    events = [(t_ms, 400) for t_ms in range(0, 10_000, 1000)]
    assert delays(spark, 500, *events, (10_500, 2300)) == [0] * 10 + [2100]


def test_the_example_of_kip_13(spark: SparkSession) -> None:
    # 5 MB/s, 60 MB at once: 6 MB/s over 10 s, (6 - 5) / 5 * 10 s = 2 s
    assert delays(spark, 5e6, (7, 60e6)) == [2000]


def test_the_fence_post_and_the_end_of_a_sample(spark: SparkSession) -> None:
    # 500 each second: at the eleventh 5500 B in 10.0 s, (550 - 500) / 500 * 10 000 = 1000 ms.
    # At 22 s the samples up to 11 s are gone, since nothing came after 10 s all of them: 500 B / 10 s, no delay.
    assert delays(spark, 500, *((t, 500) for t in range(0, 11_000, 1000)), (22_000, 500)) == [0] * 10 + [1000, 0]


def test_tokens_as_in_kip_599(spark: SparkSession) -> None:
    # Rate 5, 100 windows of 1 s: 500 tokens. 560 leave -60: 60 / 5 = 12 s. Twelve seconds later there are 0, and
    # one partition more leaves -1: 200 ms.
    rows = [("g", 0, 0, 560.0, 5.0), ("g", 12_000, 1, 0.0, 5.0), ("g", 12_000, 2, 1.0, 5.0)]
    frame = spark.createDataFrame(rows, "g string, t_ms bigint, order bigint, amount double, limit double")
    result = bucket_delays(frame, ["g"], num_samples=100).orderBy("order").collect()
    assert [(row["observed"], row["throttle_ms"]) for row in result] == [(-60, 12_000), (0, 0), (-1, 200)]


QUOTAS = {
    "clients only": "[{client-id: a, producer_byte_rate: 900, request_percentage: 30}, {client-id: <default>, "
    "producer_byte_rate: 2000}]",
    "users only": "[{user: u1, producer_byte_rate: 1500}, {user: <default>, producer_byte_rate: 700, "
    "request_percentage: 45}]",
    "pairs only": "[{user: <default>, client-id: <default>, producer_byte_rate: 500, controller_mutation_rate: 2}]",
    "all eight levels": """
- {user: u1, client-id: a, producer_byte_rate: 400, request_percentage: 10}
- {user: u1, client-id: <default>, producer_byte_rate: 600}
- {user: u2, producer_byte_rate: 800, controller_mutation_rate: 3}
- {user: <default>, client-id: a, producer_byte_rate: 1000}
- {user: <default>, client-id: <default>, request_percentage: 20}
- {user: <default>, request_percentage: 25, controller_mutation_rate: 1}
- {client-id: b, producer_byte_rate: 1300}
- {client-id: <default>, producer_byte_rate: 1700}""",
    "spread bursts": """
- {user: u1, client-id: a, controller_mutation_rate: 0.3}
- {user: u2, controller_mutation_rate: 1.5}
- {client-id: <default>, controller_mutation_rate: 0.7}
controller_mutation_algorithm: windowed_burst""",
    "spread bursts in a few long windows": """
- {user: u1, controller_mutation_rate: 0.25}
- {user: <default>, controller_mutation_rate: 2}
controller_mutation_algorithm: windowed_burst
controller.quota.window.num: 3
controller.quota.window.size.seconds: 7""",
    "an empty client-id as a broker has it": """
- {user: u1, client-id: <default>, producer_byte_rate: 600, controller_mutation_rate: 0.5}
- {user: u1, producer_byte_rate: 900}
- {user: <default>, request_percentage: 25}
- {client-id: <default>, producer_byte_rate: 1700, controller_mutation_rate: 1}
empty_client_id: kafka""",
    "other windows": "[{user: u1, producer_byte_rate: 900}, {client-id: b, producer_byte_rate: 300}]\n"
    "quota.window.num: 5\nquota.window.size.seconds: 2",
}


@pytest.mark.parametrize("name", QUOTAS)
def test_it_agrees_with_simulate_event_by_event(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Runs, pauses, several events in one millisecond; users and client-ids that share counters and that do not."""
    config = load_bytes("q.yaml", f'upstream: {{bootstrap: ["k:9092"]}}\nquotas: {QUOTAS[name]}\n'.encode())
    path = tmp_path / "candidate.json"
    path.write_text(json.dumps(summary_json("q.yaml", config, to_table(config))))
    candidate = load_candidate(path)
    dice = random.Random(name)
    t_ms, events = 0, []
    for _ in range(450):
        t_ms += dice.choice((0, 1, 40, 300, 999, 1000, 1001, 2500, dice.randrange(30_000)))
        kind = dice.choice(("produce", "produce", "request", "mutation"))
        amount = dice.randrange({"produce": 6000, "request": 2500, "mutation": 12}[kind])
        user, client = dice.choice(("u1", "u2", "u3")), dice.choice(("a", "b", "", "d"))
        events.append({"t_ms": t_ms, "kind": kind, "user": user, "client_id": client, "amount": amount})
    lines = [json.dumps(e | ({"strict": False} if e["kind"] == "mutation" else {})).encode() for e in events]
    expected = [result for good, result in simulate(config, lines) if good]
    assert len(expected) == len(events)
    delayed = 0
    for kind in ("produce", "request", "mutation"):
        mine: dict[int, Any] = {}
        rows = [
            (e["user"], e["client_id"], e["t_ms"], order, float(e["amount"]))
            for order, e in enumerate(events)
            if e["kind"] == kind
        ]
        for row in decisions(spark.createDataFrame(rows, EVENTS), candidate, Kind(kind)).collect():
            mine[row["order"]] = row
        for order, result in enumerate(expected):
            if result["kind"] != kind:
                continue
            row = mine.pop(order)
            assert row["limit"] == result["limit"], (order, result)
            if result["limit"] is None:
                continue
            assert row["throttle_ms"] == result["throttle_ms"], (order, result, row)
            assert row["observed"] == pytest.approx(result["observed"], rel=1e-9, abs=1e-9), (order, result)
            delayed += result["throttle_ms"] > 0
        assert mine == {}
    assert delayed > 15


def test_spread_bursts_as_in_the_plan_before_kip_599(spark: SparkSession) -> None:
    # 5/s in 100 windows of 1 s. 560 fill all windows with 5 and leave 60 in the current one: -60, 60 / 5 = 12 s.
    # 11.5 s later eleven windows are new: 11 * 5 - 60 = -5 without the one more, -6 with it: 1.2 s.
    # At 100 s the window with the debt is gone too: 500 - 1 (which filled the oldest window of then, gone as well).
    rows = [("g", 0, 0, 560.0, 5.0), ("g", 11_500, 1, 1.0, 5.0), ("g", 100_000, 2, 2.0, 5.0)]
    frame = spark.createDataFrame(rows, "g string, t_ms bigint, order bigint, amount double, limit double")
    result = burst_delays(frame, ["g"], num_samples=100).orderBy("order").collect()
    assert [(row["observed"], row["throttle_ms"]) for row in result] == [(-60, 12_000), (-6, 1200), (497, 0)]


def test_spread_bursts_of_a_long_time_agree_with_the_counter_itself(spark: SparkSession) -> None:
    """Many blocks of windows, through debts, full queues and long pauses."""
    dice, t_ms, rows = random.Random(4), 5000, []
    for order in range(2500):
        t_ms += dice.choice((0, 100, 1000, 1500, 4000, 40_000 if order % 50 == 0 else 300))
        rows.append(("g", t_ms, order, float(dice.choice((0, 1, 1, 2, 3, 40 if order % 30 == 0 else 1))), 1.25))
    counter = WindowedBurst(11, 1000)
    expected = [counter.take(amount, limit, at_ms) for _, at_ms, _, amount, limit in rows]
    assert sum(left < 0 for left in expected) > 300
    assert sum(left > 5 for left in expected) > 300
    assert (t_ms - 5000) // 1000 > 5 * BLOCK
    frame = spark.createDataFrame(rows, "g string, t_ms bigint, order bigint, amount double, limit double")
    found = [row["observed"] for row in burst_delays(frame, ["g"]).orderBy("order").collect()]
    assert found == pytest.approx(expected, abs=1e-9)


def test_what_is_no_candidate_is_refused(tmp_path: Path) -> None:
    from analysis.errors import WrongUseError

    path = tmp_path / "c.json"
    for text, told in (("quotas: []", "expected what `kquota check --json` prints"), ("[]", "a right configuration")):
        path.write_text(text)
        with pytest.raises(WrongUseError, match=told):
            load_candidate(path)
    assert Candidate([]).entries(Kind.PRODUCE) == []
