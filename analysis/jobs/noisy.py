"""`noisy`: clients whose bursts coincide with other clients' waiting."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, bucket, ratio, some_rows
from analysis.report import Content, Context, Plot, Report, Table
from analysis.words import several, who

COLUMNS = ("produce_bytes", "fetch_bytes", "request_seconds", "requests")
BURST_PERCENTILE = 0.95
FEWEST_BUCKETS = 20
NOTABLE_LIFT, NOTABLE_CORRELATION = 1.2, 0.3


def run(context: Context) -> Report:
    """Per client: broker time per request of all others in the cluster, in the buckets of its bursts and else."""
    grain = context.grain_s
    rows = context.records.withColumn("bucket", bucket(grain))
    mine = rows.groupBy(*CLIENT, "bucket").agg(
        F.sum(F.col("produce_bytes") + F.col("fetch_bytes")).alias("bytes"),
        F.sum("request_seconds").alias("busy"),
        F.sum("requests").alias("requests"),
    )
    mine = context.kept(mine, "mine")
    all_clients = mine.groupBy("cluster_id", "bucket").agg(
        F.sum("busy").alias("all_busy"), F.sum("requests").alias("all_requests"), F.sum("bytes").alias("all_bytes")
    )
    usual = mine.groupBy(*CLIENT).agg(F.percentile_approx("bytes", BURST_PERCENTILE, 10_000).alias("burst_above"))
    others_ms = ratio((F.col("all_busy") - F.col("busy")) * 1000, F.col("all_requests") - F.col("requests"))
    others = (
        mine.join(all_clients, ["cluster_id", "bucket"])
        .join(usual, [*CLIENT])
        .withColumns({"others_ms": others_ms, "burst": F.col("bytes") > F.col("burst_above")})
        .where(F.col("others_ms").isNotNull())
    )
    in_burst = F.avg(F.when(F.col("burst"), F.col("others_ms")))
    else_ = F.avg(F.when(~F.col("burst"), F.col("others_ms")))
    constant = (F.min("bytes") == F.max("bytes")) | (F.min("others_ms") == F.max("others_ms"))
    spread = F.stddev_pop("bytes") * F.stddev_pop("others_ms")
    measured = others.groupBy(*CLIENT).agg(
        F.count("*").alias("buckets"),
        F.sum(F.col("burst").cast("long")).alias("bursts"),
        in_burst.alias("others_ms_in_bursts"),
        else_.alias("others_ms_otherwise"),
        # corr() itself fails if one of the two never changes: there is no correlation then.
        F.when(~constant, ratio(F.covar_pop("bytes", "others_ms"), spread)).alias("correlation"),
        ratio(F.sum("bytes"), F.sum("all_bytes")).alias("bytes_share"),
    )
    lift = ratio(F.col("others_ms_in_bursts"), F.col("others_ms_otherwise")).alias("lift")
    neighbours = measured.where(F.col("buckets") >= FEWEST_BUCKETS).select(
        *CLIENT,
        lift,
        "correlation",
        "others_ms_in_bursts",
        "others_ms_otherwise",
        "bursts",
        "buckets",
        "bytes_share",
        ((lift >= NOTABLE_LIFT) & (F.col("correlation") >= NOTABLE_CORRELATION)).alias("notable"),
    )
    return Report(
        "Noisy neighbours",
        "Which clients' bursts coincide with slower requests of other clients?",
        {
            "neighbours": Table(
                neighbours,
                "Clients by broker time of others during their bursts",
                [F.col("lift").desc_nulls_last(), *CLIENT],
            )
        },
        lambda tables: _content(tables, grain),
    )


def _content(tables: Mapping[str, DataFrame], grain: int) -> Content:
    frame = tables["neighbours"]
    notable = some_rows(frame.where("notable").orderBy(F.col("lift").desc(), *CLIENT), 5)
    judged = frame.count()
    if not judged:
        findings = [f"No client shared {FEWEST_BUCKETS} time buckets with others: too few to compare."]
    elif not notable:
        findings = [
            f"None of {several(judged, 'client')} stands out: during no client's bursts do the broker times of others "
            f"rise to {NOTABLE_LIFT:g} times the usual."
        ]
    else:
        findings = [
            f"While {who(row)} is in a burst, requests of the others take {row['others_ms_in_bursts']:.3g} ms of "
            f"broker time instead of {row['others_ms_otherwise']:.3g} ms: {row['lift']:.2g} times as long (correlation "
            f"{row['correlation']:.2f})."
            for row in notable
        ]
        findings.append(f"{several(frame.where('notable').count(), 'client')} of {judged:,} stand out in this way.")
    # If none stands out there is no picture: bars are read as findings, however short they are.
    shown = {
        who(row): {"ms": row["others_ms_in_bursts"] - row["others_ms_otherwise"]}
        for row in (some_rows(frame, 12) if notable else [])
        if row["lift"] is not None and row["lift"] > 1
    }
    caption = "Extra broker time of others' requests during a client's bursts"
    pictures = [Plot(caption, plots.bars(shown, "ms per request"))] if shown else []
    return Content(
        findings,
        pictures,
        notes=[
            f"A burst is a {grain} s bucket in which the client moved more bytes than in 95 % of its buckets.",
            "Coincidence is not cause: clients that burst at the same hour all look noisy. The "
            "report says where to look.",
            "Broker time is the estimate of the request quota (request_seconds), of all other "
            "clients in the same cluster.",
        ],
    )
