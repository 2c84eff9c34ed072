"""The soak: a sidecar under churning clients, reloads and faults, watched for whatever grows: `make soak`.

    python -m tests.soak --minutes 30 --plot docs/images/soak.png

Everything that is judged is in `judge`; what may stand in the log, and why, in `EXPLAINED`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from tests.support.fault_rig import Rig, between_links, cut, gone_for, reset_within_frames, with_setting
from tests.support.fault_tools import Held, at_work, create_topic, held_again
from tests.support.faults import FROM_TARGET, TO_TARGET
from tests.support.history import in_words, problems_of
from tests.support.sidecars import Sidecar
from tests.support.soak_clients import TOPICS, Churn, churning

QUOTAS = [{"client-id": "<default>", "producer_byte_rate": 400_000, "consumer_byte_rate": 1_600_000}]
STEADY, BESIDE = "soak-steady", "soak-beside"
"""Clients through the sidecar, and without it."""
RELOAD_EVERY_S = 7.0
FAULT_EVERY_S = 10.0
KILL_EVERY_S = 240.0
SHORT_MINUTES = 10.0
NO_ANSWER = "/metrics did not answer"
WARM_SHARE = 0.5
"""The second half is what growth is judged by: the page's history alone fills for 15 minutes."""

_CLOSED = {
    "client_malformed": "clients that speak TLS, HTTP or nonsense are part of the soak",
    "client_reset": "links to clients are reset; clients go by a reset",
    "broker_reset": "links to the broker are reset; the broker is killed",
    "upstream_unreachable": "links to the broker refuse; the broker is killed",
}
EXPLAINED: dict[tuple[str, str | None], str] = {
    **{("connection closed", reason): why for reason, why in _CLOSED.items()},
    **{("more connections closed", reason): why for reason, why in _CLOSED.items()},
    ("cannot reach the Kafka cluster, retrying", None): "the sidecar's own question meets the same faults",
    ("configuration refused, the last good one stays in force", None): "every fourth reload is a bad file",
}
"""(message, its reason) of complaints in the log that the soak itself brings about; all others are a failure."""


@dataclass(frozen=True)
class Sample:
    at_s: float
    rss_mb: float
    descriptors: int
    tasks: int
    pipes: int
    reservations: int
    connections: int


@dataclass
class Soaked:
    minutes: float
    samples: list[Sample] = field(default_factory=list)
    visits: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    reloads: int = 0
    refused_reloads: int = 0
    done: dict[str, str] = field(default_factory=dict)
    """By STEADY and BESIDE: records acknowledged, transactions, and anomalies."""
    complaints: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    at_rest_before: Held | None = None
    at_rest_after: Held | None = None
    left: Any = None
    problems: list[str] = field(default_factory=list)
    closed: dict[str, float] = field(default_factory=dict)
    opened: float = 0.0


def slope_mb_per_h(samples: list[Sample]) -> float:
    """Growth of the resident set: the median of the slopes between all pairs of samples (Theil and Sen), which a few
    steps up or down move little. At most 300 samples are taken, evenly."""
    some = samples[:: max(len(samples) // 300, 1)]
    pairs = [(a, b) for a, b in itertools.combinations(some, 2) if b.at_s - a.at_s > 1.0]
    slopes = [(b.rss_mb - a.rss_mb) / (b.at_s - a.at_s) for a, b in pairs]
    return statistics.median(slopes) * 3600.0


def second_half(soaked: Soaked) -> list[Sample]:
    return soaked.samples[int(len(soaked.samples) * WARM_SHARE) :]


def judge(soaked: Soaked) -> list[str]:
    short = soaked.minutes < SHORT_MINUTES
    may_miss = short and len(soaked.problems) <= 3
    found = [one for one in soaked.problems if not (may_miss and one.startswith(NO_ANSWER))]
    late = second_half(soaked)
    bound = max(10.0, 5.0 / (late[-1].at_s - late[0].at_s) * 3600.0 / 1.5)
    slope = slope_mb_per_h(late)
    if slope > bound:
        found.append(f"memory grows by {slope:.1f} MB/h, at most {bound:.1f} are allowed")
    middle = len(late) // 2
    for name in ("descriptors", "tasks", "pipes"):
        # What is needed follows the clients that are there; what leaks is there at the quietest moments, too.
        first, second = (min(getattr(one, name) for one in part) for part in (late[:middle], late[middle:]))
        if second > first * 1.2 + 15:
            found.append(f"{name} at the quietest moment grew from {first} to {second}")
    before, after = soaked.at_rest_before, soaked.at_rest_after
    assert before is not None
    assert after is not None
    if not after.within(before):
        found.append(f"left behind: before {before}, after {after}: {soaked.left}")
    for (message, reason), count in soaked.complaints.items():
        if (message, reason) not in EXPLAINED:
            found.append(f"{count} times unexplained in the log: {message} ({reason})")
    if soaked.opened != sum(soaked.closed.values()):
        found.append(f"{soaked.opened} connections opened, {sum(soaked.closed.values())} closed, none open")
    if "internal_error" in soaked.closed:
        found.append("connections ended by a bug of ours")
    missing = [name for name, count in soaked.visits.items() if not count]
    if len(missing) > (1 if short else 0) or not soaked.faults or not soaked.reloads or not soaked.refused_reloads:
        found.append(f"the soak has not done what it should: {missing}, {soaked.faults}, {soaked.reloads} reloads")
    return found


# --- what happens


FAULTS: dict[str, Callable[[Rig, str], None]] = {
    "reset": partial(cut, reset=True),
    "ended": partial(cut, reset=False),
    "refused": partial(gone_for, seconds=1.0),
    "stalled": partial(with_setting, seconds=4.0, stalled=True),
    "slow": partial(with_setting, seconds=3.0, bytes_per_s=30_000, latency_s=0.1),
    "half-open": partial(with_setting, seconds=4.0, half_open=True),
    "reset within requests": partial(reset_within_frames, direction=TO_TARGET, count=20_000),
    "reset within responses": partial(reset_within_frames, direction=FROM_TARGET, count=20_000),
}


def reload(proxy: Sidecar, turn: int) -> bool:
    """Write another configuration, every fourth time a bad one; True if it was good."""
    good = turn % 4 != 3
    config = yaml.safe_load(proxy.config.read_text())
    rate = 400_000 + 50_000 * (turn % 5)
    config["quotas"] = [
        {"client-id": "<default>", "producer_byte_rate": rate, "consumer_byte_rate": 4 * rate},
        {"client-id": STEADY, "producer_byte_rate": 2_000_000, "consumer_byte_rate": 20_000_000},
        *({"client-id": f"churn-{number}", "producer_byte_rate": rate // 4} for number in range(turn % 7)),
    ]
    if not good:
        config["quotas"][0]["producer_byte_rate"] = -1
    before = proxy.config.read_text()
    proxy.config.write_text(yaml.safe_dump(config))
    if not good:
        time.sleep(2.5)
        proxy.config.write_text(before)
    return good


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def sample(proxy: Sidecar, began_s: float) -> Sample:
    values = {one.name: one.value for one in proxy.samples() if not one.labels}
    held = [int(values[f"kquota_{name}"]) for name in ("tasks", "pipes_open", "fetch_reservations", "connections_open")]
    descriptors = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
    return Sample(round(time.monotonic() - began_s, 1), round(rss_mb(proxy.pid), 2), descriptors, *held)


def complaints(log: Path) -> Iterator[dict[str, Any]]:
    entries = map(json.loads, log.read_text().splitlines())
    return (entry for entry in entries if entry["level"] in ("warning", "error", "critical"))


def soak(minutes: float, seed: int) -> Soaked:
    """Run it."""
    soaked = Soaked(minutes)
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="kquota-soak-"))
        export = {"directory": f"{directory}/usage", "interval_s": 5, "keep_bytes": 5_000_000}
        stage = stack.enter_context(between_links(QUOTAS, export=export))
        proxy, direct = stage.proxy, stage.cluster.bootstrap[0]
        for topic in TOPICS:
            create_topic(direct, topic)
        for topic in (STEADY, BESIDE):
            create_topic(direct, topic, partitions=2)
        # The file of usage records is open from the first record on, except between two files.
        soaked.at_rest_before = stage.at_rest._replace(descriptors=stage.at_rest.descriptors + 1)
        with (
            at_work(stage.direct, BESIDE, direct, transactions=True) as beside,
            at_work(stage.bootstrap, STEADY, direct, transactions=True, client_id=STEADY) as steady,
            churning(stage.bootstrap, seed) as churn,
        ):
            _strike_and_watch(stage, soaked, churn, random.Random(seed))
        soaked.done = {STEADY: in_words(steady.history), BESIDE: in_words(beside.history)}
        soaked.problems += problems_of(steady.history)
        soaked.visits, soaked.failures = dict(churn.visits), dict(churn.failures)
        soaked.problems += churn.broken
        soaked.at_rest_after = held_again(proxy, soaked.at_rest_before)
        soaked.left = proxy.get("/connections")
        soaked.opened = proxy.metric("kquota_connections_opened_total")
        soaked.closed = _by_reason(proxy)
        for entry in complaints(proxy.log):
            soaked.complaints[kind := (entry["message"], entry.get("reason"))] += 1
            if kind not in EXPLAINED:
                print(json.dumps(entry))
    return soaked


def _strike_and_watch(stage: Rig, soaked: Soaked, churn: Churn, dice: random.Random) -> None:
    """Faults and reloads by turns until the time is over, and a sample every second (every five in long runs)."""
    proxy, began_s = stage.proxy, time.monotonic()
    end_s = began_s + soaked.minutes * 60
    sample_every_s = 1.0 if soaked.minutes < 10 else 5.0
    next_sample_s = next_reload_s = next_fault_s = began_s
    next_kill_s = began_s + min(KILL_EVERY_S, soaked.minutes * 30)
    faults = [(where, what) for where in ("clients", "broker") for what in FAULTS]
    dice.shuffle(faults)
    turns, turn = itertools.cycle(faults), 0
    while (now_s := time.monotonic()) < end_s:
        if churn.broken:
            return
        if now_s >= next_sample_s:
            next_sample_s = now_s + sample_every_s
            try:
                soaked.samples.append(sample(proxy, began_s))
            except httpx.HTTPError as error:
                soaked.problems.append(f"{NO_ANSWER}: {error!r}")
        if now_s >= next_reload_s:
            next_reload_s = now_s + RELOAD_EVERY_S
            good = reload(proxy, turn)
            turn += 1
            soaked.reloads += good
            soaked.refused_reloads += not good
        if now_s >= next_kill_s:
            next_kill_s = now_s + KILL_EVERY_S
            soaked.faults["broker killed"] += 1
            stage.cluster.stop_broker(1, kill=True)
            stage.cluster.start_broker(1)
        elif now_s >= next_fault_s:
            next_fault_s = now_s + FAULT_EVERY_S
            where, what = next(turns)
            soaked.faults[f"{where} {what}"] += 1
            FAULTS[what](stage, where)
            if len(soaked.samples) > 1:
                last = soaked.samples[-1]
                print(f"{last.at_s:7.0f} s {last.rss_mb:6.1f} MB {last.connections} connections; {where} {what}")
        time.sleep(0.1)


def _by_reason(proxy: Sidecar) -> dict[str, float]:
    closed = (one for one in proxy.samples() if one.name == "kquota_connections_closed_total")
    return {one.labels["reason"]: one.value for one in closed}


# --- for people


def plot(soaked: Soaked, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    minutes = [one.at_s / 60 for one in soaked.samples]
    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(9, 7))
    axes[0].plot(minutes, [one.rss_mb for one in soaked.samples], color="tab:blue")
    axes[0].set(ylabel="resident memory, MB", ylim=(0, None))
    axes[0].set_title(f"{slope_mb_per_h(second_half(soaked)):+.1f} MB/h in the second half", fontsize=10)
    for name, color in (("descriptors", "tab:orange"), ("tasks", "tab:green")):
        axes[1].plot(minutes, [getattr(one, name) for one in soaked.samples], label=name, color=color, linewidth=0.8)
    axes[1].set(ylim=(0, None))
    axes[1].legend(loc="upper right")
    for name in ("connections", "pipes", "reservations"):
        axes[2].plot(minutes, [getattr(one, name) for one in soaked.samples], label=name, linewidth=0.8)
    axes[2].set(xlabel="minutes", ylim=(0, None))
    axes[2].legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def summary(soaked: Soaked) -> str:
    late = second_half(soaked)
    logged = [f"{count} x {message} ({reason})" for (message, reason), count in soaked.complaints.items()]
    lines = [
        f"{soaked.minutes:g} minutes, {len(soaked.samples)} samples",
        f"memory, second half: {late[0].rss_mb:.1f} -> {late[-1].rss_mb:.1f} MB, {slope_mb_per_h(late):+.2f} MB/h",
        f"records acknowledged (transactions committed + aborted): anomalies; through: {soaked.done[STEADY]}, "
        f"directly: {soaked.done[BESIDE]}",
        f"visits: {soaked.visits}",
        f"of these failed: {soaked.failures}",
        f"faults: {dict(soaked.faults)}",
        f"reloads: {soaked.reloads}, and {soaked.refused_reloads} bad files refused",
        f"connections: {soaked.opened:.0f} opened, closed by reason {soaked.closed}",
        f"held before {soaked.at_rest_before}, after {soaked.at_rest_after}",
        f"complaints in the log: {'; '.join(logged)}",
    ]
    return "\n".join(lines)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--plot", type=Path)
    options = arguments.parse_args()
    soaked = soak(options.minutes, options.seed)
    print(summary(soaked))
    if options.plot:
        plot(soaked, options.plot)
    found = judge(soaked)
    print("\n".join(f"PROBLEM: {one}" for one in found) or "all is well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
