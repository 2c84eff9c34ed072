"""`whatif`: the effect that other quotas would have had on past traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import merged, named, only_row, place_in, some_rows, sums
from analysis.intake import Intake
from analysis.kinds import AMOUNTS, BYTE_KINDS, exploded, of_kind
from analysis.levels import ADDED, CandidateQuotas, resolved
from analysis.replay import RESULT, Rule, folded, most_in_window
from analysis.report import Content, Context, Report, Table, Tables
from analysis.session import ship_code
from analysis.words import group_name, rate, several, share, span
from quota.counter import LedgerSettings
from quota.entity import Kind

COLUMNS = (*AMOUNTS.values(), *(f"throttle_{kind}_seconds" for kind in Kind))
CLIENT = ("cluster_id", "instance", "user", "client_id")
NAMED = ("cluster_id", "group_user", "group_client")
GROUP = ("cluster_id", "counter", "group_user", "group_client")
ROWS_PER_TASK = 500_000
"""Intervals that one task replays; it gets all of a group."""
TASKS_PER_CORE = 4
"""The minimum number of tasks, so that none has much more to do than the others."""
HALF_UP = 0.5


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates with entries for the same clients: their counters are the same, only the limits differ."""

    kind: Kind
    rule: Rule
    candidates: Mapping[str, CandidateQuotas]

    @property
    def may_be_over(self) -> Column:
        """Whether a counter can have exceeded its least limit at all, by the sum of its clients' highest densities."""
        rule, least_limit = self.rule, F.array_min("limits")
        if rule.tokens is not None:  # usage that never exceeded the burst in all this time was never delayed
            return F.col("used") > least_limit * (rule.num_samples * rule.sample_ms / 1000)
        if rule.num_samples == 1:
            return F.lit(True)
        return F.col("density") * (rule.scale * most_in_window(rule.num_samples, rule.sample_ms)) > least_limit


def families(candidates: Mapping[str, CandidateQuotas]) -> list[Family]:
    """The candidates by kind of quota, and by the counters that they have."""
    found: dict[tuple[Kind, Rule, frozenset[object]], dict[str, CandidateQuotas]] = {}
    for name, one in candidates.items():
        for kind in Kind:
            counters = frozenset((*entry.entity, one.table.of_fleet(entry)) for entry in one.entries(kind))
            if counters:
                found.setdefault((kind, _rule(kind, one.settings), counters), {})[name] = one
    return [Family(kind, rule, of) for (kind, rule, _), of in found.items()]


def _rule(kind: Kind, settings: LedgerSettings) -> Rule:
    """How this kind counts."""
    if kind is Kind.MUTATION:
        return Rule(settings.mutation_num_samples, settings.mutation_window_ms, tokens=settings.mutation_algorithm)
    if kind is Kind.REQUEST:  # charged with milliseconds of busy time, limited in percent, by a sample at most
        return Rule(settings.num_samples, settings.window_ms, 0.1, settings.window_ms)
    return Rule(settings.num_samples, settings.window_ms)


def run(context: Context) -> Report:
    """Replay every kind that a candidate limits."""
    candidates: Mapping[str, CandidateQuotas] = context.options["candidates"]
    at_most: float = context.options.get("at_most", 0.01)
    found = families(candidates)
    rows = context.records
    clients = context.kept(_clients(rows, {one.kind for one in found}), "clients")
    members = context.kept(_members(clients, found), "members")
    groups = context.kept(_groups(members, found, context.intake), "groups")
    outcome = context.kept(_outcome(groups, _replayed(context, rows, members, groups, found), found), "outcome")
    several_tried = len(candidates) > 1
    groups_that_share = Table(
        outcome.drop("seconds_seen"),
        "Groups that share a limit",
        [F.desc("seconds_over"), "candidate", "kind", *NAMED],
        left_out=() if several_tried else ("candidate",),
        summed=("seconds_over", "delayed_in_truth_s"),
        per=("candidate", "kind"),
    )
    tables = {"groups": groups_that_share}
    if several_tried:
        tables = {
            "candidates": _candidate_table(outcome, list(candidates), at_most),
            "cheapest": _cheapest_table(outcome, at_most),
            **tables,
        }
    return Report(
        "What if",
        "What would the candidate quotas have done to the recorded traffic?",
        tables,
        lambda tables: _content(tables, list(candidates), at_most),
    )


def _amount(kind: Kind) -> str:
    return f"greatest({AMOUNTS[kind]} * {1000 if kind is Kind.REQUEST else 1}, 0)"


def _clients(rows: DataFrame, kinds: set[Kind]) -> DataFrame:
    """The input of all questions about whole groups: one row per client of each sidecar, in one scan."""
    seconds = "greatest(duration_s, 0.001)"
    least = f"least({seconds}, greatest(floor(duration_s + {HALF_UP}), 1))"
    sums = {"seconds": "sum(duration_s)", "records": "count(*)", "first_ms": "min(start_ms)", "last_ms": "max(end_ms)"}
    for kind in sorted(kinds):
        amount = f"double({_amount(kind)})"
        sums |= {
            f"{kind}_density": f"max({amount} / {least})",
            f"{kind}_peak": f"max({amount} / {seconds})",
            f"{kind}_used": f"sum({amount})",
            f"{kind}_held": f"sum(throttle_{kind}_seconds)",
        }
    return rows.groupBy(*CLIENT).agg(*named(**sums))


def _members(clients: DataFrame, found: Sequence[Family]) -> DataFrame:
    """Per family the clients that have a limit in it, with their counters and their limits."""
    ship_code(clients.sparkSession)
    schema = clients.selectExpr("*", *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in ADDED.items())).schema

    def of(number: int, family: Family) -> DataFrame:
        rows = clients.mapInArrow(resolved(family.kind, family.candidates.values()), schema)
        rows = rows.where("limits[0] IS NOT NULL")
        rows = rows.withColumn("counter", F.when(~F.col("of_fleet"), F.col("instance")))
        names = (*GROUP, *(name for name in CLIENT if name not in GROUP), "of_fleet", "limits")
        figures = (F.col(f"{family.kind}_{name}").alias(name) for name in ("density", "peak", "used", "held"))
        rows = rows.withColumns({"family": F.lit(number), "kind": F.lit(family.kind.value)})
        return rows.select("family", "kind", *names, "seconds", "records", "first_ms", "last_ms", *figures)

    return reduce(DataFrame.unionByName, (of(number, family) for number, family in enumerate(found)))


def _groups(members: DataFrame, found: Sequence[Family], intake: Intake) -> DataFrame:
    """One row per counter, with a number (`gid`), and whether it is worth a replay (`chosen`)."""
    groups = members.groupBy("family", "kind", *GROUP).agg(
        *merged(max=["limits"], first=["of_fleet"], sum=["records", "density", "peak", "used", "held"]),
        F.count_distinct("instance").alias("sidecars"),
        F.count("*").alias("members"),
        # For sidecars that ran at the same time, each second counts once.
        F.expr("least(sum(seconds), (max(last_ms) - min(first_ms)) / 1000) AS seconds"),
    )
    may = F.lit(False)
    for number, family in enumerate(found):
        may |= (F.col("family") == number) & family.may_be_over
    if intake.quality.clock_steps:  # where a clock was set back intervals overlap, and no bound holds
        back = intake.instances.where("clock_steps > 0").selectExpr("instance AS counter", "true AS back")
        groups = groups.join(F.broadcast(back), "counter", "left")
        may |= F.col("back").isNotNull()
    same = Window.partitionBy("family", *NAMED)
    # How long clients of one counter ran at the same time is known only from each interval; it matters where another
    # sidecar's counter of the same name is over its limit.
    groups = groups.withColumn("may", may).withColumn("any", F.max("may").over(same))
    groups = groups.withColumn("chosen", F.col("may") | (F.col("any") & (F.col("members") > 1)))
    return groups.drop("may", "any", "back", "density", "used").withColumn("gid", F.monotonically_increasing_id())


def _replayed(
    context: Context, rows: DataFrame, members: DataFrame, groups: DataFrame, found: Sequence[Family]
) -> DataFrame:
    """Results for the counters worth replaying; only their intervals are shuffled, each counter's to one task."""
    chosen = groups.where("chosen")
    all_chosen = only_row(chosen.agg(*merged(sum=["records"], max=["of_fleet"])))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in ("family", *GROUP)]
    names = chosen.select(*(F.col(name).alias(f"_{name}") for name in ("family", *GROUP)), "gid")
    keys = members.join(names, same).select(*CLIENT, "kind", "of_fleet", "gid")
    amounts = (f"IF(kind = '{kind}', double({_amount(kind)}), NULL)" for kind in sorted({one.kind for one in found}))
    intervals = rows.join(F.broadcast(keys), [*CLIENT]).select(
        "gid", "of_fleet", "start_ms", "duration_s", F.expr(f"coalesce({', '.join(amounts)}) AS amount")
    )
    if all_chosen["of_fleet"]:
        summed = _added_up(intervals.where("of_fleet"))
        intervals = intervals.where("NOT of_fleet").unionByName(summed, allowMissingColumns=True)
    heads = chosen.selectExpr("gid", "family AS rule", "limits")
    cores = groups.sparkSession.sparkContext.defaultParallelism
    tasks = max(TASKS_PER_CORE * cores, (all_chosen["records"] or 0) // ROWS_PER_TASK + 1)
    ship_code(groups.sparkSession)
    together = heads.unionByName(intervals.drop("of_fleet"), allowMissingColumns=True).repartition(tasks, "gid")
    return context.kept(together.mapInArrow(folded([one.rule for one in found]), RESULT), "replayed")


def _added_up(intervals: DataFrame) -> DataFrame:
    """Overlapping intervals of many sidecars -> those between which the sum of their rates changes, by whole seconds: a
    fleet has no more of these than one sidecar would have, and no task gets all its records."""
    since_s = F.expr(f"floor(start_ms / 1000 + {HALF_UP})")
    until_s = F.expr(f"greatest(floor(start_ms / 1000 + duration_s + {HALF_UP}), since_s + 1)")
    rates = intervals.withColumn("since_s", since_s).withColumn("until_s", until_s)
    rates = rates.withColumn("rate", F.expr("amount / (until_s - since_s)"))
    ends = [
        {"second": "since_s", "rate": "rate", "number": "1"},
        {"second": "until_s", "rate": "-rate", "number": "-1"},
    ]
    edges = exploded(rates, ["gid"], ends).groupBy("gid", "second").agg(*sums(("rate", "number")))
    in_order = Window.partitionBy("gid").orderBy("second")
    spans = edges.select(
        "gid",
        (F.col("second") * 1000).alias("start_ms"),
        (F.lead("second").over(in_order) - F.col("second")).cast("double").alias("duration_s"),
        F.sum("rate").over(in_order).alias("rate"),
        F.sum("number").over(in_order).alias("number"),
    )
    amount = F.greatest(F.col("rate"), F.lit(0.0)) * F.col("duration_s")
    return spans.where("number > 0").select("gid", "start_ms", "duration_s", amount.alias("amount"))


def _outcome(groups: DataFrame, replayed: DataFrame, found: Sequence[Family]) -> DataFrame:
    """One row per candidate and named group, all its sidecars together."""
    each = groups.select("*", F.posexplode("limits").alias("place", "limit")).drop("limits")
    each = each.join(replayed.withColumnsRenamed({"peak": "replayed_peak"}), ["gid", "place"], "left")

    scale = of_kind({one.kind: one.rule.scale for one in found})
    sums = each.groupBy("family", "kind", "place", *NAMED).agg(
        *merged(max=["limit"], sum=["sidecars"]),
        F.expr("IF(max(of_fleet), 'fleet', 'instance') AS scope"),
        F.expr("double(coalesce(sum(seconds_over), 0)) AS seconds_over"),
        F.expr("sum(coalesce(seconds_seen, seconds)) AS seconds_seen"),
        F.expr("coalesce(max(longest_ms), 0) / 1000 AS longest_delay_s"),
        F.max(F.coalesce("replayed_peak", F.col("peak") * scale)).alias("peak_interval_rate"),
        F.expr(f"IF(kind = '{Kind.MUTATION}', min(extreme), max(extreme)) AS extreme_in_window"),
        F.sum("held").alias("delayed_in_truth_s"),
    )
    names = F.array(*(F.array(*map(F.lit, one.candidates)) for one in found))
    return sums.select(
        names[F.col("family")][F.col("place")].alias("candidate"), "kind", *NAMED, "limit", "scope", "seconds_over",
        F.expr("coalesce(seconds_over / nullif(seconds_seen, 0), 0)").alias("time_over_share"),
        "longest_delay_s", "peak_interval_rate", "extreme_in_window", "delayed_in_truth_s", "sidecars", "seconds_seen",
    )  # fmt: skip


def _candidate_table(outcome: DataFrame, names: Sequence[str], at_most: float) -> Table:
    counters = "limit * IF(scope = 'fleet', 1, sidecars)"
    limits = {f"{kind}_limits_bytes_per_s": f"sum(IF(kind = '{kind}', {counters}, NULL))" for kind in BYTE_KINDS}
    sums = outcome.groupBy("candidate").agg(
        *named(groups="count(*)", groups_over="count_if(seconds_over > 0)"),
        F.expr(f"count_if(time_over_share > {at_most}) AS groups_over_too_long"),
        F.sum("seconds_over").alias("seconds_over"),
        F.expr("sum(seconds_over) / nullif(sum(seconds_seen), 0) AS time_over_share"),
        F.max("longest_delay_s").alias("longest_delay_s"),
        *named(**limits),
    )
    place = place_in("candidate", names)
    return Table(sums, f"Candidates (too long: more than {share(at_most)} of the time)", [place])


def _cheapest_table(outcome: DataFrame, at_most: float) -> Table:
    """The lowest of the limits tried under which a group would not have been throttled for longer than requested."""
    fits = f"min(IF(time_over_share <= {at_most}, struct(limit, candidate, time_over_share), NULL))"
    found = outcome.groupBy("kind", *NAMED).agg(
        *named(one=fits, highest_tried="max(limit)", lowest_tried="min(limit)"),
        *merged(max=["peak_interval_rate", "scope", "sidecars"]),
    )
    cheapest = found.selectExpr(
        "kind", *NAMED, "one.limit AS cheapest_limit", "one.candidate", "one.time_over_share", "scope",
        "lowest_tried", "highest_tried", "peak_interval_rate", "sidecars",
    )  # fmt: skip
    return Table(
        cheapest,
        f"The lowest tried limit that delays each group for at most {share(at_most)} of its time",
        [F.desc_nulls_first("cheapest_limit"), "kind", *NAMED],
    )


def _content(tables: Tables, names: Sequence[str], at_most: float) -> Content:
    frame = tables["groups"]
    held = frame.where("seconds_over > 0")
    top = some_rows(held.orderBy(F.desc("seconds_over"), "candidate", "kind", *NAMED), 12)
    if "candidates" in tables:
        findings = _compared(tables, at_most)
    else:
        number, several_held = frame.count(), held.count()
        findings = [
            f"{several_held:,} of {several(number, 'limited group')} would have been over the limit at some time."
        ]
        findings += [_sentence(row) for row in top[:4]]
        freed = frame.where("seconds_over = 0 AND delayed_in_truth_s > 0").count()
        if freed:
            findings.append(f"{several(freed, 'group')} that were actually delayed would not have been.")
    shown = {
        f"{group_name(row['group_user'], row['group_client'])} {row['kind']}"
        + (f", {row['candidate']}" if len(names) > 1 else ""): {"min": row["seconds_over"] / 60}
        for row in top
    }
    return Content(
        findings,
        [("Time over the candidate limits", plots.bars(shown, "minutes"))] if shown else [],
        notes=[
            "Records have the usage per interval; the replay spreads it evenly over the seconds. Shorter bursts are "
            "flattened, so these figures are lower bounds.",
            "The replay does not model how clients react to delays. Demand above a limit that was in force is not in "
            "the records.",
            "Window and delay are Kafka's own (KIP-13, KIP-124, KIP-599 without refusals, by the algorithm that the "
            "candidate names), without pacing and without a cap; shadow entries are tried as if they were enforced.",
            "A limit with scope: fleet is replayed as one counter of all sidecars of a cluster. For some seconds an "
            "instance's share may be too small; the replay omits that.",
            "The extreme is the highest rate (for partitions, the fewest tokens) while the group was over its limit. "
            "For clients that share a limit far above their usage, an interval's peak is the sum of their peaks, an "
            "upper bound.",
        ],
    )


def _compared(tables: Tables, at_most: float) -> list[str]:
    findings = [
        f"{row['candidate']}: {row['groups_over']:,} of {several(row['groups'], 'limited group')} over the limit, for "
        f"{span(row['seconds_over'])} ({share(row['time_over_share'])}); "
        f"{row['groups_over_too_long']:,} for more than {share(at_most)} of their time."
        for row in some_rows(tables["candidates"], 12)
    ]
    enough = tables["cheapest"].where("cheapest_limit IS NOT NULL")
    number, all_groups = enough.count(), tables["cheapest"].count()
    findings.append(
        f"For {number:,} of {several(all_groups, 'group')} a tried limit is enough: it delays them for at "
        f"most {share(at_most)} of the time (table cheapest)."
    )
    return findings


def _sentence(row: Any) -> str:
    seconds, part, longest = row["seconds_over"], row["time_over_share"], row["longest_delay_s"]
    kind = row["kind"]
    name, limit = group_name(row["group_user"], row["group_client"]), rate(kind, row["limit"])
    return (
        f"{name} ({kind}, {limit}): over it for {span(seconds)}, {share(part)} of its time; the longest "
        f"delay would have been {span(longest)}."
    )
