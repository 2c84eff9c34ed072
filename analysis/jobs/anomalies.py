"""`anomalies`: clients that use what they never used, or far more of it than ever."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, moment, some_rows
from analysis.kinds import exploded
from analysis.report import Content, Context, Report, Table
from analysis.words import several, size, span, who

USES = {
    "produce_bytes": "produced bytes",
    "fetch_bytes": "fetched bytes",
    "request_seconds": "seconds of broker time",
    "mutations": "partitions created or deleted",
    "requests_transaction": "requests of transactions",
    "requests_admin": "requests of administration",
    "requests_group": "requests of groups",
}
COLUMNS = tuple(USES)
MUCH = 3.0
"""Times the highest hour before."""
LITTLE = {"produce_bytes": 1e7, "fetch_bytes": 1e7, "request_seconds": 10.0}
"""In an hour; growth up to this is not reported."""
LITTLE_ELSE = 10.0
NEWS = {
    "new client": "had no record before",
    "never used before": "used something for the first time",
    "more than ever": "used far more than in any earlier hour",
}


def run(context: Context) -> Report:
    """Each client's highest hour of each use, in the last days and before."""
    recent_days: float = context.options["recent_days"]
    quality = context.intake.quality
    since_s = quality.last_ms // 1000 - round(recent_days * DAY_S)
    history_s = since_s - quality.first_ms / 1000
    rows = context.records.withColumn("hour_s", bucket(HOUR_S))
    hourly = rows.groupBy(*CLIENT, "hour_s").agg(*(F.sum(name).cast("double").alias(name) for name in USES))
    recent = F.col("hour_s") >= since_s
    sides = hourly.groupBy(*CLIENT).agg(
        F.sum((~recent).cast("long")).alias("hours_before"),
        F.sum(recent.cast("long")).alias("hours_recent"),
        F.min(F.when(recent, F.col("hour_s"))).alias("first_s"),
        *(F.max(F.when(recent, F.col(name))).alias(f"{name}_recent") for name in USES),
        *(F.coalesce(F.max(F.when(~recent, F.col(name))), F.lit(0.0)).alias(f"{name}_before") for name in USES),
    )
    sides = context.kept(sides.where("hours_recent > 0"), "sides")
    uses = exploded(
        sides,
        (*CLIENT, "hours_before", "first_s"),
        (
            [
                F.lit(name).alias("use"),
                F.col(f"{name}_recent").alias("highest_hour"),
                F.col(f"{name}_before").alias("highest_hour_before"),
                F.lit(LITTLE.get(name, LITTLE_ELSE)).alias("little"),
            ]
            for name in USES
        ),
    ).where("highest_hour > 0")
    new, first_use, more = NEWS
    far_more = F.col("highest_hour") > F.greatest(F.col("highest_hour_before") * MUCH, "little")
    kind = (
        F.when(F.col("hours_before") == 0, new).when(F.col("highest_hour_before") <= 0, first_use).when(far_more, more)
    )
    found = uses.withColumn("anomaly", kind).where(F.col("anomaly").isNotNull() & F.lit(history_s >= HOUR_S))
    found = found.select(
        "anomaly",
        *CLIENT,
        "use",
        "highest_hour",
        "highest_hour_before",
        "hours_before",
        moment("first_s").alias("first_seen_recently"),
    )
    order: list[Column | str] = [F.col("anomaly").desc(), F.col("highest_hour").desc(), *CLIENT, "use"]
    return Report(
        "Anomalies",
        f"Which usage of the last {span(recent_days * DAY_S)} is new, or far above its earlier maximum?",
        {"anomalies": Table(found, "New usage per hour", order)},
        lambda tables: _content(tables, quality.seconds, history_s),
    )


def _content(tables: Mapping[str, DataFrame], whole_s: float, history_s: float) -> Content:
    if history_s < HOUR_S:
        return Content([f"Only {span(whole_s)} of records: nothing earlier to compare with."])
    found = tables["anomalies"]
    findings = []
    for name, predicate in NEWS.items():
        mine = found.where(F.col("anomaly") == name)
        clients = mine.select(*CLIENT).distinct().count()
        first = some_rows(mine.orderBy(F.col("highest_hour").desc(), *CLIENT), 1)
        if first:
            row = first[0]
            findings.append(f"{several(clients, 'client')} {predicate}; the largest, {who(row)}: {_amount(row)}.")
    if not findings:
        findings = ["No client used anything for the first time, or far more than before."]
    notes = [
        f"Earlier usage is {span(history_s)} of records. A monthly job counts as new, unless the records "
        "contain an earlier run.",
        f"More than ever: an hour with more than {MUCH:g} times the highest earlier hour.",
    ]
    return Content(findings, notes=notes)


def _amount(row: object) -> str:
    use, value, before = row["use"], row["highest_hour"], row["highest_hour_before"]  # type: ignore[index]
    texts = [size(one) if use.endswith("_bytes") else f"{one:,.4g}" for one in (value, before)]
    return f"{texts[0]} {USES[use].replace(' bytes', '')} in an hour" + (f", {texts[1]} before" if before else "")
