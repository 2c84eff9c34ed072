"""One run: a broker, every variant next to it, measured in turns; all of it stopped for certain at the end."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.measured import describe_project
from benchmarks.rig import idle, javatools, rawclient, tls, variants
from benchmarks.rig.procstat import describe_machine, wait_calm
from benchmarks.rig.rawclient import BenchmarkRequestError
from benchmarks.rig.topics import create_topics
from benchmarks.rig.variants import Address, Ports, Running, Variant, VariantError
from benchmarks.suites.plan import CALM_SHARE, RECORD_BYTES, Plan
from benchmarks.suites.scenarios import FETCH_TOPIC, PRODUCE_TOPIC, SMALL_TOPIC, Context, Scenario, Values
from quota import compiled
from tests.lab.kafka import DEFAULT_VERSION, EmbeddedKafkaError, ExtraListener, KafkaCluster, find_java
from tests.lab.kafka.ports import free_ports

Say = Callable[[str], None]

SHM = Path("/dev/shm")
# Everything a run keeps at once: the topic that is fetched, what retention leaves of the others, and room.
SPARE_BYTES = 2_000_000_000
SEGMENT_BYTES = 64 * 1024 * 1024
KEPT_BYTES = 2 * SEGMENT_BYTES
# Old segments go soon, so that a run needs memory (or disk) for a few seconds' worth of them only. Not at once:
# a broker whose segment is deleted while it is still being flushed gives up its log directory and ends (KAFKA-19571).
BROKER_SETTINGS = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "5000"}

MeasurementError = (BenchmarkRequestError, EmbeddedKafkaError, OSError, VariantError, ValueError)
"""What may go wrong with one sample without making the others worthless."""


class BrokerEndedError(RuntimeError):
    """The broker of the run is gone, and with it whatever else was to be measured; the message has its last lines."""


def run(plan: Plan, chosen: Sequence[Variant], todo: Sequence[Scenario], say: Say) -> dict[str, Any]:
    """Measure and return the raw result, see `benchmarks/results/`."""
    began = time.monotonic()
    started = datetime.datetime.now(datetime.UTC)
    skipped = {variant.key: reason for variant in chosen if (reason := variant.missing())}
    for key, reason in skipped.items():
        say(f"{key} is left out: {reason}")
    chosen = [variant for variant in chosen if variant.key not in skipped]
    result: dict[str, Any] = {
        "schema": 1,
        "what": plan.name,
        "started": started.isoformat(timespec="seconds"),
        "project": describe_project(),
        "machine": describe_machine(),
        "versions": _versions(chosen),
        "plan": asdict(plan),
        "variants": [{"key": v.key, "title": v.title, "detail": v.detail} for v in chosen],
        "skipped": skipped,
        "samples": [],
        "errors": [],
    }
    say(f"kquota's data path: {compiled.description()}")
    todo = possible(todo, skipped, say)
    with ExitStack() as stack:
        idling = stack.enter_context(idle.polling(plan.idle_cores_poll))
        if idling.refused:
            say(f"idle cores halt, they cannot be asked to poll: {idling.refused}")
        folder = Path(tempfile.mkdtemp(prefix="kquota-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ways = _ways(chosen, todo)
        files = tls.Files.issue(folder) if len(ways) > 1 else None
        cluster = _start_broker(plan, ways, files, stack, result, say)
        node = cluster.nodes[0]
        context = Context(plan, node.pid, result["machine"]["cores"], plan.wait_budget_s, broker_ended=cluster.ended)
        running = _start_ways(ways[0], node.host, files, folder, stack, result, say)
        for way in ways[1:]:
            assert way.sides is not None
            context.by_tls[way.sides.key] = _start_ways(way, node.host, files, folder, stack, result, say)
        _prepare(plan, cluster, todo, say)
        try:
            _measure(plan, context, running, todo, began, result, say)
        except BrokerEndedError as error:
            say(f"no more can be measured, what has been is reported: {error}")
            result["errors"].append({"scenario": "broker", "variant": "all", "round": -1, "error": str(error)})
        result["machine"]["idle"] = idling.describe()
    result["took_s"] = round(time.monotonic() - began, 1)
    result["machine"]["load_1min_after"] = round(os.getloadavg()[0], 2)
    return result


def possible(todo: Sequence[Scenario], skipped: dict[str, str], say: Say) -> list[Scenario]:
    """The scenarios that this machine allows; why not the others is noted in `skipped`."""
    for scenario in todo:
        if reason := scenario.missing():
            say(f"{scenario.key} is left out: {reason}")
            skipped[scenario.key] = reason
    return [scenario for scenario in todo if scenario.key not in skipped]


@dataclass(frozen=True, slots=True)
class Ways:
    """All variants with the same kind of connections: plain ones, or TLS on one side or both."""

    sides: tls.Sides | None
    ports: dict[Variant, Ports]
    listeners: dict[Variant, ExtraListener]
    """The broker's, one for each way."""


def _ways(chosen: Sequence[Variant], todo: Sequence[Scenario]) -> list[Ways]:
    """The plain ways, and those with TLS that some scenario needs."""
    wanted = {scenario.sides.key for scenario in todo if scenario.sides is not None}
    plain = any(scenario.sides is None for scenario in todo)
    kinds: list[tuple[tls.Sides | None, list[Variant]]] = [(None, list(chosen) if plain else [])]
    kinds += [(sides, [one for one in chosen if one.speaks_tls]) for sides in tls.ALL if sides.key in wanted]
    numbers = iter(free_ports(sum(4 * len(some) for _, some in kinds)))
    ways = []
    for sides, some in kinds:
        ports = {variant: Ports(next(numbers), next(numbers), next(numbers)) for variant in some}
        ways.append(Ways(sides, ports, {one: one.listener(ports[one], sides, next(numbers)) for one in some}))
    return ways


def _start_broker(
    plan: Plan,
    ways: Sequence[Ways],
    files: tls.Files | None,
    stack: ExitStack,
    result: dict[str, Any],
    say: Say,
) -> KafkaCluster:
    if any(variant.redirected for variant in ways[0].ports):
        variants.enter_namespace()  # all of the run: all connections are tracked by the kernel then
    in_memory = _memory_is_roomy(plan)
    result["storage"] = "memory (tmpfs)" if in_memory else "the temporary folder's disk"
    with _temporary_files_in(SHM if in_memory else None):
        # In a temporary folder of the cluster's own, which its guardian deletes even if this process is killed.
        cluster = KafkaCluster.start(
            1,
            overrides=BROKER_SETTINGS if files is None else BROKER_SETTINGS | files.broker_settings(),
            progress=say,
            jvm=(*plan.jvm, "-Xms128m", f"-Xmx{plan.broker_heap}"),
            extra_listeners=[listener for kind in ways for listener in kind.listeners.values()],
        )
    stack.callback(cluster.stop)
    return cluster


def _start_ways(
    ways: Ways,
    host: str,
    files: tls.Files | None,
    folder: Path,
    stack: ExitStack,
    result: dict[str, Any],
    say: Say,
) -> list[Running]:
    """Start the proxies. `host` is the broker's."""
    secured = None
    if ways.sides is not None and files is not None:
        secured = tls.Tls(files, ways.sides)
        folder = folder / ways.sides.key
    found = []
    for variant, ports in ways.ports.items():
        broker = (host, ways.listeners[variant].port)
        one = _start_one(variant, ports, broker, folder, stack, result, say, secured)
        if one is None:
            continue
        found.append(one)
        if secured is not None:
            spoken = rawclient.handshake(one.address, one.client_context)
            result.setdefault("tls", {})[f"{secured.sides.key} {variant.key}"] = spoken
    return found


def _start_one(
    variant: Variant,
    ports: Ports,
    broker: Address,
    folder: Path,
    stack: ExitStack,
    result: dict[str, Any],
    say: Say,
    secured: tls.Tls | None = None,
) -> Running | None:
    try:
        one = variants.start(variant, ports, broker, folder, secured)
    except VariantError as error:
        say(f"{variant.key} is left out: {error}")
        result["errors"].append({"variant": variant.key, "scenario": "start", "round": -1, "error": str(error)})
        return None
    stack.callback(one.stop)
    return one


def _memory_is_roomy(plan: Plan) -> bool:
    """The broker's log goes to memory if there is plenty: a disk's own moods are not what is compared here."""
    needed = plan.fetch_records * RECORD_BYTES * 1.2 + SPARE_BYTES
    try:
        return shutil.disk_usage(SHM).free > needed and _available_bytes() > 2 * needed
    except OSError:
        return False


@contextmanager
def _temporary_files_in(folder: Path | None) -> Iterator[None]:
    before = tempfile.tempdir
    tempfile.tempdir = str(folder) if folder else before
    try:
        yield
    finally:
        tempfile.tempdir = before


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _prepare(plan: Plan, cluster: KafkaCluster, todo: Sequence[Scenario], say: Say) -> None:
    """Topics, the records to fetch, and a broker whose hot code is compiled."""
    bootstrap = cluster.bootstrap[0]
    small = {"retention.bytes": str(KEPT_BYTES), "segment.bytes": str(SEGMENT_BYTES)}
    create_topics(cluster.bootstrap, {PRODUCE_TOPIC: small, SMALL_TOPIC: small, FETCH_TOPIC: {}})
    if plan.warmup_records:
        say("warming up")
        javatools.produce(bootstrap, PRODUCE_TOPIC, plan.warmup_records, jvm=plan.jvm)
    if any(scenario.key.removesuffix("-apart").endswith("fetch") for scenario in todo):
        say(f"producing {plan.fetch_records:,} records to fetch")
        large = javatools.LARGE_BATCHES
        javatools.produce(bootstrap, FETCH_TOPIC, plan.fetch_records, jvm=plan.jvm, settings=large)
        if plan.warmup_records:
            javatools.consume(bootstrap, FETCH_TOPIC, plan.fetch_records, jvm=plan.jvm)


def _measure(
    plan: Plan,
    context: Context,
    running: Sequence[Running],
    todo: Sequence[Scenario],
    began: float,
    result: dict[str, Any],
    say: Say,
) -> None:
    def take(scenario: Scenario, number: int, *, backwards: bool = False) -> None:
        those = running if scenario.sides is None else context.by_tls[scenario.sides.key]
        covered = [one for one in (reversed(those) if backwards else those) if scenario.covers(one)]
        for ways in [covered] if scenario.together and covered else [[one] for one in covered]:
            _sample(context, scenario, ways, number, result, say)

    for scenario in todo:
        if scenario.once:
            take(scenario, 0)
    for number in range(plan.rounds):
        if time.monotonic() - began > plan.time_limit_s and number:
            say(f"time limit of {plan.time_limit_s:g} s: stopping after {number} of {plan.rounds} rounds")
            break
        for scenario in todo:
            if scenario.once:
                continue
            repeats = plan.repeats.get(scenario.key, 1)
            for turn in range(number * repeats, (number + 1) * repeats):
                # A B C, C B A, ...: a drift of the machine favours none of them.
                take(scenario, turn, backwards=turn % 2 == 1)


def _sample(
    context: Context, scenario: Scenario, ways: Sequence[Running], number: int, result: dict[str, Any], say: Say
) -> None:
    """Take one sample (of each way, where several are measured together); if strangers on the machine disturbed it,
    again, and keep the least disturbed.

    Raises:
        BrokerEndedError: it failed, and the broker is gone.
    """
    names = ", ".join(one.variant.key for one in ways)
    best: dict[str, Values] | None = None
    least = 0.0
    for attempt in range(1, context.plan.attempts + 1):
        say(f"round {number + 1}: {scenario.key} {names}{f', attempt {attempt}' if attempt > 1 else ''}")
        limit_s = min(context.plan.calm_wait_s, context.wait_budget_s)
        context.wait_budget_s -= wait_calm(CALM_SHARE, context.cores, limit_s)
        began = time.monotonic()
        try:
            found = scenario.measure(context, ways)
        except MeasurementError as error:
            say(f"  failed: {error}")
            # The proxy's folder is gone when the run is over.
            answer = {"error": f"{type(error).__name__}: {error}", "log": "".join(one.log_tail() for one in ways)}
            result["errors"].append({"scenario": scenario.key, "round": number, "variant": names, **answer})
            if ended := context.broker_ended():
                raise BrokerEndedError(ended) from error
            break
        share = max(values.get("stranger_share", 0.0) for values in found.values())
        if best is None or share < least:
            best, least = found, share
        for values in found.values():
            values["attempts"] = attempt
        if attempt > 1:
            context.wait_budget_s -= time.monotonic() - began
        if share <= CALM_SHARE or context.wait_budget_s <= 0:
            break
    for key, values in (best or {}).items():
        place = {"scenario": scenario.key, "round": number, "variant": key}
        result["samples"].append(place | {"values": {name: float(f"{value:.6g}") for name, value in values.items()}})


def _versions(chosen: Sequence[Variant]) -> dict[str, str]:
    versions = {"Kafka": DEFAULT_VERSION, "Python": platform.python_version()}
    versions["trio"] = importlib.metadata.version("trio")
    try:
        done = subprocess.run([str(find_java()), "-version"], capture_output=True, text=True, check=False, timeout=20)
        versions["Java"] = (done.stderr or done.stdout).split('"')[1]
    except (IndexError, OSError, EmbeddedKafkaError):
        versions["Java"] = "unknown"
    for variant in chosen:
        if version := variant.version():
            versions[variant.title.split(",")[0]] = version
    return versions
