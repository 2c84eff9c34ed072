"""`anomalies`: clients that use what they never used, or far more of it than ever."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis.columns import CLIENT, DAY_S, HOUR_S, bucket, named, some_rows
from analysis.kinds import exploded
from analysis.report import Content, Context, Report, Table, Tables
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
    hourly = rows.groupBy(*CLIENT, "hour_s").agg(*named(**{name: f"double(sum({name}))" for name in USES}))
    recent = f"hour_s >= {since_s}"
    sides = hourly.groupBy(*CLIENT).agg(
        *named(hours_before=f"count_if(NOT {recent})", hours_recent=f"count_if({recent})"),
        F.expr(f"min(IF({recent}, hour_s, NULL)) AS first_s"),
        *(F.expr(f"max(IF({recent}, {name}, NULL)) AS {name}_recent") for name in USES),
        *(F.expr(f"coalesce(max(IF({recent}, NULL, {name})), 0) AS {name}_before") for name in USES),
    )
    sides = context.kept(sides.where("hours_recent > 0"), "sides")
    each = [
        {
            "use": f"'{name}'",
            "highest_hour": f"{name}_recent",
            "highest_hour_before": f"{name}_before",
            "little": f"double({LITTLE.get(name, LITTLE_ELSE)})",
        }
        for name in USES
    ]
    uses = exploded(sides, (*CLIENT, "hours_before", "first_s"), each).where("highest_hour > 0")
    new, first_use, more = NEWS
    anomaly = (
        F.when(F.col("hours_before") == 0, new)
        .when(F.col("highest_hour_before") <= 0, first_use)
        .when(F.expr(f"highest_hour > greatest(highest_hour_before * {MUCH:e}, little)"), more)
    )
    found = uses.withColumn("anomaly", anomaly).where(F.col("anomaly").isNotNull() & F.lit(history_s >= HOUR_S))
    amounts = ("use", "highest_hour", "highest_hour_before", "hours_before")
    found = found.selectExpr("anomaly", *CLIENT, *amounts, "timestamp_seconds(first_s) AS first_seen_recently")
    order: list[Column | str] = [F.desc("anomaly"), F.desc("highest_hour"), *CLIENT, "use"]
    return Report(
        "Anomalies",
        f"Which usage of the last {span(recent_days * DAY_S)} is new, or far above its earlier maximum?",
        {"anomalies": Table(found, "New usage per hour", order)},
        lambda tables: _content(tables, quality.seconds, history_s),
    )


def _content(tables: Tables, whole_s: float, history_s: float) -> Content:
    if history_s < HOUR_S:
        return Content([f"Only {span(whole_s)} of records: nothing earlier to compare with."])
    found = tables["anomalies"]
    findings = []
    for name, predicate in NEWS.items():
        mine = found.where(F.col("anomaly") == name)
        clients = mine.select(*CLIENT).distinct().count()
        for row in some_rows(mine.orderBy(F.desc("highest_hour"), *CLIENT), 1):
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
