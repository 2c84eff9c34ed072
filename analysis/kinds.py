"""The four kinds of quota as records have them, and the limits that records report: how much of them was used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis.columns import CLIENT
from quota.entity import Kind
from quota.record import CAUSES
from quota.table import MAX_LIMIT


@dataclass(frozen=True, slots=True)
class Measure:
    """The column of a kind of quota in a record."""

    column: str
    scale: float = 1.0
    """`column` times this, over seconds, is a rate in the unit of the limit."""

    def rate(self, seconds: Column | float) -> Column:
        """Usage as a rate over this many seconds, in the unit of the limit."""
        return F.col(self.column) * F.lit(self.scale) / seconds


MEASURES = {
    Kind.PRODUCE: Measure("produce_bytes"),
    Kind.FETCH: Measure("fetch_bytes"),
    Kind.REQUEST: Measure("request_seconds", 100.0),  # one thread busy all the time is 100 percent
    Kind.MUTATION: Measure("mutations"),
}
BYTE_KINDS = (Kind.PRODUCE, Kind.FETCH)


COUNTS = tuple(f"throttle_{cause}_count" for cause in CAUSES)
SECONDS = tuple(f"throttle_{cause}_seconds" for cause in CAUSES)
"""Columns of throttles, by cause: requests, and their delay."""


def all_of(names: Sequence[str]) -> Column:
    """The sum of these columns."""
    return reduce(add, map(F.col, names))


def of_kind(values: Mapping[Kind, float] | Mapping[str, float], otherwise: Column | None = None) -> Column:
    """The value of each row's `kind`; of others `otherwise`, or null."""
    found = [F.when(F.col("kind") == str(kind), F.lit(float(value))) for kind, value in values.items()]
    return F.coalesce(*found, F.lit(None).cast("double") if otherwise is None else otherwise)


def exploded(rows: DataFrame, keep: Sequence[str], each: Iterable[Sequence[Column]]) -> DataFrame:
    """For each row several, with the columns `keep` and those of one of `each`."""
    return rows.select(*keep, F.explode(F.array(*(F.struct(*one) for one in each))).alias("_one")).select(
        *keep, "_one.*"
    )


def by_kind(rows: DataFrame, keep: Sequence[str], kinds: Sequence[Kind] = tuple(Kind), **per_kind: str) -> DataFrame:
    """One row per record and kind: `keep`, `kind`, `per_kind` (name -> ``{kind}_limit``, or ``{column}``: usage)."""
    # Booleans become 1 and 0, so that all kinds of values are numbers or texts.
    texts = ("_user", "_client_id", "_mode")
    types = {name: "string" if pattern.endswith(texts) else "double" for name, pattern in per_kind.items()}
    return exploded(
        rows,
        keep,
        (
            [
                F.lit(kind.value).alias("kind"),
                *(
                    F.col(pattern.format(kind=kind.value, column=MEASURES[kind].column)).cast(types[name]).alias(name)
                    for name, pattern in per_kind.items()
                ),
            ]
            for kind in kinds
        ),
    )


OF_USE = tuple(
    f"{kind.value}_{name}"
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
OF_PROMISES = ("namespace", *(pattern.format(kind=kind.value) for kind in BYTE_KINDS for pattern in _PROMISES.values()))
"""The columns of limits that delay clients (:func:`enforced`)."""
GROUP: Final = ("cluster_id", "kind", "group_user", "group_client")
"""The clients that share a limit. A group's name that is null plays no part."""


FLAGS: Final = {
    f"{kind.value}_{flag}": f"{kind.value}_{column} IS NOT NULL"
    for kind in Kind
    for flag, column in (("of_fleet", "fleet_limit"), ("by_users", "group_user"), ("by_clients", "group_client_id"))
}
"""Whose a client's limit is, as expressions over its record: a group's names are null, or the client's own."""
LIMITS: Final = (
    {f"{kind.value}_limit": f"coalesce({kind.value}_fleet_limit, {kind.value}_limit)" for kind in Kind}
    | {f"{kind.value}_peak": f"{kind.value}_group_utilisation_peak" for kind in Kind}
    | FLAGS
)
"""And the limit, and the usage of it that a sidecar saw; of several the greatest is taken."""


def by_group(buckets: DataFrame, seconds: Column) -> DataFrame:
    """Clients' buckets (:data:`LIMITS`, and usage) -> one row per limit, the clients that share it, and bucket:
    `scope`, `limit`, `rate` and `used_share`, of a sidecar's own limit as the busiest sidecar saw them in the quota's
    window, of a fleet's limit for all sidecars together."""
    named = by_kind(
        buckets,
        [*CLIENT, "bucket"],
        limit="{kind}_limit",
        of_fleet="{kind}_of_fleet",
        by_users="{kind}_by_users",
        by_clients="{kind}_by_clients",
        peak="{kind}_peak",
        amount="{column}",
    ).where("limit IS NOT NULL")
    scale = of_kind({kind: measure.scale for kind, measure in MEASURES.items()})
    sums = (
        named.withColumns(
            {
                "group_user": F.when(F.col("by_users") > 0, F.col("user")),
                "group_client": F.when(F.col("by_clients") > 0, F.col("client_id")),
                "scope": F.when(F.col("of_fleet") > 0, "fleet").otherwise("instance"),
            }
        )
        .groupBy(*GROUP, "scope", "bucket")
        .agg(
            F.max("limit").alias("limit"),
            F.max("peak").alias("peak"),
            F.sum(F.col("amount") * scale / seconds).alias("rate"),
        )
    )
    of_fleet = F.col("scope") == "fleet"
    return sums.select(
        *GROUP,
        "scope",
        "bucket",
        "limit",
        F.when(of_fleet, F.col("rate")).otherwise(F.col("peak") * F.col("limit")).alias("rate"),
        F.when(of_fleet, F.col("rate") / F.col("limit")).otherwise(F.col("peak")).alias("used_share"),
    )


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
    return (
        enforced(rows, ["cluster_id", "sidecar", "end_ms"])
        # A limit is shared by the clients of its group.
        .groupBy("cluster_id", "kind", "sidecar", "group_user", "group_client")
        .agg(
            F.max_by("limit", "end_ms").alias("limit"),
            F.max_by("fleet_limit", "end_ms").alias("fleet_limit"),
            F.max("end_ms").alias("end_ms"),
        )
    )


def promised(limits: DataFrame) -> DataFrame:
    """:func:`of_sidecars` added up per cluster and kind: `limits_bytes_per_s`, `limits`, `fleet_limits`, `sidecars`."""
    # Every sidecar enforces it for itself, unless it is the fleet's: that is promised once.
    of_fleet = F.col("fleet_limit").isNotNull()
    sums = (
        limits.withColumn("counter", F.when(~of_fleet, F.col("sidecar")))
        .groupBy("cluster_id", "kind", "counter", "group_user", "group_client")
        .agg(F.max_by(F.coalesce("fleet_limit", "limit"), "end_ms").alias("limit"), F.max(of_fleet).alias("of_fleet"))
        .groupBy("cluster_id", "kind")
        .agg(
            F.sum("limit").alias("limits_bytes_per_s"),
            F.count("*").alias("limits"),
            F.sum(F.col("of_fleet").cast("long")).alias("fleet_limits"),
        )
    )
    sidecars = limits.groupBy("cluster_id", "kind").agg(F.count_distinct("sidecar").alias("sidecars"))
    return sums.join(sidecars, ["cluster_id", "kind"])
