"""How much is measured: sizes, rounds and time limits of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.rig import tls

RECORD_BYTES = 1024
"""Value of a record in the throughput scenarios."""

CALM_SHARE = 0.1
"""A sample counts as disturbed when other programs (and the hypervisor) took more than this share of the machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run. A GB is 10^9 bytes of record values everywhere."""

    name: str
    rounds: int
    """Every variant is measured once per round; the order turns around from round to round."""
    warmup_records: int
    """Produced directly before anything counts: the broker's JVM compiles its hot code meanwhile."""
    produce_records: int
    produce_default_records: int
    fetch_records: int
    small_rate_per_s: float
    small_s: float
    """How long the open loop runs at that rate."""
    small_connections: int
    busy_s: float
    busy_connections: int
    idle_connections: tuple[int, ...]
    time_limit_s: float
    """No round begins after this much time since the start; what has been measured is reported."""
    calm_wait_s: float = 5.0
    """How long a sample waits for other programs on the machine to be done."""
    attempts: int = 3
    """A sample that others disturbed all the same is taken again; the least disturbed one counts."""
    wait_budget_s: float = 300.0
    """Time of a run that may go into waiting and taking again."""
    broker_heap: str = "512m"
    jvm: tuple[str, ...] = ("-XX:+UseSerialGC", "-Xshare:auto")
    """Of broker and tools, besides the heap: one collector thread on few cores."""
    together_s: float = 20.0
    """How long the open loop runs over all ways at once."""
    idle_cores_poll: bool = True
    """Idle cores look for work instead of halting (`benchmarks.rig.idle`), where that is allowed."""
    connects_s: float = 2.0
    """How long connections are made one after another."""
    without: tuple[str, ...] = ()
    """Scenarios that are left out."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    """By scenario: how often it is measured in each round, where once is too little for what is compared. Each time
    counts as a round of its own in what is reported."""


FULL = Plan(
    name="full",
    rounds=5,
    warmup_records=400_000,
    produce_records=300_000,
    produce_default_records=150_000,
    fetch_records=1_000_000,
    small_rate_per_s=4000.0,
    small_s=4.0,
    small_connections=8,
    busy_s=2.5,
    busy_connections=32,
    idle_connections=(0, 100, 1000),
    time_limit_s=3600.0,
    repeats={
        "fetch": 2,
        "produce-default": 2,
        "produce-apart": 2,
        "produce-default-apart": 2,
        "fetch-apart": 2,
        "small": 3,
        "together": 2,
    },
)

QUICK = Plan(
    name="quick",
    rounds=1,
    warmup_records=50_000,
    produce_records=50_000,
    produce_default_records=0,
    fetch_records=150_000,
    small_rate_per_s=4000.0,
    small_s=1.0,
    small_connections=8,
    busy_s=1.0,
    busy_connections=32,
    idle_connections=(0, 100),
    time_limit_s=45.0,
    wait_budget_s=0.0,
    together_s=1.0,
    connects_s=0.5,
    without=("produce-default", "produce-default-apart", *(f"{sides.key}-produce" for sides in tls.ALL)),
)

TINY = Plan(
    name="tiny",
    rounds=1,
    warmup_records=0,
    produce_records=2_000,
    produce_default_records=0,
    fetch_records=2_000,
    small_rate_per_s=200.0,
    small_s=0.5,
    small_connections=2,
    busy_s=0.3,
    busy_connections=4,
    idle_connections=(0, 10),
    time_limit_s=30.0,
    wait_budget_s=0.0,
    broker_heap="256m",
    jvm=("-XX:+UseSerialGC", "-Xshare:auto", "-XX:TieredStopAtLevel=1"),
    together_s=0.5,
    connects_s=0.2,
    without=(
        *("produce-default", "produce-default-apart", "tls-broker-fetch", "tls-client-fetch"),
        *(f"{sides.key}-produce" for sides in tls.ALL),
    ),
)

PLANS = {plan.name: plan for plan in (FULL, QUICK, TINY)}
