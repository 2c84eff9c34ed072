"""`chargeback`: what each client owes, by a price model of your own: usage, bursts, and limits reserved for it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import HOUR_S, bucket, named, only_row, some_rows, sums
from analysis.kinds import AMOUNTS, BYTE_KINDS, OF_PROMISES, enforced
from analysis.owners import PriceModel
from analysis.report import TEAM, Content, Context, Report, Table, Tables
from analysis.words import several, share

_AMOUNTS = tuple(AMOUNTS.values())
COLUMNS = (*_AMOUNTS, *OF_PROMISES)
_GB, _MB = 1e9, 1e6
ITEMS = ("usage", "bursts", "idle_reservations")
_BILLED = ("produce_bytes", "fetch_bytes", "burst_bytes", "request_seconds", "mutations")
DIGITS = 6
"""Decimal places of the amounts of a bill."""


def run(context: Context) -> Report:
    """Lines of the bill per payer and hour, and their sums."""
    model: PriceModel = context.options["prices"]
    grain = min(context.grain_s, HOUR_S)
    payer = context.options["owners"].column() if model.payer == TEAM else F.coalesce(model.payer, F.lit("(none)"))
    rows = context.records.withColumns({"payer": payer, "bucket": bucket(grain), "hour_s": bucket(HOUR_S)})
    spans = rows.withColumnsRenamed({"start_ms": "first_ms", "end_ms": "last_ms"})
    observed = context.observed_s(spans, grain), context.observed_s(spans, HOUR_S, "hour_s")
    hours = (
        _used(rows, model, *observed)
        .join(_idle(rows), ["payer", "hour_s"], "left")
        .fillna(0.0, ["idle_produce_byte_seconds", "idle_fetch_byte_seconds"])
    )
    prices = model.prices
    usage: Column = (
        F.col("produce_bytes") / _GB * prices.produce_gb
        + F.col("fetch_bytes") / _GB * prices.fetch_gb
        + F.col("request_seconds") / HOUR_S * prices.request_hour
        + F.col("mutations") * prices.mutation
    )
    idle: Column = (
        F.col("idle_produce_byte_seconds") * prices.idle_produce_mb_s_hour
        + F.col("idle_fetch_byte_seconds") * prices.idle_fetch_mb_s_hour
    ) / (_MB * HOUR_S)
    billed = hours.select(
        "payer",
        F.timestamp_seconds("hour_s").alias("hour"),
        *_AMOUNTS,
        "burst_bytes",
        usage.alias("usage"),
        (F.col("burst_bytes") / _GB * prices.burst_gb).alias("bursts"),
        idle.alias("idle_reservations"),
    )
    billed = context.kept(billed, "billed")
    # The total is of the rounded items, so that a line adds up.
    payers = (
        billed.groupBy("payer")
        .agg(*sums((*ITEMS, *_BILLED)))
        .withColumns({name: F.round(name, DIGITS) for name in ITEMS})
        .selectExpr("payer", f"round({' + '.join(ITEMS)}, {DIGITS}) AS total", *ITEMS, *_BILLED)
    )
    return Report(
        "Chargeback",
        f"What does every {model.payer} owe, in {model.currency}?",
        {
            "bill": Table(payers, f"The bill, in {model.currency}", [F.desc("total"), "payer"]),
            "hours": Table(billed, "The bill, hour by hour", ["hour", "payer"], shown=0),
        },
        lambda tables: _content(tables, model, grain),
    )


def _used(rows: DataFrame, model: PriceModel, seconds: Column, hour_seconds: Column) -> DataFrame:
    """Per payer and hour; bytes above `burst_above` times the hour's mean rate (silent buckets included) separately."""
    buckets = rows.groupBy("payer", "hour_s", "bucket").agg(*sums(_AMOUNTS))
    moved = F.col("produce_bytes") + F.col("fetch_bytes")
    whole_hour = Window.partitionBy("payer", "hour_s")  # at most 3600 / grain rows each
    usual = F.sum(moved).over(whole_hour) / hour_seconds * seconds
    over = F.greatest(moved - usual * model.burst_above, F.lit(0.0))
    return buckets.withColumn("burst_bytes", over).groupBy("payer", "hour_s").agg(*sums((*_AMOUNTS, "burst_bytes")))


def _idle(rows: DataFrame) -> DataFrame:
    """Per payer and hour: byte-seconds of enforced limits not used; a group's are divided evenly among its clients."""
    kinds = enforced(rows, ["payer", "instance", "end_ms", "duration_s", "hour_s"], used="{column}")
    group = Window.partitionBy("instance", "end_ms", "kind", "group_user", "group_client", "hour_s")
    left = F.max("limit").over(group) * F.max("duration_s").over(group) - F.sum("used").over(group)
    idle = F.greatest(left, F.lit(0.0)) / F.count("*").over(group)
    shares = kinds.select("hour_s", "kind", "payer", idle.alias("idle"))
    each = {f"idle_{kind}_byte_seconds": f"sum(IF(kind = '{kind}', idle, 0))" for kind in BYTE_KINDS}
    return shares.groupBy("payer", "hour_s").agg(*named(**each))


def _content(tables: Tables, model: PriceModel, grain: int) -> Content:
    total = only_row(tables["bill"].agg(F.count("*").alias("payers"), *sums(("total", *ITEMS))))
    top = some_rows(tables["bill"], 12)
    sum_ = total["total"] or 0.0
    noun = "client" if model.payer == "client_id" else model.payer
    verb = "owes" if total["payers"] == 1 else "owe"
    findings = [f"{several(total['payers'], noun)} {verb} {sum_:,.2f} {model.currency} in all."]
    if sum_ > 0:
        findings = [
            f"{findings[0][:-1]}, most of all {top[0]['payer']}: {top[0]['total']:,.2f} {model.currency}, "
            f"{share(top[0]['total'] / sum_)} of everything.",
            f"{share(total['bursts'] / sum_)} of all is for bursts, {share(total['idle_reservations'] / sum_)} for "
            "unused limits.",
        ]
        idle = max(top, key=lambda row: row["idle_reservations"])
        if idle["idle_reservations"] > idle["total"] / 2:
            findings.append(
                f"{idle['payer']} pays mostly for unused limits: {idle['idle_reservations']:,.2f} of "
                f"{idle['total']:,.2f} {model.currency}. A lower limit would avoid that."
            )
    bill = {str(row["payer"]): {name.replace("_", " "): row[name] for name in ITEMS} for row in top}
    return Content(
        findings,
        [(f"The largest bills, in {model.currency}", plots.bars(bill, model.currency))],
        notes=[
            f"A burst is the bytes above {model.burst_above:g} times the payer's mean rate of that hour, in "
            f"buckets of {grain} s.",
            "An idle reservation is the unused part of an enforced limit, per sidecar and interval. Only intervals "
            "with a record of the client count, so a limit of an absent client costs nothing.",
        ],
    )
