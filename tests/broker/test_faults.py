"""Faults, with a real broker and real clients: nothing acknowledged is lost, nothing stays behind."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.fault_rig import Rig, between_links, cut, gone_for, reset_within_frames, with_setting
from tests.support.fault_tools import VALUE_BYTES, Charged, at_work, charged, create_topic, nothing_left_behind
from tests.support.faults import FROM_TARGET, TO_TARGET
from tests.support.history import assert_clean, in_words

pytestmark = pytest.mark.long

QUOTAS = [{"client-id": "<default>", "producer_byte_rate": 2_000_000, "consumer_byte_rate": 20_000_000}]
"""High enough for the traffic, so that what is tested is the fault; fetches reserve bytes under them all the same."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with between_links(QUOTAS) as one:
        yield one


@pytest.fixture(scope="module")
def anomalies(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Fault -> a row's cells; printed at the end."""
    rows: dict[str, str] = {}
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n\nRecords acknowledged (transactions committed + aborted): anomalies")
        print("| fault | through kquota | directly |\n|---|---|---|")
        print("\n".join(f"| {fault} | {cells} |" for fault, cells in rows.items()))


def broker_killed(rig: Rig) -> None:
    rig.cluster.stop_broker(1, kill=True)
    rig.cluster.start_broker(1)


def sidecar_restarted(rig: Rig) -> None:
    rig.proxy.stop()
    rig.proxy.start_again()


def sidecar_killed(rig: Rig) -> None:
    rig.proxy.kill()
    rig.proxy.start_again()


Strikes = list[Callable[[Rig], None]]


def both(strike: Callable[..., None], **settings: Any) -> Strikes:
    """First between sidecar and broker, then between clients and sidecar."""
    return [partial(strike, where=where, **settings) for where in ("broker", "clients")]


FAULTS: dict[str, Strikes] = {
    "connections reset": both(cut, reset=True),
    "connections ended": both(cut, reset=False),
    "network cut": both(gone_for, seconds=2),
    "stalled": both(with_setting, seconds=4, stalled=True),
    "slow": both(with_setting, seconds=3, bytes_per_s=40_000, latency_s=0.2),
    "half-open": both(with_setting, seconds=4, half_open=True),
    "reset within requests": both(reset_within_frames, direction=TO_TARGET, count=33_333),
    "reset within responses": both(reset_within_frames, direction=FROM_TARGET, count=33_333),
    "broker killed": [broker_killed],
    "sidecar restarted": [sidecar_restarted],
    "sidecar killed": [sidecar_killed],
}
IN_MAKE_TEST = ("connections reset", "stalled", "reset within responses", "broker killed", "sidecar restarted")
"""The others take most of the time; `make faults` strikes with all of them."""


@pytest.mark.parametrize("fault", FAULTS if os.environ.get("KQUOTA_FAULTS") == "all" else IN_MAKE_TEST)
def test_faults_lose_and_repeat_nothing(rig: Rig, topic: str, fault: str, anomalies: dict[str, str]) -> None:
    brokers, beside = rig.cluster.bootstrap[0], f"{topic}-beside"
    for each in (topic, beside):
        create_topic(brokers, each, partitions=2)
    before, carried = charged(rig.proxy), traffic(rig)
    with (
        nothing_left_behind(rig.proxy, rig.at_rest),
        at_work(rig.direct, beside, brokers, transactions=True) as direct,
        at_work(rig.bootstrap, topic, brokers, transactions=True) as through,
    ):
        for strike in FAULTS[fault]:
            strike(rig)
            through.wait_for_progress()
            direct.wait_for_progress()
    anomalies[fault] = f"{in_words(through.history)} | {in_words(direct.history)}"
    assert_clean(through.history)
    if not fault.startswith("sidecar "):  # whose counters began again
        now, moved = charged(rig.proxy), traffic(rig)
        assert VALUE_BYTES * through.acknowledged < now.produce - before.produce <= moved.produce - carried.produce
        assert VALUE_BYTES * through.consuming.done < now.fetch - before.fetch <= moved.fetch - carried.fetch


def traffic(rig: Rig) -> Charged:
    """Bytes that went through: what clients sent, what the broker answered."""
    return Charged(sum(link.carried[TO_TARGET] for link in rig.to_sidecar), rig.to_broker.carried[FROM_TARGET])
