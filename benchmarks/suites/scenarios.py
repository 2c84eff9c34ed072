"""What is measured on each way to the broker, and what a metric means."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.report.stats import percentile
from benchmarks.rig import affinity, javatools, rawclient
from benchmarks.rig import tls as secured
from benchmarks.rig.procstat import MachineTime, cpu_s, settled_resident_bytes
from benchmarks.rig.variants import KQUOTA_TRANSPARENT, Running
from benchmarks.suites.plan import RECORD_BYTES, Plan

PRODUCE_TOPIC = "bench-produce"
FETCH_TOPIC = "bench-fetch"
SMALL_TOPIC = "bench-small"

GB = 1_000_000_000
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a scenario."""

    key: str
    title: str
    unit: str
    digits: int
    compare: Literal["direct", "haproxy", "added", "none"] = "none"
    """Reported as ratio to direct, as ratio to HAProxy, as difference to direct, or as it is."""


@dataclass(slots=True)
class Context:
    """What every scenario of a run works with."""

    plan: Plan
    broker_pid: int
    cores: int
    wait_budget_s: float
    """What is left of the plan's."""
    by_tls: dict[str, list[Running]] = field(default_factory=dict)
    """By the sides' key: the ways to the broker with TLS."""
    broker_ended: Callable[[], str] = lambda: ""
    """What is known of a broker that has ended, empty while it runs."""


Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of measurement; `run` gives the metrics' values and whatever else is worth keeping."""

    key: str
    title: str
    metrics: tuple[Metric, ...]
    run: Callable[[Context, Running], Values] | None
    once: bool = False
    """Not in every round, but before the first: the proxies have carried nothing yet."""
    proxies_only: bool = False
    leaves_out: tuple[str, ...] = ()
    """Variants that it says nothing new about."""
    sides: secured.Sides | None = None
    """Goes by ways with TLS on these sides. Directly, clients speak to the broker as they do to the proxies."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be measured on this machine; None if it can."""
    together: Callable[[Context, Sequence[Running]], dict[str, Values]] | None = None
    """Measures all ways at once, where `run` is None: values by the variant's key."""

    def measure(self, context: Context, ways: Sequence[Running]) -> dict[str, Values]:
        """Values by the variant's key: of all ways where they are measured together, else of the only one."""
        if self.together is not None:
            return self.together(context, ways)
        assert self.run is not None
        (one,) = ways
        return {one.variant.key: self.run(context, one)}

    def covers(self, running: Running) -> bool:
        """Whether this variant is measured."""
        return running.variant.key not in self.leaves_out and not (self.proxies_only and running.pid is None)


@dataclass(slots=True)
class Meter:
    """CPU time that went by while something was measured."""

    values: Values = field(default_factory=dict)


@contextmanager
def metered(context: Context, *proxies: int | None) -> Iterator[Meter]:
    """Measure CPU seconds of the proxies, the broker, our clients, and of strangers on the machine (that is: noise)."""
    meter = Meter()
    pids = [pid for pid in proxies if pid is not None]
    machine, began = MachineTime.now(), time.perf_counter()
    proxy_s = sum(map(cpu_s, pids))
    broker_s, own_s = cpu_s(context.broker_pid), _own_cpu_s()
    yield meter
    values = meter.values
    values["wall_s"] = time.perf_counter() - began
    values["broker_cpu_s"] = cpu_s(context.broker_pid) - broker_s
    values["client_cpu_s"] = _own_cpu_s() - own_s
    known_s = values["broker_cpu_s"] + values["client_cpu_s"]
    if pids:
        values["proxy_cpu_s"] = sum(map(cpu_s, pids)) - proxy_s
        known_s += values["proxy_cpu_s"]
    after = MachineTime.now()
    values["stranger_cpu_s"] = max(0.0, after.busy_s - machine.busy_s - known_s)
    values["stolen_cpu_s"] = after.stolen_s - machine.stolen_s
    lost_s = values["stranger_cpu_s"] + values["stolen_cpu_s"]
    values["stranger_share"] = lost_s / values["wall_s"] / context.cores


def _own_cpu_s() -> float:
    """This process and the tools it has run to their end."""
    tools = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + tools.ru_utime + tools.ru_stime


# ---- throughput ----------------------------------------


def _produce(context: Context, running: Running, records: int, settings: tuple[str, ...]) -> Values:
    with metered(context, running.pid) as meter:
        done = javatools.produce(
            running.bootstrap,
            PRODUCE_TOPIC,
            records,
            jvm=context.plan.jvm,
            settings=settings,
            security=running.client_settings,
        )
    values = meter.values | {"mb_per_s": done.bytes_per_s / MB, "p50_ms": done.p50_ms, "p99_ms": done.p99_ms}
    return _with_cpu_per_gb(values, records)


def _produce_large(context: Context, running: Running) -> Values:
    return _produce(context, running, context.plan.produce_records, javatools.LARGE_BATCHES)


def _produce_default(context: Context, running: Running) -> Values:
    return _produce(context, running, context.plan.produce_default_records, ())


def _fetch(context: Context, running: Running) -> Values:
    with metered(context, running.pid) as meter:
        done = javatools.consume(
            running.bootstrap,
            FETCH_TOPIC,
            context.plan.fetch_records,
            jvm=context.plan.jvm,
            security=running.client_settings,
        )
    values = meter.values | {"mb_per_s": done.fetch_bytes_per_s / MB, "with_join_mb_per_s": done.bytes_per_s / MB}
    return _with_cpu_per_gb(values, done.records)


def _with_cpu_per_gb(values: Values, records: int) -> Values:
    gigabytes = records * RECORD_BYTES / GB
    values["broker_cpu_s_per_gb"] = values["broker_cpu_s"] / gigabytes
    if "proxy_cpu_s" in values:
        values["cpu_s_per_gb"] = values["proxy_cpu_s"] / gigabytes
    return values


_THROUGHPUT = (
    Metric("mb_per_s", "throughput", "MB/s", 0, "direct"),
    Metric("cpu_s_per_gb", "CPU of the proxy per GB", "s", 3, "haproxy"),
)


# ---- the proxy having a core of its own ----------------------------------------


def _apart(run: Callable[[Context, Running], Values]) -> Callable[[Context, Running], Values]:
    """The same measurement with broker and clients on all cores but the last, which the proxy has alone.

    Directly, broker and clients have no more cores than with a proxy, so that the ratio is what the proxy adds.
    """

    def measure(context: Context, running: Running) -> Values:
        plan = context.plan
        context = replace(context, plan=replace(plan, jvm=(*plan.jvm, *SOON_COMPILED)))
        with affinity.apart((os.getpid(), context.broker_pid), running.pid):
            # Read back from the kernel, so that the stored sample shows that it was so.
            values: Values = {"cores_of_broker": len(os.sched_getaffinity(context.broker_pid))}
            values["cores_of_clients"] = len(os.sched_getaffinity(0))
            if running.pid is not None:
                values["core_of_proxy"] = min(os.sched_getaffinity(running.pid))
            return run(context, running) | values

    return measure


SOON_COMPILED = ("-XX:TieredStopAtLevel=1",)
"""Of tools that share one core with the broker for a few seconds: there the optimizing compiler takes more than it
gives (producing 47 to 76 MB/s without it where 27 to 49 came with it), and no two runs alike."""
_NOT_APART = (KQUOTA_TRANSPARENT.key,)


# ---- small requests ----------------------------------------


def _small(context: Context, running: Running) -> Values:
    plan = context.plan
    with metered(context, running.pid) as meter:
        loop = rawclient.open_loop(
            running.address,
            SMALL_TOPIC,
            rate_per_s=plan.small_rate_per_s,
            seconds=plan.small_s,
            connections=plan.small_connections,
        )
    values = _loop_values(meter.values, loop)
    values["late_p99_us"] = percentile(loop.lateness_s, 99) * 1e6
    return values


def _side_by_side(context: Context, ways: Sequence[Running]) -> dict[str, Values]:
    plan = context.plan
    with metered(context, *(way.pid for way in ways)) as meter:
        loops = rawclient.side_by_side(
            [way.address for way in ways],
            SMALL_TOPIC,
            rate_per_s=plan.small_rate_per_s,
            seconds=plan.together_s,
            connections=plan.small_connections,
        )
    meter.values.pop("proxy_cpu_s", None)  # of all of them: says nothing about one
    return {way.variant.key: meter.values | _answered(loop) for way, loop in zip(ways, loops, strict=True)}


def _busy(context: Context, running: Running) -> Values:
    plan = context.plan
    with metered(context, running.pid) as meter:
        loop = rawclient.closed_loop(
            running.address, SMALL_TOPIC, seconds=plan.busy_s, connections=plan.busy_connections
        )
    return _loop_values(meter.values, loop)


def _answered(loop: rawclient.LoopResult) -> Values:
    if loop.throttled:
        raise rawclient.BenchmarkRequestError(f"{loop.throttled} responses carried a throttle time; none may")
    return {
        "requests": loop.requests,
        "requests_per_s": loop.requests / loop.seconds,
        "p50_us": percentile(loop.latencies_s, 50) * 1e6,
        "p99_us": percentile(loop.latencies_s, 99) * 1e6,
    }


def _loop_values(values: Values, loop: rawclient.LoopResult) -> Values:
    values |= _answered(loop)
    values["broker_cpu_us_per_request"] = values["broker_cpu_s"] / loop.requests * 1e6
    if "proxy_cpu_s" in values:
        values["cpu_us_per_request"] = values["proxy_cpu_s"] / loop.requests * 1e6
    return values


_CPU_PER_REQUEST = Metric("cpu_us_per_request", "CPU of the proxy per request", "µs", 1, "haproxy")


# ---- TLS ----------------------------------------


def _connects(context: Context, running: Running) -> Values:
    with metered(context, running.pid) as meter:
        done = rawclient.connects(running.address, seconds=context.plan.connects_s, tls=running.client_context)
    values = meter.values | {"connections": done.connections, "per_s": done.connections / done.seconds}
    if "proxy_cpu_s" in values:
        values["per_cpu_s"] = done.connections / values["proxy_cpu_s"]
        values["cpu_us_per_connection"] = values["proxy_cpu_s"] / done.connections * 1e6
    return values


def _with_tls(sides: secured.Sides) -> Iterator[Scenario]:
    """The same with TLS on one side or both."""

    def scenario(
        kind: str, title: str, metrics: tuple[Metric, ...], run: Callable[[Context, Running], Values]
    ) -> Scenario:
        return Scenario(f"{sides.key}-{kind}", f"{sides.title}: {title}", metrics, run, sides=sides)

    yield scenario("produce", "produce, 1 KB records, default batches of 16 KB", _THROUGHPUT, _produce_default)
    yield scenario("fetch", "fetch, 1 KB records", _THROUGHPUT, _fetch)
    opened = (
        Metric("per_s", "connections, one after another", "1/s", 0),
        Metric("per_cpu_s", "connections per second of the proxy's CPU", "1/s", 0),
        Metric("cpu_us_per_connection", "CPU of the proxy per connection", "µs", 0, "haproxy"),
    )
    if sides is secured.FROM_CLIENT:
        yield scenario("full", "connections with full handshakes and one request", opened, _connects)
    elif sides is secured.TO_BROKER:
        yield scenario("connects", "plain connections with one request, TLS as the proxy does it", opened, _connects)


# ---- memory ----------------------------------------


def _memory(context: Context, running: Running) -> Values:
    assert running.pid is not None
    values: Values = {}
    for count in context.plan.idle_connections:
        with rawclient.idle_connections(running.address, count):
            values[f"rss_mb_{count}"] = settled_resident_bytes(running.pid) / MB
    least, most = context.plan.idle_connections[0], context.plan.idle_connections[-1]
    grown_mb = values[f"rss_mb_{most}"] - values[f"rss_mb_{least}"]
    values["kb_per_connection"] = grown_mb * 1000 / (most - least)
    return values


def scenarios(plan: Plan) -> list[Scenario]:
    """The scenarios of a plan, in the order in which they are run and reported."""
    rss = tuple(Metric(f"rss_mb_{count}", f"{count} idle connections", "MB", 1) for count in plan.idle_connections)
    known = [
        Scenario(
            "memory",
            "Resident memory, before any traffic",
            (*rss, Metric("kb_per_connection", "per idle connection", "kB", 1, "haproxy")),
            _memory,
            once=True,
            proxies_only=True,
        ),
        Scenario(
            "produce",
            "Produce, 1 KB records, batches up to 128 KB (ProducerPerformance, acks=1)",
            _THROUGHPUT,
            _produce_large,
        ),
        Scenario(
            "produce-default",
            "Produce, 1 KB records, Kafka's default batches of 16 KB",
            _THROUGHPUT,
            _produce_default,
        ),
        Scenario("fetch", "Fetch, 1 KB records (ConsumerPerformance)", _THROUGHPUT, _fetch),
        *(
            Scenario(
                f"{key}-apart",
                f"{title}, the proxy having a core of its own",
                _THROUGHPUT,
                _apart(run),
                leaves_out=_NOT_APART,
                missing=affinity.missing,
            )
            for key, title, run in (
                ("produce", "Produce, batches up to 128 KB", _produce_large),
                ("produce-default", "Produce, Kafka's default batches", _produce_default),
                ("fetch", "Fetch", _fetch),
            )
        ),
        Scenario(
            "small",
            f"Small produce requests, {plan.small_rate_per_s:,.0f}/s over {plan.small_connections} connections",
            (
                Metric("p50_us", "latency p50", "µs", 0, "added"),
                Metric("p99_us", "latency p99", "µs", 0, "added"),
                _CPU_PER_REQUEST,
            ),
            _small,
        ),
        Scenario(
            "together",
            f"Small produce requests, {plan.small_rate_per_s:,.0f}/s in all, each by another way than the one before",
            (Metric("p50_us", "latency p50", "µs", 0, "added"), Metric("p99_us", "latency p99", "µs", 0, "added")),
            None,
            leaves_out=_NOT_APART,
            together=_side_by_side,
        ),
        Scenario(
            "busy",
            f"Small produce requests, as fast as it goes over {plan.busy_connections} connections",
            (
                Metric("requests_per_s", "requests per second", "1/s", 0, "direct"),
                Metric("p50_us", "latency p50", "µs", 0),
                Metric("p99_us", "latency p99", "µs", 0),
                _CPU_PER_REQUEST,
            ),
            _busy,
        ),
        *(scenario for sides in secured.ALL for scenario in _with_tls(sides)),
    ]
    return [scenario for scenario in known if scenario.key not in plan.without]
