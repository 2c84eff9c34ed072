"""`whatif`: what other quotas would have done to the traffic that was there."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import cluster, ratio
from analysis.kinds import MEASURES
from analysis.levels import Candidate, resolved
from analysis.report import Context, Plot, Report, Story, Table
from analysis.rows import some_rows
from analysis.windows import bucket_delays, burst_delays, window_delays
from analysis.words import several, share, size, span
from quota.entity import Kind

COLUMNS = tuple(name for kind in Kind for name in (MEASURES[kind].column, f"throttle_{kind.value}_seconds"))
GROUP = ("cluster_id", "instance", "group_user", "group_client")
STEP_MS = 1000


def run(context: Context) -> Report:
    """Replay every kind that the candidate limits. Each sidecar counts for itself, as it does in life."""
    candidate: Candidate = context.options["candidate"]
    rows = context.records.withColumn("cluster_id", cluster())
    parts = [_replayed(rows, candidate, kind) for kind in Kind if candidate.entries(kind)]
    groups = parts[0]
    for part in parts[1:]:
        groups = groups.unionByName(part)
    return Report(
        "What if",
        "What would the candidate quotas have done to the traffic that was there?",
        {
            "groups": Table(
                groups, "Groups that share a limit", [F.col("seconds_over").desc(), "kind", *GROUP_ORDER], shown=30
            )
        },
        _tell,
    )


GROUP_ORDER = ("cluster_id", "group_user", "group_client")


def decisions(events: DataFrame, candidate: Candidate, kind: Kind, partition: tuple[str, ...] = ()) -> DataFrame:
    """`throttle_ms` and `observed` of each event (`t_ms`, `order`, `user`, `client_id`, `amount` as `kquota simulate`
    has it).
    """
    group = (*partition, "group_user", "group_client")
    return _delays(resolved(events, candidate, kind), candidate, kind, group)


def _delays(events: DataFrame, candidate: Candidate, kind: Kind, group: tuple[str, ...]) -> DataFrame:
    if kind is Kind.MUTATION:
        delays = burst_delays if candidate.mutation_algorithm == "windowed_burst" else bucket_delays
        return delays(events, group, num_samples=candidate.mutation_num_samples, window_ms=candidate.mutation_window_ms)
    is_request = kind is Kind.REQUEST
    return window_delays(
        events,
        group,
        num_samples=candidate.num_samples,
        window_ms=candidate.window_ms,
        scale=0.1 if is_request else 1.0,
        bounded_ms=candidate.window_ms if is_request else None,
    )


def _replayed(rows: DataFrame, candidate: Candidate, kind: Kind) -> DataFrame:
    """One row per group: how long it would have been over its limit, and how it was held in truth."""
    measure = MEASURES[kind]
    # Milliseconds of busy time are what the request quota is charged with.
    amount = F.greatest(F.col(measure.column) * (1000.0 if kind is Kind.REQUEST else 1.0), F.lit(0.0))
    seen = resolved(rows, candidate, kind).where("limit IS NOT NULL")
    intervals = seen.groupBy(*GROUP, "start_ms").agg(
        F.sum(amount).alias("amount"),
        F.max("duration_s").alias("duration_s"),
        F.max("limit").alias("limit"),
        F.sum(f"throttle_{kind.value}_seconds").alias("held"),
    )
    rate = F.col("amount") * (0.1 if kind is Kind.REQUEST else 1.0) / F.greatest("duration_s", F.lit(0.001))
    totals = intervals.groupBy(*GROUP).agg(
        F.max("limit").alias("limit"),
        F.max(rate).alias("peak"),
        F.sum("amount").alias("amount"),
        F.sum("duration_s").alias("seconds"),
        F.sum("held").alias("held_seconds"),
    )
    if kind is Kind.MUTATION:  # who never used more than the burst in all this time was never delayed
        may_be_over = F.col("amount") > F.col("limit") * candidate.mutation_burst_s
    else:  # N + 1 samples' worth is the most that a window of N - 1 samples can hold: below nobody is ever delayed
        samples = candidate.num_samples
        may_be_over = F.col("peak") * ((samples + 1) / max(samples - 1, 1)) > F.col("limit")
    near = totals.where(may_be_over).select(*(F.col(name).alias(f"_{name}") for name in GROUP))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in GROUP]
    replayed = _steps(intervals.join(near, same, "left_semi"))
    over = (
        _delays(replayed, candidate, kind, GROUP)
        .groupBy(*GROUP)
        .agg(
            F.sum((F.col("throttle_ms") > 0).cast("long")).alias("steps_over"),
            F.max("throttle_ms").alias("longest_ms"),
            (F.min if kind is Kind.MUTATION else F.max)("observed").alias("extreme"),
        )
    )
    over = over.select(*(F.col(name).alias(f"_{name}") for name in GROUP), "steps_over", "longest_ms", "extreme")
    extreme = F.max("extreme") if kind is not Kind.MUTATION else F.min("extreme")
    return (
        totals.join(over, same, "left")
        .groupBy("cluster_id", "group_user", "group_client")
        .agg(
            F.max("limit").alias("limit"),
            F.count("*").alias("sidecars"),
            F.coalesce(F.sum("steps_over") * (STEP_MS / 1000), F.lit(0.0)).alias("seconds_over"),
            F.sum("seconds").alias("seconds_seen"),
            (F.coalesce(F.max("longest_ms"), F.lit(0)) / 1000).alias("longest_delay_s"),
            F.max("peak").alias("peak_interval_rate"),
            extreme.alias("extreme_in_window"),
            F.sum("held_seconds").alias("delayed_in_truth_s"),
        )
        .select(
            F.lit(kind.value).alias("kind"),
            "cluster_id",
            "group_user",
            "group_client",
            "limit",
            "seconds_over",
            ratio(F.col("seconds_over"), F.col("seconds_seen")).alias("time_over_share"),
            "longest_delay_s",
            "peak_interval_rate",
            "extreme_in_window",
            "delayed_in_truth_s",
            "sidecars",
        )
    )


def _steps(intervals: DataFrame) -> DataFrame:
    """Each interval's amount spread evenly over its seconds: one event per second."""
    count = F.greatest(F.round("duration_s").cast("int"), F.lit(1))
    spread = intervals.withColumn("_count", count).withColumn(
        "_step", F.explode(F.sequence(F.lit(0), F.col("_count") - 1))
    )
    return spread.select(
        *GROUP,
        "limit",
        (F.col("start_ms") + F.col("_step") * STEP_MS).alias("t_ms"),
        F.col("_step").cast("long").alias("order"),
        (F.col("amount") / F.col("_count")).alias("amount"),
    )


def _tell(tables: Mapping[str, DataFrame]) -> Story:
    frame = tables["groups"]
    held = frame.where("seconds_over > 0")
    number, several_held = frame.count(), held.count()
    top = some_rows(held.orderBy(F.col("seconds_over").desc(), "kind", *GROUP_ORDER), 12)
    freed = frame.where("seconds_over = 0 AND delayed_in_truth_s > 0").count()
    findings = [f"{several_held:,} of {several(number, 'limited group')} would have been over the limit at some time."]
    findings += [
        f"{_name(row)} ({row['kind']}, {_limit(row)}): over it for {span(row['seconds_over'])}, "
        f"{share(row['time_over_share'])} of its time; the longest delay would have been "
        f"{span(row['longest_delay_s'])}."
        for row in top[:4]
    ]
    if freed:
        findings.append(f"{several(freed, 'group')} that were delayed in truth would not have been.")
    shown = {f"{_name(row)} {row['kind']}": {"min": row["seconds_over"] / 60} for row in top}
    return Story(
        findings,
        [Plot("Time over the candidate limits", plots.bars(shown, "minutes"))] if shown else [],
        notes=[
            "Records say how much was used per interval, not when within it: each is replayed spread "
            "evenly over its seconds. "
            "Bursts shorter than an interval are flattened, so what is told here is the least that "
            "would have happened.",
            "The traffic is replayed as it was. Clients that are slowed down ask later or less; and "
            "where a limit was in force "
            "already, what they would have liked to send is not in the records.",
            "Window and delay are Kafka's own (KIP-13, KIP-124, KIP-599 without refusals, by the algorithm "
            "that the candidate names), without pacing and without a cap; "
            "shadow entries are tried as if they were enforced.",
        ],
    )


def _name(row: object) -> str:
    user, client = row["group_user"], row["group_client"]  # type: ignore[index]
    return " / ".join(one or "(none)" for one in (user, client) if one is not None) or "(everybody)"


def _limit(row: object) -> str:
    value, kind = row["limit"], row["kind"]  # type: ignore[index]
    return f"{size(value)}/s" if kind in ("produce", "fetch") else f"{value:g} {MEASURES[Kind(kind)].unit}"
