"""`recommend`: a quota for every client, from what it needs in its busiest hours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import yaml
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, DAY_S, HOUR_S, MAX_ROWS, bucket, grain_for, named, some_rows, start_of
from analysis.kinds import AMOUNTS, USED, by_kind, of_kind
from analysis.report import Content, Context, Report, Table, Tables
from analysis.words import rate, several, span, who
from config.visible import has_control
from quota.entity import Kind
from quota.record import MAX_NAME_CHARACTERS
from quota.table import RATE_FIELD

KINDS = (Kind.PRODUCE, Kind.FETCH, Kind.REQUEST)
COLUMNS = (
    *(AMOUNTS[kind] for kind in KINDS),
    *(f"{kind}_{name}" for kind in KINDS for name in ("rate_p95", "limit", "fleet_limit")),
    *(f"throttle_{kind}_seconds" for kind in KINDS),
)
NEED_PERCENTILE = 0.99
LEAST = {Kind.PRODUCE: 1000.0, Kind.FETCH: 1000.0, Kind.REQUEST: 1.0}
"""No lower limit is ever recommended."""
WINDOW_LIKE_S = 15.0
"""Up to this length an interval's mean is as good as Kafka's window of some 11 s."""
LEAST_S = 1.0
"""No record's mean is over less: the last one of a sidecar may be of milliseconds."""
MIN_GRAIN_S = 10
"""The usage of all of a fleet's sidecars is summed over this many seconds, about the length of Kafka's window."""
DAYS_HIGH, DAYS_MEDIUM, RECORDS_HIGH = 14, 3, 1000
SAME = 0.1
"""Recommendations this close to the limit in force change nothing."""


def run(context: Context) -> Report:
    """Options: `headroom` (0.25 is a quarter above the need)."""
    headroom = float(context.options.get("headroom", 0.25))
    rows = context.records
    alone = rows.select(
        *CLIENT,
        bucket(HOUR_S).alias("hour_s"),
        "end_ms",
        F.lit(False).alias("of_fleet"),
        *_per_kind(_OF_A_RECORD),
    )
    whole = _of_the_fleet(context, rows)
    # Days first, so that a client with many sidecars is not one long list on one machine; and all kinds in one row, as
    # the shuffle of the rows of a client's hour costs most.
    days = (
        alone.unionByName(whole)
        .groupBy(*CLIENT, "of_fleet", "hour_s")
        .agg(F.max("end_ms").alias("end_ms"), *_per_kind(_OF_A_DAY))
        .withColumn("when", F.timestamp_seconds("hour_s"))
        .withColumns({"weekend": F.dayofweek("when").isin(1, 7), "hour": F.hour("when")})
    )
    figures = {name: f"{name}_{{kind}}" for name in _OF_A_DAY}
    slots = (
        by_kind(days, [*CLIENT, "of_fleet", "weekend", "hour", "hour_s", "end_ms"], KINDS, **figures)
        .where("records > 0")
        .groupBy(*CLIENT, "kind", "of_fleet", "weekend", "hour")
        .agg(*named(**_LATEST, records="sum(records)", held="sum(held)", first_s="min(hour_s)", last_s="max(hour_s)"))
    )
    clients = slots.groupBy(*CLIENT, "kind", "of_fleet").agg(
        *named(**_LATEST, busiest_hour="max_by(hour, need)", busiest_on_weekends="max_by(weekend, need)"),
        *named(records="sum(records)", delayed_seconds="sum(held)"),
        F.expr(f"floor(max(last_s) / {DAY_S}) - floor(min(first_s) / {DAY_S}) + 1 AS days"),
    )
    # If a limit has become the fleet's, or has ceased to be, its current scope counts.
    now = Window.partitionBy(*CLIENT, "kind").orderBy(F.desc("end_ms"), F.desc("of_fleet"))
    clients = clients.withColumn("_place", F.row_number().over(now)).where("_place = 1")
    # A delayed client would have used more: the measurement is then the limit, not the need.
    wanted = F.expr("greatest(need, IF(delayed_seconds > 0, current, NULL))")
    advice = clients.withColumn("recommended", F.greatest(_round_up(wanted * (1 + headroom)), of_kind(LEAST)))
    change = f"""CASE
        WHEN current IS NULL THEN 'new'
        WHEN abs(recommended - current) <= {SAME} * current THEN 'keep'
        ELSE IF(recommended > current, 'raise', 'lower')
    END AS change"""
    confidence = f"""CASE
        WHEN days >= {DAYS_HIGH} AND records >= {RECORDS_HIGH} AND delayed_seconds = 0 THEN 'high'
        ELSE IF(days >= {DAYS_MEDIUM}, 'medium', 'low')
    END AS confidence"""
    advice = advice.where("need > 0").selectExpr(
        *CLIENT, "kind", "IF(of_fleet, 'fleet', 'instance') AS scope", "current", "recommended", change, confidence,
        "need", "busiest_hour", "busiest_on_weekends", "delayed_seconds", "days", "records",
    )  # fmt: skip
    return Report(
        "Recommended quotas",
        "Which quota does every client need, and what would change?",
        {
            "recommendations": Table(
                advice, "Recommendations", [*CLIENT, "kind"], summed=("recommended", "current"), per=("kind",)
            )
        },
        lambda tables: _content(tables, headroom),
    )


_OF_A_RECORD = {
    "rate": "IF({of_fleet}, NULL, {rate})",
    "seconds": "IF({of_fleet}, NULL, throttle_{kind}_seconds)",
    "limit": "IF({of_fleet}, NULL, {kind}_limit)",
}
"""Rate, time throttled and limit of the client on one sidecar; null where the limit is the fleet's."""
_OF_THE_FLEET = {
    "rate": "sum(IF({of_fleet}, {rate} * duration_s / observed_s, NULL))",
    "seconds": "sum(IF({of_fleet}, throttle_{kind}_seconds, NULL))",
    "limit": "max(IF({of_fleet}, {kind}_fleet_limit, NULL))",
}
"""The same for all sidecars together."""
_OF_A_DAY = {
    "records": "count(rate_{kind})",
    "need": f"percentile_approx(rate_{{kind}}, {NEED_PERCENTILE}, 1000)",
    "held": "sum(seconds_{kind})",
    "current": "max_by(limit_{kind}, struct(end_ms, limit_{kind}))",
}
_LATEST = {"need": "max(need)", "current": "max_by(current, end_ms)", "end_ms": "max(end_ms)"}
_ANY_OF_FLEET = " OR ".join(f"{kind}_fleet_limit IS NOT NULL" for kind in KINDS)


def _per_kind(expressions: Mapping[str, str]) -> list[Column]:
    found = {}
    for kind in KINDS:
        # Whether the limit is the fleet's. A kind without one follows the others, as an entry has one scope.
        of_fleet = f"({kind}_fleet_limit IS NOT NULL OR ({kind}_limit IS NULL AND ({_ANY_OF_FLEET})))"
        mean = f"{USED[kind]} / greatest(duration_s, {LEAST_S})"
        rate = f"IF(duration_s > {WINDOW_LIKE_S}, greatest({mean}, {kind}_rate_p95), {mean})"
        for name, one in expressions.items():
            found[f"{name}_{kind}"] = one.format(kind=kind, of_fleet=of_fleet, rate=rate)
    return named(**found)


def _of_the_fleet(context: Context, rows: DataFrame) -> DataFrame:
    """The columns of a record for all sidecars together, per time bucket, for clients whose limit is the fleet's."""
    grain = grain_for(MIN_GRAIN_S, context.intake.quality.interval_s)
    rows = rows.withColumns({"bucket": bucket(grain), "first_ms": F.col("start_ms"), "last_ms": F.col("end_ms")})
    return (
        rows.withColumn("observed_s", context.observed_s(rows, grain))
        .where(_ANY_OF_FLEET)
        .groupBy(*CLIENT, "bucket", start_of(F.col("bucket"), HOUR_S).alias("hour_s"))
        .agg(F.max("end_ms").alias("end_ms"), *_per_kind(_OF_THE_FLEET))
        .drop("bucket")
        .withColumn("of_fleet", F.lit(True))
    )


def _round_up(value: Column) -> Column:
    """Up to two significant digits: 1 234 567 -> 1 300 000."""
    digit = F.pow(F.lit(10.0), F.floor(F.log10(F.greatest(value, F.lit(1e-9)))) - 1)
    # The small subtraction keeps 1 200 000.0000001 from becoming 1 300 000.
    return F.round(F.ceil(value / digit - 1e-6) * digit, 9)


def _content(tables: Tables, headroom: float) -> Content:
    frame = tables["recommendations"]
    counts = {row["change"]: row["count"] for row in some_rows(frame.groupBy("change").count())}
    rows = some_rows(frame.orderBy(F.desc("need"), *CLIENT, "kind"))
    usable = _of_one_scope([row for row in rows if _nameable(row)])
    rest = sum(counts.values()) - len(usable)
    findings = [
        f"{several(sum(counts.values()), 'limit')} for {several(frame.select(*CLIENT).distinct().count(), 'client')}: "
        + ", ".join(f"{counts[name]:,} {word}" for name, word in _CHANGES if counts.get(name))
        + "."
    ]
    held = frame.where("delayed_seconds > 0")
    number = held.count()
    if number:
        (most,) = some_rows(held.orderBy(F.desc("delayed_seconds"), *CLIENT), 1)
        findings.append(
            f"{several(number, 'limit')} delayed a client, most of all {who(most)} "
            f"({span(most['delayed_seconds'])}): the need there is above the limit, by an unknown amount."
        )
    low = frame.where("confidence = 'low'").count()
    if low:
        findings.append(
            f"{low:,} recommendations rest on less than {DAYS_MEDIUM} days of data: take them as a first guess."
        )
    if rest > 0:
        findings.append(
            f"{rest:,} recommendations are in the table only: they are beyond the {MAX_ROWS:,} largest, or their "
            "client's name was truncated or cannot be written in an entry, or the client has limits of both scopes."
        )
    shown = {
        f"{who(row)} {row['kind']}": {"need": row["need"], "headroom": row["recommended"] - row["need"]}
        for row in usable
        if row["kind"] in ("produce", "fetch")
    }
    top = dict(list(shown.items())[:12])
    pictures = [("The largest needs, and the headroom above them", plots.bars(top, "bytes per second"))]
    return Content(
        findings,
        pictures if top else [],
        files={**_values(usable, headroom), "quotas.diff": _diff(usable)},
        notes=[
            "Need: the highest daily 99th percentile per hour of the day, weekends separately; the largest counts. "
            f"The recommendation is {headroom:.0%} above it, rounded up to two digits. Both are for one sidecar, or "
            "with scope: fleet for all of them together.",
            f"Confidence is high from {DAYS_HIGH} days without delays on, medium from {DAYS_MEDIUM} days on, else low.",
            "Partition mutations are too rare for percentiles and get no recommendation.",
        ],
    )


_CHANGES = (("raise", "to raise"), ("lower", "to lower"), ("new", "where there is none"), ("keep", "to keep"))


MOST_OF_A_NAME = 50
"""Characters of a cluster's name in that of a file, which has 255 bytes at most."""
_NO_NAMES = ("<default>", "other~d9298a10")
"""Entries read the first as the default. Records have the second for the name `other`."""


def _nameable(row: Any) -> bool:
    names = (row["user"], row["client_id"])
    return all(name not in _NO_NAMES and len(name) < MAX_NAME_CHARACTERS and not has_control(name) for name in names)


def _of_one_scope(rows: list[Any]) -> list[Any]:
    """Without those that cannot be in a client's entry, as others of its limits are the fleet's."""
    of_fleet = {tuple(row[name] for name in CLIENT) for row in rows if row["scope"] == "fleet"}
    return [row for row in rows if row["scope"] == "fleet" or tuple(row[name] for name in CLIENT) not in of_fleet]


def _values(rows: list[Any], headroom: float) -> dict[str, str]:
    clusters: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        scope = {"scope": "fleet"} if row["scope"] == "fleet" else {}
        entries = clusters.setdefault(row["cluster_id"], {})
        key = (row["user"], row["client_id"])
        # Without a client-id the entry is for the user: an entry cannot name an empty client-id.
        entry = entries.setdefault(key, {"user": key[0]} | ({"client-id": key[1]} if key[1] else {}) | scope)
        value = row["recommended"]
        entry[RATE_FIELD[Kind(row["kind"])]] = int(value) if value == int(value) else round(value, 6)
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    head = f"# Written by kquota report recommend on {day}: needs of the busiest hours plus {headroom:.0%}.\n"
    return {
        ("values.yaml" if len(clusters) == 1 else f"values-{_file_name(name)}.yaml"): head
        + yaml.safe_dump(
            {"quotas": [entries[key] for key in sorted(entries)]},
            sort_keys=False,
            # The file is meant to be read: with one unprintable name, all are written in ASCII.
            allow_unicode=all(part.isprintable() for key in entries for part in key),
        )
        for name, entries in clusters.items()
    }


def _file_name(cluster_id: str) -> str:
    """The cluster's name; with a digest of it if it is no name of a file, or too long for one."""
    name = "".join(one if one.isalnum() or one in "._-" else "_" for one in cluster_id)[:MOST_OF_A_NAME]
    digest = hashlib.sha256(cluster_id.encode()).hexdigest()[:8]
    return (name or "unnamed") if name == cluster_id else f"{name}-{digest}"


def _diff(rows: list[Any]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: (row["cluster_id"], row["user"], row["client_id"], row["kind"])):
        if row["change"] == "keep":
            continue
        days = "weekends" if row["busiest_on_weekends"] else "weekdays"
        why = f"needs {rate(row['kind'], row['need'])} on {days} at {row['busiest_hour']:02d} h UTC"
        why += " on all sidecars together" if row["scope"] == "fleet" else ""
        why += f", was delayed {span(row['delayed_seconds'])}" if row["delayed_seconds"] > 0 else ""
        name = f"{row['user']!r} {row['client_id']!r} {RATE_FIELD[Kind(row['kind'])]}"
        if row["current"] is not None:
            lines.append(f"- {name}: {rate(row['kind'], row['current'])}")
        lines.append(f"+ {name}: {rate(row['kind'], row['recommended'])}   # {why}; confidence {row['confidence']}")
    return "\n".join(lines) + "\n" if lines else "Nothing would change.\n"
