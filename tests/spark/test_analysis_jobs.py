"""Every report on a handful of records, with figures worked out by hand."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from analysis.columns import grain_for
from analysis.levels import CandidateQuotas
from analysis.owners import Owners, PriceModel
from config.load import load_bytes
from config.table import entries
from proxy.app.cli.main import app
from proxy.app.common.top_k import label
from quota.counter import LedgerSettings
from quota.entity import DEFAULT
from quota.table import MAX_LIMIT, Entry, QuotaTable
from tests.lab.chart import CHART
from tests.support.chart_tools import configuration, documents, render_text
from tests.support.spark_tools import Make, floats, record, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from quota.record import Row

MB = 1_000_000


def owners_of(*rules: dict[str, str]) -> Owners:
    return Owners.model_validate({"owners": list(rules)})


def test_rates_are_taken_over_no_less_than_an_interval(report: Make) -> None:
    """300 s of 1 MB/s are 1 MB/s, not 5 MB/s in one minute and nothing in four."""
    rows = [record(number, number * 300, duration_s=300, produce_bytes=300 * MB) for number in range(1, 10)]
    printed, out = report("usage", rows)
    (client,) = table(out, "clients")
    assert float(client["produce_bytes_p99_per_s"]) == float(client["produce_bytes_mean_per_s"]) == MB
    assert "Rates are means over 300 s, as intervals are up to 300 s long." in printed
    _, out = report("capacity", rows, capacity={})
    peaks = {row["kind"]: float(row["peak_bytes_per_s"]) for row in table(out, "clusters")}
    assert peaks == {"produce": MB, "fetch": 0}


@pytest.mark.parametrize(
    ("asked_s", "interval_s", "grain_s"),
    [(60, 10, 60), (60, 60.9, 60), (60, 64, 72), (60, 300, 300), (10, 15, 15), (60, 5000, 3600), (3600, 10, 3600)],
)
def test_the_next_divisor_of_an_hour_that_an_interval_fits_into(asked_s: int, interval_s: float, grain_s: int) -> None:
    assert grain_for(asked_s, interval_s) == grain_s


def test_usage_report(report: Make) -> None:
    # u/c: 6 MB on each of two sidecars in the first minute, 3 MB in the second, of which 10 s are recorded.
    rows = [
        record(1, 0, produce_bytes=6 * MB, requests=3, request_seconds=1.5, produce_rate_max=1e6),
        record(2, 10),
        record(1, 5, instance="i2", produce_bytes=6 * MB, produce_rate_max=2e6),
        record(3, 60, produce_bytes=3 * MB),
        record(4, 60, user="<evil>", client_id="", fetch_bytes=5 * MB),
    ]
    printed, out = report("usage", rows)
    first, second = table(out, "clients")
    assert (first["user"], second["user"], second["client_id"]) == ("u", "<evil>", "")
    assert floats(first, "produce_bytes", "requests", "request_seconds", "records") == [15 * MB, 3, 1.5, 4]
    names = ("mean", "p50", "p95", "p99", "one_second_max")
    rates = floats(first, *(f"produce_bytes_{name}_per_s" for name in names))
    assert rates == pytest.approx([15e6 / 70, 200e3, 300e3, 300e3, 2e6])
    assert "u / c with 75 % of all bytes" in printed  # 15 of 20 MB
    assert "2 clients produced 15 MB and fetched 5 MB" in printed


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in another time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_rates_are_of_observed_time(report: Make) -> None:
    """Half a minute of records, as the demo's, across a minute's and an hour's end."""
    limit = {"produce_fleet_limit": 5e6, "produce_limit": 5e6, "produce_group_client_id": "c"}
    held = {"throttle_produce_count": 1, "throttle_produce_seconds": 2.5}
    rows = [
        record(number + 1, 3580 + 10 * number, instance=name, produce_bytes=25 * MB, **limit, **held)
        for number, name in itertools.product(range(3), ("i1", "i2"))
    ]
    printed, out = report("usage", rows)
    (client,) = table(out, "clients")
    assert floats(client, *(f"produce_bytes_{name}_per_s" for name in ("mean", "p50", "p99"))) == [5e6, 5e6, 5e6]
    assert [float(row["used_share"]) for row in table(out, "limits")] == [1]
    assert "The busiest hour began 2025-10-20 00:00 UTC: 5 MB/s on average in the 20 s of it that the rec" in printed
    _, out = report("capacity", rows)
    assert {float(row["mean_bytes_per_s"]) for row in table(out, "clusters") if row["kind"] == "produce"} == {5e6}
    # Half an hour on each of three days, of other sidecars; the middle one is no end of the input.
    days = [
        record(n + 1, day * 86_400 + 300 * n, duration_s=300, instance=f"i{day}", produce_bytes=30 * MB)
        for day, n in itertools.product(range(3), range(6))
    ]
    printed, out = report("usage", days)
    assert {float(row["observed_seconds"]) for row in table(out, "hours")} == {1800}
    assert "100 kB/s on average in the 30 min of it that the records cover" in printed
    _, out = report("slo", rows, target=0.99)
    assert [float(row["observed_seconds"]) for row in table(out, "hours")] == [20, 10]
    page = (out / "report.html").read_text()
    # The axis is as long as the records, and has not New York's clock.
    assert [f">{label}<" in page for label in ("40", "01:00", "10", "21:00")] == [True, True, True, False]
    model = {"currency": "EUR", "payer": "user", "burst_above": 1.1, "prices": {"burst_gb": 10}}
    printed, out = report("chargeback", rows, prices=PriceModel.model_validate(model))
    assert [float(row["bursts"]) for row in table(out, "bill")] == [0]


def test_throttling_report(report: Make) -> None:
    held = {"throttle_produce_count": 3, "throttle_produce_seconds": 6.0, "requests": 10, "connections_peak": 2}
    rows = [
        record(1, 0, throttle_broker_count=1, throttle_broker_seconds=1.0, **held),
        record(2, 0, client_id="free", requests=10),
        record(3, 3600, requests=10, throttle_fetch_count=1, throttle_fetch_seconds=0.5, connections_peak=2),
    ]
    printed, out = report("throttling", rows)
    (row,) = table(out, "clients")
    # 7.5 s of 2 connections * 20 s; 5 of 20 requests
    names = ("delayed_seconds", "time_lost_share", "requests_delayed", "requests_delayed_share")
    assert floats(row, *names) == [7.5, 0.1875, 5, 0.25]
    assert (row["main_cause"], row["hours_with_throttles"]) == ("produce", "2")
    causes = [(cause["cause"], float(cause["delayed_seconds"])) for cause in table(out, "causes")]
    assert causes == [("produce", 6), ("broker", 1), ("fetch", 0.5)]
    assert "Most of it, 80 %, was due to the produce quota" in printed
    thirds = {"throttle_produce_seconds": 3.4, "throttle_fetch_seconds": 3.3, "throttle_request_seconds": 3.3}
    counts = {name.replace("seconds", "count"): 1 for name in thirds}
    printed, _ = report("throttling", [record(1, 0, **thirds, **counts)])
    assert "The largest part of it, 34 %, was due to the produce quota" in printed
    printed, _ = report("throttling", [record(1, 0, throttle_produce_count=1, throttle_produce_held_seconds=0.5)])
    assert "1 client lost 0 ms to throttles, in 1 delayed requests." in printed


def test_chargeback_report(report: Make) -> None:
    # 3.6 per 10^6 bytes/s and hour are 10^-9 per byte-second
    prices = {"produce_gb": 2, "idle_produce_mb_s_hour": 3.6, "burst_gb": 10}
    model = PriceModel.model_validate({"currency": "EUR", "payer": "user", "burst_above": 2, "prices": prices})

    def one(number: int, user: str, produced: int, limit: float, start_s: float = 0, **more: Any) -> Row:
        at = {"user": user, "produce_bytes": produced, "produce_limit": limit, "produce_limit_mode": "enforce"}
        return record(number, start_s, duration_s=60, **at | more)

    shared = {"client_id": "etl", "produce_group_client_id": "etl"}
    shadow = {"produce_limit_mode": "shadow", "produce_group_user": "eve"}
    rows = [
        one(1, "alice", 600 * MB, 20e6, produce_group_user="alice"),
        one(2, "carol", 10 * MB, 1e6, **shared),
        one(3, "dave", 20 * MB, 1e6, **shared),
        one(4, "eve", 0, 1e9, **shadow),
        one(6, "fay", 220, MAX_LIMIT, produce_group_client_id="c"),
        one(7, "gil", 220, MAX_LIMIT / 2, produce_group_client_id="c", produce_fleet_limit=MAX_LIMIT),
        one(5, "eve", 0, 1e9, 3600, **shadow),  # so that the hour before is whole
    ]
    printed, out = report("chargeback", rows, prices=model)
    bill = {row["payer"]: floats(row, "usage", "bursts", "idle_reservations", "total") for row in table(out, "bill")}
    # alice: 0.6 GB * 2; mean of the hour's 60 buckets 10 MB, so 600 - 20 MB are burst: 0.58 GB * 10; free were
    # 20 MB/s * 60 s - 600 MB = 600 MB-seconds: 0.6
    assert bill["alice"] == pytest.approx([1.2, 5.8, 0.6, 7.6])
    # carol and dave share 1 MB/s: 60 MB - 30 MB left, 15 each. carol: 10 - 2 * 10 / 60 MB of burst
    assert bill["carol"] == pytest.approx([0.02, 0.096667, 0.015, 0.131667])
    assert bill["dave"] == pytest.approx([0.04, 0.193333, 0.015, 0.248333])
    assert bill["eve"] == [0, 0, 0, 0]  # a shadow limit keeps nothing free
    # Nor does Kafka's "no limit". 0.44 and 2.13 millionths: a line adds up as it is written.
    assert bill["fay"] == bill["gil"] == [0, 2e-06, 0, 2e-06]
    assert "6 users owe 7.98 EUR in all, most of all alice: 7.60 EUR, 95.2 % of everything." in printed


def test_recommend_report(report: Make) -> None:
    def one(number: int, user: str, rate: float, limit: float | None, **more: Any) -> Row:
        of = {"user": user, "client_id": "app", "produce_bytes": round(rate * 10), "produce_limit": limit}
        return record(number, 9 * 3600 + number * 10, **of, **more)

    rows = [
        one(1, "calm", 1.0e6, 5.0e6),
        one(2, "held", 1.9e6, 2.0e6, throttle_produce_seconds=4.0, throttle_produce_count=1),
        one(3, "right", 1.0e6, 1.25e6),
        one(4, "new: '#yes", 123_456, None),
        one(5, "<default>", 1.0e6, None),  # a user of that name cannot be named in an entry
        record(6, 33_000, user="tiny", client_id="", produce_bytes=10, request_seconds=0.5),
        one(7, label("other"), 1.0e6, None),  # this is not the name of the user
    ]
    printed, out = report("recommend", rows, headroom=0.25)
    advice = {
        (row["user"], row["kind"]): (float(row["recommended"]), row["change"], row["confidence"])
        for row in table(out, "recommendations")
    }
    assert advice == {
        ("calm", "produce"): (1.3e6, "lower", "low"),  # 1 MB/s * 1.25, rounded up to two digits
        ("held", "produce"): (2.5e6, "raise", "low"),  # what was allowed, 2 MB/s, * 1.25
        ("right", "produce"): (1.3e6, "keep", "low"),  # within 10 % of 1.25 MB/s
        ("new: '#yes", "produce"): (160e3, "new", "low"),  # 154 320
        ("<default>", "produce"): (1.3e6, "new", "low"),
        (label("other"), "produce"): (1.3e6, "new", "low"),
        ("tiny", "produce"): (1000, "new", "low"),  # no client is recommended less
        ("tiny", "request"): (6.3, "new", "low"),  # 5 % * 1.25 = 6.25
    }
    patch = (out / "values.yaml").read_bytes()
    config = load_bytes("values.yaml", patch, on_paper=True)  # what `kquota check` does
    assert {(one.user, one.client_id, one.producer_byte_rate, one.request_percentage) for one in entries(config)} == {
        ("calm", "app", 1.3e6, None),
        ("held", "app", 2.5e6, None),
        ("right", "app", 1.3e6, None),
        ("new: '#yes", "app", 160e3, None),
        ("tiny", None, 1000, 6.3),
    }
    assert yaml.safe_load(patch).keys() == {"quotas"}
    checked = CliRunner().invoke(app, ["check", "--on-paper", "--config", str(out / "values.yaml")])
    assert checked.exit_code == 0, checked.output
    assert "5 quotas, most specific level first" in checked.output
    rendered = configuration(documents(render_text(CHART / "ci/sidecar-values.yaml", "--values", out / "values.yaml")))
    assert yaml.safe_load(rendered)["quotas"] == yaml.safe_load(patch)["quotas"]  # Helm takes it over as it is
    difference = (out / "quotas.diff").read_text()
    assert "- 'calm' 'app' producer_byte_rate: 5 MB/s\n+ 'calm' 'app' producer_byte_rate: 1.3 MB/s" in difference
    assert "needs 1.9 MB/s on weekdays at 09 h UTC, was delayed 4 s" in difference
    assert "'right'" not in difference
    assert "2 recommendations are in the table only" in printed

    rows = [record(1, 0, instance=name, cluster_id=name, produce_bytes=7) for name in ("a/b", "a_b", "é" * 200)]
    report("recommend", rows, headroom=0.25)
    # One for each cluster, and none of the run before.
    names = sorted(re.sub("[0-9a-f]{8}", "", path.name) for path in out.glob("*.yaml"))
    assert names == ["values-a_b-.yaml", "values-a_b.yaml", f"values-{'é' * 50}-.yaml"]


def test_recommend_takes_an_intervals_middle_for_its_hour(report: Make) -> None:
    """Here the last five minutes of a Sunday, for a limit of a sidecar and one of the fleet."""
    of_fleet = {"produce_limit": 5e6, "produce_fleet_limit": 5e6}
    rows = [
        record(number, 7 * 86_400 - 300 * number, duration_s=300, user=user, produce_bytes=300 * MB, **limit)
        for number, user, limit in ((1, "alone", {}), (2, "alone", {}), (1, "all", of_fleet), (2, "all", of_fleet))
    ]
    _, out = report("recommend", [row | {"instance": row["user"]} for row in rows])
    names = ("busiest_hour", "busiest_on_weekends", "days")
    assert [[row[name] for name in names] for row in table(out, "recommendations")] == [["23", "true", "1"]] * 2


def test_capacity_report(report: Make) -> None:
    # Peaks of 1, 2, 3, 4 MB/s on four days; 10 MB/s are allowed: at 1 MB/s a day reached six days after the last.
    limit = {"produce_limit": 10e6, "produce_limit_mode": "enforce", "produce_group_user": "u"}
    rows = [
        record(day + 1, day * 86_400, duration_s=60, produce_bytes=(day + 1) * 60 * MB, **limit) for day in range(4)
    ]
    printed, out = report("capacity", rows, capacity={"produce": 8e6})
    fetch, produce = table(out, "clusters")
    names = ("peak_bytes_per_s", "limits_bytes_per_s", "oversubscription", "peak_of_goal_share", "days_until_reached")
    assert floats(produce, *names) == pytest.approx([4e6, 10e6, 1.25, 0.5, 4])  # to the capacity, 8 MB/s, four days
    assert (produce["limits"], produce["sidecars"]) == ("1", "1")
    assert (fetch["limits"], fetch["days_until_reached"]) == ("", "")
    assert "add up to 10 MB/s, 125 % of the capacity" in printed
    assert "they reach the capacity in 4 days" in printed
    # Pods of two namespaces may have the same name; one that was started again is the same sidecar.
    pods = [("i1", "a"), ("i2", "b"), ("i3", "b")]
    rows = [record(1, 0, instance=one, namespace=name, pod="orders-0", **limit) for one, name in pods]
    printed, _ = report("capacity", rows)
    assert "2 limits on 2 sidecars add up to 20 MB/s" in printed


def test_noisy_report(report: Make) -> None:
    # In 2 of 40 minutes `loud` moves a hundred times as much, and the other's requests take 30 ms instead of 10.
    rows = []
    for minute in range(40):
        burst, at = minute in (10, 30), {"duration_s": 60.0, "requests": 10}
        loud = {"client_id": "loud", "fetch_bytes": 100 * MB if burst else MB, "request_seconds": 0.1}
        meek = {"client_id": "meek", "fetch_bytes": MB, "request_seconds": 0.3 if burst else 0.1}
        rows += [record(2 * minute + number, minute * 60, **at, **of) for number, of in ((1, loud), (2, meek))]
    printed, out = report("noisy", rows)
    first, second = table(out, "neighbours")
    assert (first["client_id"], first["notable"], first["bursts"], first["buckets"]) == ("loud", "true", "2", "40")
    names = ("lift", "correlation", "others_ms_in_bursts", "others_ms_otherwise")
    assert floats(first, *names) == pytest.approx([3, 1, 30, 10])
    assert (second["lift"], second["notable"]) == ("", "")
    assert "While u / loud is in a burst, requests of the others take 30 ms of broker time instead of 10 ms" in printed


def test_noisy_takes_clients_that_move_no_bytes(report: Make) -> None:
    rows = [
        record(2 * minute + number, minute * 60, client_id=f"c{number}", requests=10, request_seconds=0.1)
        for minute in range(20)
        for number in (1, 2)
    ]
    _, out = report("noisy", rows)
    found = [(row["client_id"], row["bytes_share"], row["lift"]) for row in table(out, "neighbours")]
    assert found == [("c1", "", ""), ("c2", "", "")]


def test_whatif_of_all_four_quotas(report: Make) -> None:
    second = {"duration_s": 1.0}
    rows = [
        # KIP-13's example spread over ten seconds: 6 MB each second against 5 MB/s. The ninth makes 54 MB / 10 s =
        # 5.4 MB/s, 0.8 s; the tenth 6 MB/s, 2 s.
        record(1, 0, produce_bytes=60 * MB, throttle_produce_seconds=1.5),
        record(2, 0, user="other", produce_bytes=40 * MB),  # 4 MB/s: 11 samples in 10 s are 4.4 MB/s, never over
        record(1, 0, instance="i2", produce_bytes=40 * MB),  # another sidecar counts for itself
        # 33 MB at 3 MB/s: 3.3 MB/s over 10 s, (3.3 - 3) / 3 * 10 s = 1 s
        record(3, 0, user="f", fetch_bytes=33 * MB, **second),
        # 5.5 s of one thread in 10 s are 55 %: (55 - 50) / 50 * 10 s = 1 s, which is also the most
        record(4, 0, user="r", request_seconds=5.5, **second),
        # 2 partitions/s in 3 windows of 1 s: 6 at once, 30 leave -24: 12 s. The windows of the next two seconds bring
        # 2 each, -20; after the third the debt is forgotten. (A token bucket would go on to the twelfth.)
        *(record(5 + s, s, user="m", mutations=0 if s else 30, **second) for s in range(6)),
    ]
    quotas = [
        Entry(DEFAULT, producer_byte_rate=5e6),
        Entry("f", consumer_byte_rate=3e6),
        Entry("r", request_percentage=50),
        Entry("m", controller_mutation_rate=2),
    ]
    settings = LedgerSettings(mutation_num_samples=3, mutation_algorithm="windowed_burst")
    candidate = CandidateQuotas(QuotaTable(quotas), settings)
    printed, out = report("whatif", rows, candidates={"c": candidate})
    groups = {(row["kind"], row["group_user"]): row for row in table(out, "groups")}
    names = ("limit", "seconds_over", "longest_delay_s", "extreme_in_window")
    assert {key: floats(row, *names) for key, row in groups.items() if row["extreme_in_window"]} == {
        ("produce", "u"): [5e6, 2, 2, 6e6],
        ("fetch", "f"): [3e6, 1, 1, 3.3e6],
        ("request", "r"): [50, 1, 1, 55],
        ("mutation", "m"): [2, 3, 12, -24],
    }
    more = ("time_over_share", "delayed_in_truth_s", "sidecars")
    assert floats(groups["produce", "u"], *more) == [0.1, 1.5, 2]
    assert float(groups["produce", "other"]["seconds_over"]) == 0
    assert "4 of 8 limited groups would have been over the limit at some time." in printed


def test_whatif_side_by_side(report: Make) -> None:
    """Two clients of one user on one sidecar, 3 MB/s each for 20 s; on another one 1 MB/s together, for 60 s."""
    at = {"user": "shop", "duration_s": 20.0}
    rows = [record(n + 1, 0, client_id=f"c{n}", produce_bytes=60 * MB, **at) for n in range(2)]
    rows += [record(n + 1, 20 * n, instance="i2", client_id="c0", produce_bytes=10 * MB, **at) for n in range(3)]
    rows += [record(n + 4, 20 * n, instance="i2", client_id="c1", produce_bytes=10 * MB, **at) for n in range(3)]
    quotas = CandidateQuotas(QuotaTable([Entry(DEFAULT, producer_byte_rate=4e6)]))
    sweep = {f"q × {factor:g}": quotas.scaled(factor) for factor in (0.5, 1, 2)}
    printed, out = report("whatif", rows, candidates=sweep, at_most=0.2)
    # 6 MB each second: after k seconds 6 k MB in 10 s, from the eleventh on 11 * 6 / 10 s = 6.6 MB/s. Over 4 MB/s from
    # the seventh (4.2 MB/s) to the twentieth, over 2 MB/s from the fourth (2.4 MB/s); never over 8 MB/s. In all there
    # are 20 s on one sidecar and 60 s on the other, each second of which counts once for both clients.
    groups = {row["candidate"]: row for row in table(out, "groups")}
    assert {name: floats(row, "limit", "seconds_over", "time_over_share") for name, row in groups.items()} == {
        "q × 0.5": [2e6, 17, 17 / 80],
        "q × 1": [4e6, 14, 14 / 80],
        "q × 2": [8e6, 0, 0],
    }
    assert floats(groups["q × 1"], "longest_delay_s", "extreme_in_window", "sidecars") == [6.5, 6.6e6, 2]
    (cheapest,) = table(out, "cheapest")
    assert (cheapest["candidate"], float(cheapest["cheapest_limit"])) == ("q × 1", 4e6)  # 17.5 % of the time
    compared = table(out, "candidates")
    assert [row["candidate"] for row in compared] == list(sweep)
    assert [row["groups_over_too_long"] for row in compared] == ["1", "0", "0"]
    assert "q × 0.5: 1 of 1 limited group over the limit, for 17 s (21.2 %); 1 for more than 20 %" in printed


def test_compliance_report(report: Make) -> None:
    libraries = {"kafka-python": 0, "librdkafka": 27, "strange": 9}
    rows = [record(4, 0, client_id="old", mutes=3, mutes_ignored=3)]
    for number, (name, ignored) in enumerate(libraries.items(), 1):
        of = {"client_id": name, "client_library": name, "client_library_version": "1"}
        rows.append(record(number, 0, mutes=30, mutes_ignored=ignored, **of))
    printed, out = report("compliance", rows)
    shares = {row["library"]: float(row["ignored_share"]) for row in table(out, "libraries")}
    assert shares == {"kafka-python": 0, "librdkafka": 0.9, "strange": 0.3, "(did not say)": 1}
    assert "kafka-python 1 honours throttle times: it went on sending during 0 of 30 throttles (0 %)" in printed
    assert "librdkafka 1 ignores throttle times" in printed
    assert "strange 1 honours throttle times in part" in printed
    assert "(did not say): went on sending during 3 of 3 throttles (100 %); too few to judge." in printed


def test_slo_report_by_team(report: Make) -> None:
    owners = owners_of({"team": "shop", "user": "u", "client-id": "a*"}, {"team": "rest", "user": "*"})
    held = {"throttle_produce_count": 3, "throttle_produce_seconds": 25.0, "requests": 10}  # of several connections
    rows = [
        record(1, 0, client_id="a1", **held),
        record(2, 10, client_id="a1", requests=190),
        record(3, 0, client_id="b", requests=100, throttle_fetch_count=1, throttle_fetch_seconds=0.1),
        record(4, 10, client_id="b", requests=100),
    ]
    printed, out = report("slo", rows, owners=owners, target=0.99)
    shop, rest = table(out, "teams")
    # 10 of 20 s (of 10 s no more than 10 s are held), 3 of 200 requests: 50 % where 1 % was left, 50 times as much.
    names = ("time_delayed_seconds", "time_delayed_share", "requests_delayed_share", "budget_used_share")
    assert floats(shop, *names) == pytest.approx([10, 0.5, 0.015, 50])
    assert floats(rest, *names) == pytest.approx([0.1, 0.005, 0.005, 0.5])
    assert (shop["team"], shop["kept"], shop["clients"]) == ("shop", "false", "1")
    assert (rest["team"], rest["kept"], rest["clients"]) == ("rest", "true", "1")
    assert "1 of 2 teams missed the target" in printed
    exact = record(1, 0, requests=2000, throttle_fetch_count=1)  # what the target allows, and no more
    printed, out = report("slo", [exact], target=0.9995)
    assert "0 of 1 team missed the target" in printed
    assert floats(table(out, "teams")[0], "budget_used_share") == [1]
    assert "free of delays for 99.95 % of its time" in (out / "report.html").read_text()
    _, out = report("throttling", rows, owners=owners)
    teams = [(row["team"], *floats(row, "rows", "delayed_seconds")) for row in table(out, "teams")]
    assert teams == [("shop", 1, 25.0), ("rest", 1, pytest.approx(0.1))]
    assert [(row["team"], row["client_id"]) for row in table(out, "clients")] == [("shop", "a1"), ("rest", "b")]


def test_sums_by_team(report: Make, spark: SparkSession) -> None:
    many = owners_of(*({"team": f"t{number}", "user": f"u{number}"} for number in range(500)))
    one = spark.sql("SELECT 'u499' AS user, '' AS client_id").select(many.column().alias("team"))
    assert [row["team"] for row in one.collect()] == ["t499"]
    owners = owners_of({"team": "shop", "user": "shop*"}, {"team": "data", "client-id": "etl"})
    rows = [
        record(1, 0, user="shop-1", produce_bytes=3 * MB, requests=1),
        record(2, 0, user="shop-2", produce_bytes=2 * MB, requests=1),
        record(3, 0, user="app", client_id="etl", produce_bytes=10 * MB),
        record(4, 0, user="app", produce_bytes=MB),
    ]
    _, out = report("usage", rows, owners=owners)
    teams = [(row["team"], *floats(row, "rows", "produce_bytes", "requests")) for row in table(out, "teams")]
    assert teams == [("data", 1, 10 * MB, 0), ("shop", 2, 5 * MB, 2), ("(no team)", 1, MB, 0)]
    # A group that is named by its user alone is its user's team's.
    by_user = CandidateQuotas(QuotaTable([Entry(DEFAULT, producer_byte_rate=0.25e6)]))
    _, out = report("whatif", rows, candidates={"c": by_user}, owners=owners)
    teams_of = {row["group_user"]: row["team"] for row in table(out, "groups")}
    assert teams_of == {"shop-1": "shop", "shop-2": "shop", "app": "(no team)"}
    assert [(row["team"], row["rows"]) for row in table(out, "teams")] == [("(no team)", "1"), ("shop", "2")]
    prices = PriceModel.model_validate({"currency": "EUR", "payer": "team", "prices": {"produce_gb": 1000}})
    _, out = report("chargeback", rows, prices=prices, owners=owners)
    bill = {row["payer"]: float(row["total"]) for row in table(out, "bill")}
    assert bill == {"data": 10, "shop": 5, "(no team)": 1}


def test_anomalies_report(report: Make) -> None:
    day = 86_400
    usual = {"requests": 1, "produce_bytes": 20 * MB}
    rows = [record(n + 1, n * day, client_id="steady", **usual) for n in range(10)]
    rows += [record(n + 11, n * day, client_id="grown", **usual) for n in range(9)]
    rows += [record(20 + n, 9 * day + n * 10, client_id="grown", **usual) for n in range(4)]  # 80 MB in one hour
    rows.append(record(30, 2 * day, client_id="curious", fetch_bytes=5))
    rows.append(record(31, 9 * day, client_id="curious", mutations=4))
    rows.append(record(32, 9 * day, client_id="fresh", **usual))
    printed, out = report("anomalies", rows, recent_days=2)
    names = ("client_id", "anomaly", "use")
    assert {(*(row[name] for name in names), float(row["highest_hour"])) for row in table(out, "anomalies")} == {
        ("grown", "more than ever", "produce_bytes", 80 * MB),
        ("curious", "never used before", "mutations", 4),
        ("fresh", "new client", "produce_bytes", 20 * MB),
    }
    largest = "the largest, u / grown: 80 MB produced in an hour, 20 MB"
    assert f"1 client used far more than in any earlier hour; {largest}" in printed
    assert "1 client used something for the first time; the largest, u / curious: 4 partitions created" in printed
    printed, out = report("anomalies", rows, recent_days=9)
    assert "Only 9 d of records: nothing earlier to compare with." in printed
    assert table(out, "anomalies") == []


def test_changes_report(report: Make) -> None:
    hour = 3600
    rows = []
    for n in range(48):  # 1 MB/s and held for a fifth of the time; from the second day on 1.5 MB/s, and not held
        late = n >= 24
        at = {"duration_s": 100.0, "produce_bytes": (150 if late else 100) * MB, "produce_limit": 3e6 if late else 1e6}
        held = {} if late else {"throttle_produce_count": 2, "throttle_produce_seconds": 20.0}
        rows.append(record(n + 1, n * hour, requests=10, **at, **held))
        # Shares of a fleet's limit move; the limit does not.
        fleet = {"produce_limit": 1e6 + n, "produce_fleet_limit": 5e6, "produce_fleet_share": 0.2}
        rows.append(record(n + 1, n * hour, instance="i2", client_id="fleet", **fleet))
    printed, out = report("changes", rows)
    (change,) = table(out, "changes")
    assert (change["client_id"], change["kind"], change["since"][:16]) == ("c", "produce", "2025-10-21T00:00")
    names = ("limit", "rate", "throttled_share", "delayed")
    steps = [floats(change, f"{name}_before", f"{name}_after") for name in names]
    assert steps == [[1e6, 3e6], [1e6, 1.5e6], [0.2, 0], [48, 0]]
    assert "1 change of quotas of 1 client: 1 reduced the client's throttled time, 0 increased it." in printed
    throttled = "It was throttled for 20 % of its time before and 0 % after, and used 1 MB/s before"
    assert f"from 1 MB/s to 3 MB/s. {throttled}" in printed
