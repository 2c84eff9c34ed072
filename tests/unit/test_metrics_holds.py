"""Metrics of requests that wait before they are forwarded (ADR 0026)."""

from __future__ import annotations

import pytest

from quota.entity import Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.unit.test_metrics_exposition import Samples, metrics_of, parse, value

ALICE = {"user": "alice", "client_id": "etl"}
GROUP = {"kind": "produce", "user": "", "client_id": "etl"}


def in_debt(*, others: int = 0) -> Ledger:
    """alice/etl owes 40 s, of which it was told 1 s; two connections wait for that, and others were held before."""
    ledger = Ledger(QuotaTable([Entry(client_id="etl", producer_byte_rate=1000)]), max_throttle_ms=1000)
    account = ledger.account("alice", "etl")
    delay_ms = ledger.charge(account, Kind.PRODUCE, 50_000, 0)  # 5000 B/s: (5 - 1) * 10 s
    ledger.note_throttle(account, Kind.PRODUCE, delay_ms)
    for connection in ("first", "second"):
        assert ledger.hold(account, Kind.PRODUCE, connection, 100, 0, whole=True).wait_ms > 0
    ledger.note_throttle(account, Kind.PRODUCE, 4200, held=True)
    for number in range(others):
        client = ledger.account(f"u{number}", "c")
        ledger.charge(client, Kind.PRODUCE, 1, 0)
        ledger.note_throttle(client, Kind.PRODUCE, 2000, held=True)
    return ledger


async def samples_of(ledger: Ledger, most: int = 200) -> Samples:
    return parse(await metrics_of(ledger, most=most).text(0))


@pytest.mark.trio
async def test_holds_are_a_part_of_the_delays() -> None:
    samples = await samples_of(in_debt())
    assert value(samples, "kquota_throttled_requests_total", cause="produce", **ALICE) == 2
    assert value(samples, "kquota_throttle_seconds_total", cause="produce", **ALICE) == 5.2
    assert value(samples, "kquota_held_requests_total", cause="produce", **ALICE) == 1
    assert value(samples, "kquota_held_seconds_total", cause="produce", **ALICE) == 4.2
    assert value(samples, "kquota_held_seconds_total", cause="fetch", **ALICE) is None  # it was never throttled so


@pytest.mark.trio
async def test_what_a_group_owes_and_who_waits_for_it() -> None:
    samples = await samples_of(in_debt())
    assert value(samples, "kquota_throttle_owed_seconds", **GROUP) == 40
    assert value(samples, "kquota_quota_waiting_connections", **GROUP) == 2
    ledger = in_debt()
    for connection in ("first", "second"):
        ledger.pass_held(ledger.account("alice", "etl"), Kind.PRODUCE, connection)
    assert value(await samples_of(ledger), "kquota_quota_waiting_connections", **GROUP) == 0


@pytest.mark.trio
async def test_holds_of_those_without_a_series_are_in_other() -> None:
    samples = await samples_of(in_debt(others=7), most=2)
    held = {labels: number for (name, labels), number in samples.items() if name == "kquota_held_seconds_total"}
    other = {"user": "other", "client_id": "other"}
    assert value(samples, "kquota_held_requests_total", cause="produce", **other) == 6
    assert value(samples, "kquota_held_seconds_total", cause="produce", **other) == 12
    assert sum(held.values()) == pytest.approx(4.2 + 7 * 2)
    # the client that was throttled most has a series of its own
    assert value(samples, "kquota_held_seconds_total", cause="produce", **ALICE) == 4.2
