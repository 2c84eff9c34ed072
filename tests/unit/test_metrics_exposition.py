"""/metrics as Prometheus' own library reads it: true to the ledger, and to docs/metrics.md."""

import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.app.common.top_k import IDLE_MS, OTHER, Labels, TopKSeries
from proxy.app.metrics import own
from proxy.app.metrics.gather import Exposition
from proxy.app.sources.watch import ReloadState
from proxy.core.errors import CloseReason
from proxy.core.telemetry.observer import Counters
from proxy.net.listen.server import Proxy
from proxy.net.settings import ProxySettings
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.exposition import everything

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
TABLE = QuotaTable([Entry(None, DEFAULT, producer_byte_rate=1000.0, consumer_byte_rate=1000.0)])
REST = (OTHER, OTHER)
PAGE = Path(__file__, "../../../docs/metrics.md").resolve().read_text()
LABEL = (
    r"\b(kind|cause|user|client_id|mode|limit|reason|api|version|python|ip|scope|outcome|sink|library|peer|setting|entity|"
    r"data_path|what)\b"
)


def metrics_of(ledger: Ledger, counters: Counters | None = None, most: int = 200) -> Exposition:
    counters = counters or Counters()
    proxy = Proxy(ProxySettings("127.0.0.1", 0, range(0), ()), ledger, counters)
    families = partial(own.own_families, proxy, ReloadState(), ledger, ready=True)
    return Exposition(ledger, counters, max_groups=most, own=families)


def parse(text: bytes) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"twice: {key}"
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def test_exposition_matches_the_ledger() -> None:
    """alice/etl is over its quota of 1000 B/s, bob/etl shares the counter, carol has nothing to wait for."""
    ledger = Ledger(TABLE, smooth=False, max_throttle_ms=500)
    over, bob, carol = ledger.account("alice", "etl"), ledger.account("bob", "etl"), ledger.account("carol", "")
    # 11 000 B / 10 s against 1000 B/s: 1000 ms, cut to 500
    assert [ledger.charge(over, Kind.PRODUCE, amount, 0) for amount in (9000, 2000)] == [0, 500]
    ledger.note_throttle(over, Kind.PRODUCE, 500)
    ledger.charge_no_throttle(bob, Kind.FETCH, 300, 0)
    ledger.charge(carol, Kind.PRODUCE, 50, 0)
    metrics = metrics_of(ledger)
    text = await metrics.text(0)
    of = partial(value, parse(text))
    alice = {"user": "alice", "client_id": "etl"}
    assert of("kquota_bytes_total", kind="produce", **alice) == 11_000
    assert of("kquota_bytes_total", kind="fetch", **alice) == 0  # a zero said aloud, so that rates see the first byte
    assert of("kquota_bytes_total", kind="fetch", user="bob", client_id="etl") == 300
    assert of("kquota_bytes_total", kind="produce", user="carol", client_id="") == 50
    assert of("kquota_throttled_requests_total", cause="produce", **alice) == 1
    assert of("kquota_throttle_seconds_total", cause="produce", **alice) == 0.5
    assert of("kquota_throttle_seconds_total", cause="fetch", **alice) == 0
    group = {"kind": "produce", "user": "", "client_id": "etl"}
    assert of("kquota_quota_limit", mode="enforce", **group) == 1000
    assert of("kquota_quota_observed", mode="enforce", **group) == 1100
    assert of("kquota_quota_utilisation_ratio", mode="enforce", **group) == 1.1
    assert of("kquota_throttle_remaining_seconds", **group) == 0.5
    assert of("kquota_throttle_owed_seconds", **group) == 1.0
    assert b"# HELP kquota_throttle_owed_seconds Debt of a group that outlasts its latest delay, else" in text
    assert of("kquota_throttle_capped_total", cause="produce") == 1
    assert of("kquota_throttle_capped_total", cause="fetch") == 0
    assert of("kquota_config_quotas") == 1
    assert of("kquota_clients_known") == 3
    assert of("kquota_ready") == 1
    ledger.charge(ledger.account("alice", "etl"), Kind.PRODUCE, 1, 0)
    assert await metrics.text(999) is text, "a storm of scrapes shares one answer"
    assert await metrics.text(1000) != text


async def test_exports_data_path_counters() -> None:
    counters = Counters()
    counters.connections.open, counters.connections.muted, counters.connections.waiting = 2, 1, 3
    counters.connections.closed["client_closed"] = 3
    counters.parse_errors["tls_on_plain_port"] = 4
    for api_key in (0, 0, 0, 0, 0, 0, 0, -1, -1):
        counters.counted.add(api_key)
    for seconds in (0.0004, 0.002, 0.002, 99.0):
        counters.upstream_latency.add(seconds)
    samples = parse(await metrics_of(Ledger(TABLE), counters).text(0))
    assert value(samples, "kquota_connections_closed_total", reason="client_closed") == 3
    assert value(samples, "kquota_parse_errors_total", kind="tls_on_plain_port") == 4
    assert [value(samples, "kquota_requests_total", api=api) for api in ("Produce", "unknown")] == [7, 2]
    assert [value(samples, f"kquota_connections_{state}") for state in ("open", "muted", "waiting")] == [2, 1, 3]
    buckets = [value(samples, "kquota_upstream_latency_seconds_bucket", le=le) for le in ("0.0005", "0.0025", "+Inf")]
    assert buckets == [1, 3, 4]
    assert value(samples, "kquota_upstream_latency_seconds_sum") == pytest.approx(99.0044)


async def test_hostile_names_cannot_break_the_exposition() -> None:
    ledger = Ledger(TABLE)
    names = ['a"b', "a\\b", "a\nb", "a\rb", "\ud800", "x" * 32_767, "other", "\x00", "{}", "é\u2028", "a\\nb"]
    for name in names:
        ledger.charge(ledger.account(name, name), Kind.PRODUCE, 1, 0)
    text = await metrics_of(ledger).text(0)
    samples = parse(text)
    moved = [one for key, one in samples.items() if key[0] == "kquota_bytes_total" and ("kind", "produce") in key[1]]
    assert moved == [1] * len(names)
    assert value(samples, "kquota_bytes_total", kind="produce", user='a"b', client_id='a"b') == 1
    assert len(text) < 60_000


async def test_invented_client_ids_stay_within_the_bound() -> None:
    ledger = Ledger(TABLE, smooth=False)
    metrics = metrics_of(ledger, most=100)
    for index in range(30_000):
        ledger.charge(ledger.account("u", f"invented-{index}"), Kind.PRODUCE, 10, 0)
    text = await metrics.text(0)
    samples = parse(text)
    # per client: bytes, requests, seconds of two kinds; per group 5 gauges
    assert len(samples) < 100 * (2 + 2 + 2 + 5) + 250
    produced = [one for key, one in samples.items() if key[0] == "kquota_bytes_total" and ("kind", "produce") in key[1]]
    assert len(produced) == 101
    assert sum(produced) == 300_000
    assert value(samples, "kquota_clients_known") == 20_000  # the others are forgotten, what they did is not
    assert value(samples, "kquota_clients_folded") == 19_900
    assert value(samples, "kquota_bytes_total", kind="produce", user="other", client_id="other") == 299_000


async def test_bounds_invented_libraries_and_loses_nothing() -> None:
    counters = Counters()
    metrics = metrics_of(Ledger(TABLE), counters)
    note = counters.libraries.note
    note("apache-kafka-java/4.2.0", 1000.0, ignored=False)
    rest = 0.0
    for turn in range(3):
        for index in range(10_000):
            note(f'"}}\n{turn}-{index}\ud800{"é" * 200}/{index}', 200.0, ignored=index % 2 == 0)
        note("apache-kafka-java/4.2.0", 1000.0, ignored=False)
        samples = parse(await metrics.text(turn * 1000.0))
        found = {key: one for key, one in samples.items() if key[0].startswith("kquota_library_")}
        assert len(found) <= 4 * 31
        other = value(samples, "kquota_library_mutes_total", library="other", version="other")
        assert other is not None
        assert other - rest >= 10_001 - 30
        assert other <= (turn + 1) * 10_001 + 1
        rest = other
    for _ in range(2):
        note("librdkafka/2.1.0", 500.0, ignored=True)
    assert len(list(counters.libraries)) == 1000
    assert max(len(text) for key in found for _, text in key[1]) <= 120


async def test_the_page_and_the_exposition_agree() -> None:
    exported, documented = {}, {}
    for family in text_string_to_metric_families((await everything()).decode()):
        if not family.name.startswith("process_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert family.samples, f"{name} has no sample here, so its labels cannot be compared"
            exported[name] = (family.type, set().union(*(sample.labels for sample in family.samples)) - {"le"})
    labels: set[str] = set()
    for row in PAGE.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 6 and cells[1].startswith("`kquota_"):
            if cells[3] != "the same":
                labels = set(re.findall(LABEL, re.sub(r"\([^)]*\)", "", cells[3])))
            documented[cells[1].strip("`")] = (cells[2], labels)
    assert documented == exported


def test_every_close_reason_is_explained() -> None:
    (table,) = re.findall(r"\| reason \| meaning \|\n(.*?)\n\n", PAGE, re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {str(reason) for reason in CloseReason}


async def test_counts_once_when_the_ledger_forgets() -> None:
    ledger = Ledger(TABLE, smooth=False)
    metrics = metrics_of(ledger, most=1)
    hour_ms = 3_600_000
    ledger.charge(ledger.account("a", "x"), Kind.PRODUCE, 100, 0)
    ledger.charge(ledger.account("b", "x"), Kind.PRODUCE, 10, 0)
    await metrics.text(0)
    ledger.charge(ledger.account("b", "x"), Kind.PRODUCE, 5, 1)  # seen by no scrape before it is forgotten
    assert await metrics.expire(hour_ms + 1) == 3  # two clients and the counter they shared
    assert list(ledger.accounts()) == []
    ledger.charge(ledger.account("b", "x"), Kind.PRODUCE, 7, hour_ms + 2)
    samples = parse(await metrics.text(hour_ms + 2))
    assert value(samples, "kquota_bytes_total", kind="produce", user="b", client_id="x") == 7  # in a's place
    assert value(samples, "kquota_bytes_total", kind="produce", user="other", client_id="other") == 15


def test_counts_random_histories_once_and_monotonic() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        totals: Counter[str] = Counter()
        fold: TopKSeries[str] = TopKSeries(4, 1, lambda gain: (gain[0],))
        ended = added = now_ms = 0.0
        before: dict[Labels, float] = {}
        for _ in range(60):
            for _ in range(rng.randrange(6)):
                amount = rng.randrange(1, 100)
                totals[f"u{rng.randrange(12)}"] += amount
                added += amount
            now_ms += rng.choice((1000, 60_000, IDLE_MS))
            if rng.random() < 0.1 and totals:  # the ledger forgets a client
                name = rng.choice(list(totals))
                fold.forget(name, (name, "c"), (totals.pop(name),))
                before = {labels: values[0] for labels, values in fold.series()}
            list(fold.look([(name, (name, "c"), (total,)) for name, total in totals.items()], now_ms))
            after = {labels: values[0] for labels, values in fold.series()}
            ended += sum(value for labels, value in before.items() if labels not in after)
            # One that ended and began within a single look shows as a smaller value: a counter reset, as Prometheus
            # knows it. Only ended series may do that, never `other`.
            assert after.get(REST, 0) >= before.get(REST, 0)
            ended += sum(value for labels, value in before.items() if after.get(labels, value) < value)
            assert len(after) <= 5
            before = after
        assert sum(before.values()) + ended == added
