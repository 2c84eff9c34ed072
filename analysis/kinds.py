"""The four kinds of quota as records have them, and the limits that records report: how much of them was used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis.columns import CLIENT, named
from quota.entity import Kind
from quota.record import CAUSES
from quota.table import MAX_LIMIT

AMOUNTS: Final = {
    Kind.PRODUCE: "produce_bytes",
    Kind.FETCH: "fetch_bytes",
    Kind.REQUEST: "request_seconds",
    Kind.MUTATION: "mutations",
}
"""The column of a kind of quota in a record."""
USED: Final = AMOUNTS | {Kind.REQUEST: "request_seconds * 100"}
"""An expression that is a rate in the unit of the limit, over seconds: one thread busy all the time is 100 percent."""
BYTE_KINDS: Final = (Kind.PRODUCE, Kind.FETCH)
BYTES: Final = tuple(AMOUNTS[kind] for kind in BYTE_KINDS)


COUNTS = tuple(f"throttle_{cause}_count" for cause in CAUSES)
SECONDS = tuple(f"throttle_{cause}_seconds" for cause in CAUSES)
"""Columns of throttles, by cause: requests, and their delay."""
DELAYED: Final = {"requests_delayed": " + ".join(COUNTS), "delayed_seconds": " + ".join(SECONDS)}
"""Expressions: these, of all causes together."""


def of_kind(values: Mapping[Kind, float] | Mapping[str, float], otherwise: str = "NULL") -> Column:
    """The value of each row's `kind`; of others `otherwise`, an expression."""
    found = [F.when(F.col("kind") == str(kind), F.lit(float(value))) for kind, value in values.items()]
    return F.coalesce(*found, F.expr(f"double({otherwise})"))


def exploded(rows: DataFrame, keep: Sequence[str], each: Iterable[Mapping[str, str]]) -> DataFrame:
    """For each row several, with the columns `keep` and those of one of `each`: name -> expression."""
    every = F.array(*(F.struct(*named(**one)) for one in each))
    return rows.select(*keep, F.explode(every).alias("_one")).select(*keep, "_one.*")


def by_kind(rows: DataFrame, keep: Sequence[str], kinds: Sequence[Kind] = tuple(Kind), **per_kind: str) -> DataFrame:
    """One row per record and kind: `keep`, `kind`, `per_kind` (name -> expression with ``{kind}``, its usage as
    ``{column}``, or in the unit of the limit ``{used}``)."""

    def of(kind: Kind) -> dict[str, str]:
        words = {"kind": kind, "column": AMOUNTS[kind], "used": USED[kind]}
        return {"kind": f"'{kind}'"} | {name: pattern.format(**words) for name, pattern in per_kind.items()}

    return exploded(rows, keep, map(of, kinds))


OF_USE = tuple(
    f"{kind}_{name}"
    for kind in Kind
    for name in ("limit", "fleet_limit", "group_user", "group_client_id", "group_utilisation_peak")
)
_PROMISES: Final = {
    "limit": "{kind}_limit",
    "fleet_limit": "{kind}_fleet_limit",
    "mode": "{kind}_limit_mode",
    "group_user": "{kind}_group_user",
    "group_client": "{kind}_group_client_id",
}
OF_PROMISES = ("namespace", *(pattern.format(kind=kind) for kind in BYTE_KINDS for pattern in _PROMISES.values()))
"""The columns of limits that delay clients (:func:`enforced`)."""
GROUP: Final = ("cluster_id", "kind", "group_user", "group_client")
"""The clients that share a limit. A group's name that is null plays no part."""


FLAGS: Final = {
    f"{kind}_{flag}": f"{kind}_{column} IS NOT NULL"
    for kind in Kind
    for flag, column in (("of_fleet", "fleet_limit"), ("by_users", "group_user"), ("by_clients", "group_client_id"))
}
"""Whose a client's limit is, as expressions over its record: a group's names are null, or the client's own."""
LIMITS: Final = (
    {f"{kind}_limit": f"coalesce({kind}_fleet_limit, {kind}_limit)" for kind in Kind}
    | {f"{kind}_peak": f"{kind}_group_utilisation_peak" for kind in Kind}
    | FLAGS
)
"""And the limit, and the usage of it that a sidecar saw; of several the greatest is taken."""


def by_group(buckets: DataFrame, seconds: Column) -> DataFrame:
    """Clients' buckets (:data:`LIMITS`, and usage) -> one row per limit, the clients that share it, and bucket:
    `scope`, `limit`, `rate` and `used_share`, of a sidecar's own limit as the busiest sidecar saw them in the quota's
    window, of a fleet's limit for all sidecars together."""
    each = by_kind(
        buckets,
        [*CLIENT, "bucket"],
        limit="{kind}_limit",
        peak="{kind}_peak",
        used="double({used})",
        of_fleet="{kind}_of_fleet",
        by_users="{kind}_by_users",
        by_clients="{kind}_by_clients",
    ).where("limit IS NOT NULL")
    group = named(
        group_user="IF(by_users, `user`, NULL)",
        group_client="IF(by_clients, client_id, NULL)",
        scope="IF(of_fleet, 'fleet', 'instance')",
    )
    rate = F.sum(F.col("used") / seconds).alias("rate")
    sums = each.groupBy("cluster_id", "kind", *group, "bucket").agg(*named(limit="max(limit)", peak="max(peak)"), rate)
    rates = named(rate="IF(scope = 'fleet', rate, peak * limit)", used_share="IF(scope = 'fleet', rate / limit, peak)")
    return sums.select(*GROUP, "scope", "bucket", "limit", *rates)


def enforced(rows: DataFrame, keep: Sequence[str], **per_kind: str) -> DataFrame:
    """:func:`by_kind` of the byte limits that delay clients (`limit`, `fleet_limit`, `group_user`, `group_client`):
    neither a shadow, nor Kafka's own "no limit"."""
    each = by_kind(rows, keep, BYTE_KINDS, **_PROMISES, **per_kind)
    return each.where((F.col("mode") == "enforce") & (F.coalesce("fleet_limit", "limit") < MAX_LIMIT))


def of_sidecars(rows: DataFrame, since_ms: int) -> DataFrame:
    """Enforced byte limits that were in force on each sidecar since then (`rows`: records)."""
    # A pod's sidecar that was started again is the same one; pods of two namespaces may have the same name.
    of_pod = F.when(F.col("pod").isNotNull(), F.concat_ws("/", "namespace", "pod"))
    rows = rows.where(F.col("end_ms") > since_ms).withColumn("sidecar", F.coalesce(of_pod, "instance"))
    # A limit is shared by the clients of its group.
    groups = enforced(rows, ["cluster_id", "sidecar", "end_ms"]).groupBy(*GROUP, "sidecar")
    return groups.agg(
        *named(limit="max_by(limit, end_ms)", fleet_limit="max_by(fleet_limit, end_ms)", end_ms="max(end_ms)")
    )


def promised(limits: DataFrame) -> DataFrame:
    """:func:`of_sidecars` added up per cluster and kind: `limits_bytes_per_s`, `limits`, `fleet_limits`, `sidecars`."""
    # Every sidecar enforces it for itself, unless it is the fleet's: that is promised once.
    sums = (
        limits.withColumn("counter", F.expr("IF(fleet_limit IS NULL, sidecar, NULL)"))
        .groupBy(*GROUP, "counter")
        .agg(*named(limit="max_by(coalesce(fleet_limit, limit), end_ms)", of_fleet="max(fleet_limit IS NOT NULL)"))
        .groupBy("cluster_id", "kind")
        .agg(*named(limits_bytes_per_s="sum(limit)", limits="count(*)", fleet_limits="count_if(of_fleet)"))
    )
    sidecars = limits.groupBy("cluster_id", "kind").agg(F.count_distinct("sidecar").alias("sidecars"))
    return sums.join(sidecars, ["cluster_id", "kind"])
