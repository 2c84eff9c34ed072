"""`compliance`: throttle compliance by client library."""

from __future__ import annotations

from pyspark.sql import functions as F

from analysis import plots
from analysis.columns import CLIENT, named, some_rows, sums
from analysis.report import Content, Context, Report, Table, Tables
from analysis.words import several, share

COLUMNS = ("client_library", "client_library_version", "mutes", "mutes_ignored", "requests")
FEW = 20
HONOURS, IGNORES = 0.05, 0.5
_SUMS = ("mutes", "mutes_ignored", "requests")


def run(context: Context) -> Report:
    """Throttles and how many of them were ignored, by library and version."""
    library = named(library="coalesce(client_library, '(did not say)')", version="coalesce(client_library_version, '')")
    clients = context.kept(context.records.groupBy(*CLIENT, *library).agg(*sums(_SUMS)), "clients")
    mutes = ("mutes", "mutes_ignored", "mutes_ignored / nullif(mutes, 0) AS ignored_share")
    libraries = clients.groupBy("library", "version").agg(F.count("*").alias("clients"), *sums(_SUMS))
    libraries = libraries.selectExpr("library", "version", "clients", "requests", *mutes)
    ignoring = clients.where("mutes_ignored > 0").selectExpr(*CLIENT, "library", "version", *mutes)
    return Report(
        "Compliance",
        "Which client libraries honour throttle times?",
        {
            "libraries": Table(libraries, "Client libraries", [F.desc("mutes"), "library", "version"]),
            "clients": Table(
                ignoring,
                "Clients that sent while muted",
                [F.desc("mutes_ignored"), *CLIENT],
                summed=("mutes_ignored", "mutes"),
            ),
        },
        _content,
    )


def _content(tables: Tables) -> Content:
    rows = [row for row in some_rows(tables["libraries"]) if row["mutes"] > 0]
    if not rows:
        return Content(["No client was throttled long enough to see whether it honours throttle times."])
    findings, shown = [], {}
    for row in rows[:12]:
        name = f"{row['library']} {row['version']}".strip()
        went_on = float(row["mutes_ignored"])
        shown[name] = {"waited": row["mutes"] - went_on, "went on sending": went_on}
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
    return Content(
        findings[:8],
        [("Throttled libraries: waited or went on sending", plots.bars(shown, "throttles"))],
        notes=[
            "A client gains nothing by ignoring throttle times: kquota does not read a muted connection.",
            "Libraries name themselves from ApiVersions version 3 on (KIP-511); older ones are '(did not say)'.",
        ],
    )
