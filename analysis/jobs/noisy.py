"""`noisy`: clients whose bursts coincide with other clients' waiting."""

from __future__ import annotations

from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, bucket, named, some_rows
from analysis.report import Content, Context, Report, Table, Tables
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
        *named(bytes="sum(produce_bytes + fetch_bytes)", busy="sum(request_seconds)", requests="sum(requests)")
    )
    mine = context.kept(mine, "mine")
    all_clients = mine.groupBy("cluster_id", "bucket").agg(
        *named(all_busy="sum(busy)", all_requests="sum(requests)", all_bytes="sum(bytes)")
    )
    usual = mine.groupBy(*CLIENT).agg(F.percentile_approx("bytes", BURST_PERCENTILE, 10_000).alias("burst_above"))
    others_ms = F.expr("(all_busy - busy) * 1000 / nullif(all_requests - requests, 0)")
    others = (
        mine.join(all_clients, ["cluster_id", "bucket"])
        .join(usual, [*CLIENT])
        .withColumns({"others_ms": others_ms, "burst": F.expr("bytes > burst_above")})
        .where("others_ms IS NOT NULL")
    )
    # corr() itself fails if one of the two never changes: there is no correlation then.
    constant = "min(bytes) = max(bytes) OR min(others_ms) = max(others_ms)"
    spread = "stddev_pop(bytes) * stddev_pop(others_ms)"
    measured = others.groupBy(*CLIENT).agg(
        *named(buckets="count(*)", bursts="count_if(burst)"),
        F.expr("avg(IF(burst, others_ms, NULL)) AS others_ms_in_bursts"),
        F.expr("avg(IF(burst, NULL, others_ms)) AS others_ms_otherwise"),
        F.expr(f"IF({constant}, NULL, covar_pop(bytes, others_ms) / nullif({spread}, 0)) AS correlation"),
        F.expr("sum(bytes) / nullif(sum(all_bytes), 0) AS bytes_share"),
    )
    lift = F.expr("others_ms_in_bursts / nullif(others_ms_otherwise, 0)")
    figures = ("lift", "correlation", "others_ms_in_bursts", "others_ms_otherwise", "bursts", "buckets", "bytes_share")
    notable = f"lift >= {NOTABLE_LIFT} AND correlation >= {NOTABLE_CORRELATION} AS notable"
    neighbours = measured.where(f"buckets >= {FEWEST_BUCKETS}").withColumn("lift", lift)
    neighbours = neighbours.selectExpr(*CLIENT, *figures, notable)
    return Report(
        "Noisy neighbours",
        "Which clients' bursts coincide with slower requests of other clients?",
        {
            "neighbours": Table(
                neighbours,
                "Clients by broker time of others during their bursts",
                [F.desc("lift"), *CLIENT],
            )
        },
        lambda tables: _content(tables, grain),
    )


def _content(tables: Tables, grain: int) -> Content:
    frame = tables["neighbours"]
    notable = some_rows(frame.where("notable").orderBy(F.desc("lift"), *CLIENT), 5)
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
    pictures = [(caption, plots.bars(shown, "ms per request"))] if shown else []
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
