"""`usage`: which client used how much, how fast."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, HOUR_S, named, only_row, seen, some_rows, start_of, sums, together
from analysis.intake import Quality
from analysis.kinds import AMOUNTS, BYTE_KINDS, GROUP, LIMITS, OF_USE, by_group
from analysis.report import Content, Context, Report, Table, Tables
from analysis.words import several, share, size, span, who

_SUMS = (*AMOUNTS.values(), "requests")
_MOVED = "produce_bytes + fetch_bytes"
_MOST = tuple(f"{kind}_rate_max" for kind in BYTE_KINDS)
_ONE_SECOND = tuple(f"{kind}_bytes_one_second_max_per_s" for kind in BYTE_KINDS)
COLUMNS = (*_SUMS, *_MOST, "client_library", *OF_USE)
BUCKETS = (*_SUMS, *_MOST, "records", "first_ms", "last_ms", *LIMITS)
ROLLED = True
PERCENTILES = (50, 95, 99)


def run(context: Context) -> Report:
    """Totals, mean, percentiles of the whole fleet's rate per time bucket, and the highest one-second rate seen."""
    grain = context.grain_s
    buckets = context.kept(context.in_buckets(grain, BUCKETS), "buckets")
    observed = context.observed_s(buckets, grain)
    shares = ", ".join(f"double({percent / 100})" for percent in PERCENTILES)
    means = {f"{kind}_bytes_mean_per_s": f"sum({kind}_bytes) / sum(observed_s)" for kind in BYTE_KINDS}
    # One for three percentiles.
    digest = f"percentile_approx({{0}}_bytes / observed_s, array({shares}), 10000) AS {{0}}_digest"
    clients = (
        buckets.withColumn("observed_s", observed)
        .groupBy(*CLIENT)
        .agg(
            *sums(_SUMS),
            *named(**means),
            *(F.expr(digest.format(kind)) for kind in BYTE_KINDS),
            *(F.max(f"{kind}_rate_max").alias(name) for kind, name in zip(BYTE_KINDS, _ONE_SECOND, strict=True)),
            *together(),
        )
        .join(context.libraries(), list(CLIENT))
    )
    percentiles = {
        f"{kind}_bytes_p{percent}_per_s": f"{kind}_digest[{place}]"
        for kind in BYTE_KINDS
        for place, percent in enumerate(PERCENTILES)
    }
    figures: list[Column | str] = [*_SUMS, *means, *named(**percentiles), *_ONE_SECOND]
    clients = clients.select(*CLIENT, *figures, "library", "records", "first_ms", "last_ms")
    hourly = buckets.withColumn("hour_s", start_of(F.col("bucket"), HOUR_S))
    of_limits = named(limit="max_by(limit, bucket)", highest_rate="max(rate)", used_share="max(used_share)")
    limits = by_group(buckets, observed).groupBy(*GROUP, "scope").agg(*of_limits)
    return Report(
        "Usage",
        "Which clients used how much, and how fast?",
        {
            "clients": Table(
                seen(clients),
                "Clients, by bytes",
                [F.expr(_MOVED).desc(), *CLIENT],
                left_out=_ONLY_IN_FILES,
                summed=_SUMS,
            ),
            "limits": Table(limits, "Limits by utilisation", [F.desc("used_share"), *GROUP]),
            "hours": context.hours(hourly, _SUMS),
        },
        lambda tables: _content(tables, grain, context.intake.quality),
    )


_ONLY_IN_FILES: Final = (
    *(f"{kind}_bytes_{quantile}_per_s" for kind in BYTE_KINDS for quantile in ("p50", "p95")),
    *_ONE_SECOND,
)


def _content(tables: Tables, grain: int, quality: Quality) -> Content:
    total = only_row(tables["clients"].agg(F.count("*").alias("clients"), *sums(_SUMS)))
    all_bytes = total["produce_bytes"] + total["fetch_bytes"]
    top = some_rows(tables["clients"], 10)
    findings = [
        f"{several(total['clients'], 'client')} produced {size(total['produce_bytes'])} and fetched "
        f"{size(total['fetch_bytes'])} in {total['requests']:,} requests, which took brokers "
        f"{total['request_seconds']:,.0f} s."
    ]
    if all_bytes > 0:
        first = top[0]
        part = (first["produce_bytes"] + first["fetch_bytes"]) / all_bytes
        findings.append(f"The largest is {who(first)} with {share(part)} of all bytes.")
        some = sum(row["produce_bytes"] + row["fetch_bytes"] for row in top)
        if total["clients"] > len(top):
            findings.append(f"The ten largest together have {share(some / all_bytes)}.")
        (busiest,) = some_rows(tables["hours"].orderBy(F.expr(_MOVED).desc(), "hour"), 1)
        seconds = busiest["observed_seconds"]
        findings.append(
            f"The busiest hour began {busiest['hour']:%Y-%m-%d %H:%M} UTC: "
            f"{size((busiest['produce_bytes'] + busiest['fetch_bytes']) / seconds)}/s on average"
            + (f" in the {span(seconds)} of it that the records cover." if seconds < HOUR_S else ".")
        )
    full = tables["limits"].where("used_share >= 1")
    number = full.count()
    if number:
        fleets = full.where("scope = 'fleet'").count()
        findings.append(
            f"{number:,} of {several(tables['limits'].count(), 'limit')} {'was' if number == 1 else 'were'} used up at "
            f"some time, {fleets:,} of them with scope: fleet."
        )
    rates = plots.per_hour(tables["hours"], {kind: f"{kind}_bytes" for kind in BYTE_KINDS}, "bytes per second", quality)
    largest = {who(row): {kind.value: float(row[f"{kind}_bytes"]) for kind in BYTE_KINDS} for row in top}
    return Content(
        findings,
        [
            ("The whole fleet's rate", rates),
            ("The largest clients", plots.bars(largest, "bytes")),
        ],
        notes=[
            f"Percentiles are of the client's total rate on all sidecars, in buckets of {grain} s with records; the "
            "middle of an interval decides its bucket. The one-second maximum is of one sidecar.",
            "The used share of a limit with scope: instance is the highest of any sidecar, in the quota's window; with "
            f"scope: fleet, the usage of all sidecars in {grain} s, divided by the limit.",
            "A client is a user and a client-id in one cluster, whichever sidecars or pods its "
            "connections went through.",
        ],
    )
