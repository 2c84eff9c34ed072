"""`compliance`: throttle compliance by client library."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, ratio, some_rows, sums
from analysis.report import Content, Context, Plot, Report, Table
from analysis.words import several, share

COLUMNS = ("client_library", "client_library_version", "mutes", "mutes_ignored", "requests")
FEW = 20
HONOURS, IGNORES = 0.05, 0.5
_SUMS = ("mutes", "mutes_ignored", "requests")


def run(context: Context) -> Report:
    """Throttles and how many of them were ignored, by library and version."""
    unknown = F.lit("(did not say)")
    clients = context.records.groupBy(
        *CLIENT,
        F.coalesce("client_library", unknown).alias("library"),
        F.coalesce("client_library_version", F.lit("")).alias("version"),
    ).agg(*sums(_SUMS))
    clients = context.kept(clients, "clients")
    ignored = ratio(F.col("mutes_ignored").cast("double"), F.col("mutes")).alias("ignored_share")
    libraries = (
        clients.groupBy("library", "version")
        .agg(F.count("*").alias("clients"), *sums(_SUMS))
        .select("library", "version", "clients", "requests", "mutes", "mutes_ignored", ignored)
    )
    ignoring = clients.where("mutes_ignored > 0").select(
        *CLIENT, "library", "version", "mutes", "mutes_ignored", ignored
    )
    return Report(
        "Compliance",
        "Which client libraries honour throttle times?",
        {
            "libraries": Table(
                libraries, "Client libraries", [F.col("mutes").desc(), F.col("library"), F.col("version")]
            ),
            "clients": Table(
                ignoring,
                "Clients that sent while muted",
                [F.col("mutes_ignored").desc(), *CLIENT],
                summed=("mutes_ignored", "mutes"),
            ),
        },
        _content,
    )


def _content(tables: Mapping[str, DataFrame]) -> Content:
    rows = [row for row in some_rows(tables["libraries"]) if row["mutes"] > 0]
    if not rows:
        return Content(["No client was throttled long enough to see whether it honours throttle times."])
    findings = []
    for row in rows[:8]:
        name = f"{row['library']} {row['version']}".strip()
        seen = f"{row['mutes_ignored']:,} of {several(row['mutes'], 'throttle')} ({share(row['ignored_share'])})"
        if row["mutes"] < FEW:
            findings.append(f"{name}: went on sending during {seen}; too few to judge.")
        elif row["ignored_share"] <= HONOURS:
            findings.append(f"{name} honours throttle times: it went on sending during {seen}.")
        elif row["ignored_share"] >= IGNORES:
            findings.append(
                f"{name} ignores throttle times: it went on sending during {seen}. Only the mute delays it."
            )
        else:
            findings.append(f"{name} honours throttle times in part: it went on sending during {seen}.")
    shown = {
        f"{row['library']} {row['version']}".strip(): {
            "waited": float(row["mutes"] - row["mutes_ignored"]),
            "went on sending": float(row["mutes_ignored"]),
        }
        for row in rows[:12]
    }
    return Content(
        findings,
        [Plot("Throttled libraries: waited or went on sending", plots.bars(shown, "throttles"))],
        notes=[
            "A client gains nothing by ignoring throttle times: kquota does not read a muted connection.",
            "Libraries name themselves from ApiVersions version 3 on (KIP-511); older ones are '(did not say)'.",
        ],
    )
