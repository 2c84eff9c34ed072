"""Usage records of a fleet that does not exist, made by Spark itself: input for measurements as large as one likes.

Every value is a hash of the seed and of what it belongs to (application, client, sidecar, interval), so the same seed
gives the same rows in any number of tasks and on any machine. docs/analysis.md tells the distributions, and what of
them was read off records of the real sidecar.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analysis.errors import ReportError
from analysis.files import read_text, write_text
from analysis.progress import Progress
from analysis.session import open_session
from quota.entity import Kind
from quota.record import FAMILIES, FIELDS, SCHEMA_VERSION, Field

START_MS = 1_760_918_400_000
"""2025-10-20 00:00:00 UTC, a Monday."""
DAY_S = 86_400
RESTART_SHARE = 0.1
"""Per sidecar and week: it starts anew."""
BURST_SHARE = 0.004
"""Of a client's intervals: it wants 3 to 13 times as much as usual."""
MAX_CLIENTS = 40
LIBRARIES = (
    (0.50, "apache-kafka-java", "4.2.0"),
    (0.70, "librdkafka", "2.16.0"),
    (0.80, "kafka-python", "3.0.12"),
    (0.90, "sarama", "1.46.0"),
)
"""Cumulated share of applications; the rest do not say (aiokafka)."""


@dataclass(frozen=True, slots=True)
class GeneratedFleet:
    """How large a fleet, and which one."""

    sidecars: int = 2000
    days: int = 30
    interval_s: int = 300
    apps: int = 300
    hot: float = 3.0
    """Sidecar's application = floor(apps * u^hot): with 3 the largest of 300 has 15 % of all sidecars, with 1 all are
    of one size."""
    lost: float = 0.0005
    """Of all intervals: their records were never delivered."""
    repeated: float = 0.0005
    """Of all intervals: their records were delivered twice."""
    seed: int = 1
    parts: int = 16
    """Sidecar s is in part s mod parts; each part is a sample of the fleet, and a job of its own."""

    @property
    def intervals(self) -> int:
        """Intervals of one sidecar."""
        return self.days * DAY_S // self.interval_s


class _Dice:
    """Numbers from 0 to 1 that depend on columns alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._salt = 0

    def uniform(self, *keys: str) -> Column:
        """In [0, 1), 2^31 steps; a new series with each call."""
        self._salt += 1
        # The middle bits of the hash; & keeps it positive.
        value = F.shiftrightunsigned(F.xxhash64(*keys, F.lit(self._seed * 1000 + self._salt)), 17)
        return value.bitwiseAND(0x7FFFFFFF).cast("double") / float(2**31)

    def normal(self, *keys: str) -> Column:
        """Standard normal by Box and Muller's transform."""
        radius = F.sqrt(-2 * F.log(1 - self.uniform(*keys)))
        return radius * F.cos(2 * math.pi * self.uniform(*keys))


def records(spark: SparkSession, fleet: GeneratedFleet, part: int, tasks: int = 4) -> DataFrame:
    """The records of one part, every field of a record, in the order in which sidecars would have written them."""
    dice = _Dice(fleet.seed)
    rows = _demand(_clients(_intervals(spark, fleet, part, tasks, dice), dice), fleet, dice)
    used = _used(rows, fleet, dice)
    values = _values(fleet)
    return used.select(*(_typed(field, values) for field in FIELDS))


def _intervals(spark: SparkSession, fleet: GeneratedFleet, part: int, tasks: int, dice: _Dice) -> DataFrame:
    """A row per sidecar and interval that was not lost, or two where it was delivered twice."""
    mine = len(range(part, fleet.sidecars, fleet.parts))
    per_day = DAY_S // fleet.interval_s
    rows = spark.range(0, mine * fleet.intervals, 1, tasks).select(
        (F.floor(F.col("id") / fleet.intervals) * fleet.parts + part).alias("sidecar"),
        (F.col("id") % fleet.intervals).alias("t"),
    )
    week = 7 * per_day
    rows = rows.withColumns(
        {
            "day": F.floor(F.col("t") / per_day),
            "week": F.floor(F.col("t") / week),
            "u_app": dice.uniform("sidecar"),
            "u_size": dice.uniform("sidecar"),
            "u_kept": dice.uniform("sidecar", "t"),
        }
    )
    rows = rows.withColumns(
        {
            "app": F.floor(F.pow("u_app", F.lit(fleet.hot)) * fleet.apps),
            # Heavy tail, 6.0 on average: a tenth has more than 10, one in a hundred has the most.
            "size": F.least(1 + F.floor(2 / F.pow(1 - F.col("u_size"), F.lit(0.7))), F.lit(MAX_CLIENTS)),
            "u_restart": dice.uniform("sidecar", "week"),
        }
    )
    # Pods are replaced on Mondays, and some start anew within the week: another instance, whose sequence begins at 1.
    # So a sequence number follows from the interval alone, and no history has to be looked up.
    began = F.col("week") * week
    middle = began + 1 + F.floor(F.col("u_restart") / RESTART_SHARE * (week - 1))
    again = (F.col("u_restart") < RESTART_SHARE) & (F.col("t") >= middle)
    once = fleet.lost + fleet.repeated
    times = F.when(F.col("u_kept") < fleet.lost, 0).when(F.col("u_kept") < once, 2).otherwise(1)
    return rows.select(
        "sidecar",
        "t",
        "day",
        "app",
        "size",
        (F.col("week") * 2 + again.cast("long")).alias("life"),
        (F.col("t") - F.when(again, middle).otherwise(began)).alias("age"),
        F.explode(F.slice(F.array(F.lit(1), F.lit(2)), F.lit(1), times)).alias("copy"),
    ).withColumns(
        {
            "user": F.concat(F.lit("app-"), F.lpad(F.col("app").cast("string"), 3, "0")),
            "instance": F.md5(F.concat_ws("/", F.lit(fleet.seed), "sidecar", "life")),
        }
    )


def _clients(intervals: DataFrame, dice: _Dice) -> DataFrame:
    """A row per client of each interval, with what belongs to the client and to its application."""
    rows = intervals.withColumn("slot", F.explode(F.sequence(F.lit(0), F.col("size").cast("int") - 1)))
    rows = rows.withColumns(
        {
            "sequence": F.col("age") * F.col("size") + F.col("slot") + 1,
            "role": F.col("slot") % 4,  # producer, consumer, both, consumer
            "base": F.least(5e4 * F.exp(1.6 * dice.normal("app", "slot")), F.lit(2e7)),
            "u_limit": dice.uniform("app", "slot"),
            "room": F.exp(F.lit(math.log(4)) + 0.5 * dice.normal("app", "slot")),
            "u_level": dice.uniform("app"),
            "u_library": dice.uniform("app"),
            "zone_h": F.floor(dice.uniform("app") * 3) * 4 - 4,
        }
    )
    return rows.withColumn(
        "limit", F.when(F.col("u_limit") < 0.5, _rounded(F.col("base") * F.col("room"), 1000.0) + 1000)
    )


def _demand(rows: DataFrame, fleet: GeneratedFleet, dice: _Dice) -> DataFrame:
    """`wanted`, bytes/s: the client's base by hour of the day, weekday, growth, noise, and bursts now and then."""
    hour = (F.col("t") * fleet.interval_s % DAY_S) / 3600.0
    daily = 1 + 0.6 * F.sin((hour - 8 - F.col("zone_h")) * (2 * math.pi / 24))  # highest at 14 h
    weekly = F.when(F.col("day") % 7 >= 5, 0.5).otherwise(1.0)
    growth = 1 + 0.003 * F.col("day")
    rows = rows.withColumns(
        {"u_burst": dice.uniform("sidecar", "t", "slot"), "noise": F.exp(0.3 * dice.normal("sidecar", "t", "slot"))}
    )
    burst = F.when(F.col("u_burst") < BURST_SHARE, 3 + 10 * F.col("u_burst") / BURST_SHARE).otherwise(1.0)
    wanted = F.col("base") * daily * weekly * growth * F.col("noise") * burst
    return rows.withColumns({"wanted": wanted, "u_shape": dice.uniform("sidecar", "t", "slot")})


def _used(rows: DataFrame, fleet: GeneratedFleet, dice: _Dice) -> DataFrame:
    """What came of it: bytes, requests, delays."""
    limit = F.coalesce(F.col("limit"), F.lit(1e18))
    rows = rows.withColumns(
        {
            "rate": F.least("wanted", limit),
            "over": F.greatest(F.least(F.col("wanted") / limit - 1, F.lit(1.0)), F.lit(0.0)),
            "produces": F.col("role").isin(0, 2).cast("double"),
            "fetches": F.col("role").isin(1, 2, 3).cast("double"),
            # Bytes per request as the demo's clients have them: 12 to 110 kB produced, 130 to 400 kB fetched.
            "portion": F.when(F.col("role").isin(0, 2), 6e4).otherwise(2.6e5) * F.exp(0.7 * dice.normal("app", "slot")),
            "request_ms": F.exp(0.5 * dice.normal("sidecar", "t", "slot")),  # the demo's: 0.4 to 2.4 ms each
        }
    )
    rows = rows.withColumns(
        {
            "produced": F.floor(F.col("rate") * F.col("produces") * fleet.interval_s),
            "fetched": F.floor(F.col("rate") * F.col("fetches") * fleet.interval_s),
        }
    )
    rows = rows.withColumns(
        {
            "puts": F.ceil(F.col("produced") / F.col("portion")),
            # A consumer asks twice a second even if there is nothing.
            "gets": F.ceil(F.col("fetched") / F.col("portion")) + F.col("fetches").cast("long") * 2 * fleet.interval_s,
            "heartbeats": F.col("fetches").cast("long") * (fleet.interval_s // 3),
            "changes": F.when((F.col("slot") == 0) & (F.col("u_shape") < 0.001), F.col("app") % 12 + 1).otherwise(0),
        }
    )
    rows = rows.withColumn(
        "requests", F.col("puts") + F.col("gets") + F.col("heartbeats") + F.least("changes", F.lit(1))
    )
    main = F.when(F.col("role") == 0, F.col("puts")).otherwise(F.col("gets"))
    rows = rows.withColumns(
        {
            "busy_s": _rounded(F.col("requests") * F.col("request_ms") / 1000, 0.001),
            "delays": F.when(F.col("over") > 0, F.greatest(F.floor(main * F.col("over")), F.lit(1))).otherwise(0),
            "held_s": _rounded(F.col("over") * fleet.interval_s, 0.1),
        }
    )
    return rows.withColumn("watched", F.ceil(F.col("delays") / 10))


def _values(fleet: GeneratedFleet) -> Mapping[str, Column]:
    """Field -> value; what is not here is 0, or null where a record may have that."""
    start = F.lit(START_MS) + F.col("t") * (fleet.interval_s * 1000)
    client = F.concat(
        "user", F.element_at(F.array(*map(F.lit, _ROLES)), (F.col("role") + 1).cast("int")), F.col("slot")
    )
    ignored = F.when(F.col("u_library").between(0.5, 0.7), 0.9).otherwise(0.02)  # librdkafka does not wait
    values: dict[str, Column] = {
        "schema_version": F.lit(SCHEMA_VERSION),
        "instance": F.col("instance"),
        "sequence": F.col("sequence"),
        "start_ms": start,
        "end_ms": start + fleet.interval_s * 1000,
        "duration_s": F.lit(float(fleet.interval_s)),
        "samples": F.lit(fleet.interval_s),
        "cluster_id": F.when(F.col("app") % 3 == 0, "east").otherwise("west"),
        "namespace": F.concat(F.lit("team-"), (F.col("app") % 40).cast("string")),
        "pod": F.concat_ws("-", "user", "sidecar"),
        "kquota_version": F.lit("0.2.0"),
        "user": F.col("user"),
        "client_id": client,
        "client_library": _library(1),
        "client_library_version": _library(2),
        "connections_peak": F.col("slot") % 3 + 1,
        "produce_bytes": F.col("produced"),
        "fetch_bytes": F.col("fetched"),
        "request_seconds": F.col("busy_s"),
        "mutations": F.col("changes"),
        "requests": F.col("requests"),
        "requests_produce": F.col("puts"),
        "requests_fetch": F.col("gets"),
        "requests_group": F.col("heartbeats"),
        "requests_admin": F.least("changes", F.lit(1)),
        "mutes": F.col("watched"),
        "mutes_ignored": F.floor(F.col("watched") * ignored),
    }
    for kind, mine in ((Kind.PRODUCE, F.col("role") == 0), (Kind.FETCH, F.col("role") != 0)):
        # A limit is of the kind that the client uses most; half of the applications' limits are named by user.
        limited = mine & F.col("limit").isNotNull()
        by_user = F.col("u_level") < 0.3
        rate = F.col("produced" if kind is Kind.PRODUCE else "fetched") / float(fleet.interval_s)
        values |= {
            f"throttle_{kind.value}_count": F.when(mine, F.col("delays")).otherwise(0),
            f"throttle_{kind.value}_seconds": F.when(mine, F.col("held_s")).otherwise(0.0),
            # Few wait before they are forwarded: those of large requests on several connections.
            f"throttle_{kind.value}_held_count": F.when(mine, F.floor(F.col("delays") / 8)).otherwise(0),
            f"throttle_{kind.value}_held_seconds": F.when(
                mine & (F.col("delays") >= 8), _rounded(F.col("held_s") / 8, 0.1)
            ).otherwise(0.0),
            f"{kind.value}_limit": F.when(limited, F.col("limit")),
            f"{kind.value}_limit_mode": F.when(limited, "enforce"),
            f"{kind.value}_limit_level": F.when(limited, F.when(by_user, "user+client-id").otherwise("client-id")),
            f"{kind.value}_group_user": F.when(limited & by_user, F.col("user")),
            f"{kind.value}_group_client_id": F.when(limited, client),
            f"{kind.value}_group_utilisation_peak": F.when(
                limited, _rounded(F.least(F.col("wanted") / F.col("limit") * 1.02, 1 + F.col("u_shape") * 0.08), 0.001)
            ),
        } | _rates(kind, rate)
    return values | _rates(Kind.REQUEST, F.col("busy_s") * (100.0 / fleet.interval_s))


_ROLES = ("-writer-", "-reader-", "-streams-", "-mirror-")


def _rates(kind: Kind, mean: Column) -> dict[str, Column]:
    """Percentiles of the one-second rates about their mean: the narrower, the steadier the client was."""
    spread = F.col("u_shape")
    return {
        f"{kind.value}_rate_p50": _rounded(mean * (1 - 0.3 * spread), 0.1),
        f"{kind.value}_rate_p95": _rounded(mean * (1 + 0.8 * spread), 0.1),
        f"{kind.value}_rate_p99": _rounded(mean * (1 + 1.2 * spread), 0.1),
        f"{kind.value}_rate_max": _rounded(mean * (1 + 1.6 * spread), 0.1),
    }


def _rounded(value: Column, unit: float) -> Column:
    """To a multiple of `unit`. Spark's own round() goes through decimals, which takes longer than all else here."""
    return F.floor(value / unit + 0.5) * unit if unit >= 1 else F.floor(value / unit + 0.5) / round(1 / unit)


def _library(column: int) -> Column:
    return F.coalesce(*(F.when(F.col("u_library") < entry[0], F.lit(entry[column])) for entry in LIBRARIES))


def _typed(field: Field, values: Mapping[str, Column]) -> Column:
    nothing = F.lit(None) if field.nullable else F.lit(0)
    return values.get(field.name, nothing).cast(field.type).alias(field.name)


assert set(FAMILIES) >= {"produce", "fetch", "group", "admin"}


def write(
    spark: SparkSession, fleet: GeneratedFleet, output: str, *, form: str = "parquet", quiet: bool = False
) -> None:
    """Write the parts as directories `00`, `01`, … below `output`; a part that is whole already is left as it is, one
    that was broken off is written again. Raises ReportError for a directory with another fleet."""
    output = output.rstrip("/")
    progress = Progress(spark)
    there = read_text(spark, f"{output}/_fleet.txt")
    if there is not None and there != f"{fleet}\n":
        raise ReportError(f"{output} has another fleet: {there.strip()}; this is {fleet}: choose another directory")
    write_text(spark, f"{output}/_fleet.txt", f"{fleet}\n")
    if quiet:
        for part in range(fleet.parts):
            _write_part(spark, fleet, part, output, form)
        return
    with progress:
        for part in range(fleet.parts):
            progress.step(f"part {part + 1} of {fleet.parts}")
            _write_part(spark, fleet, part, output, form)


def _write_part(spark: SparkSession, fleet: GeneratedFleet, part: int, output: str, form: str) -> None:
    place = f"{output}/{part:02d}"
    if read_text(spark, f"{place}/_SUCCESS") is not None:  # what Spark writes last
        return
    writer = records(spark, fleet, part).write.mode("overwrite")
    if form == "json":
        writer.option("ignoreNullFields", False).json(place)
    else:
        writer.option("compression", "zstd").parquet(place)


def main(arguments: Sequence[str]) -> int:
    """`python -m analysis.fleet --output DIR`: exit codes as those of the reports."""
    default = GeneratedFleet()
    options = argparse.ArgumentParser(prog="python -m analysis.fleet", description=__doc__)
    options.add_argument("--output", required=True, help="directory for the parts")
    for name, value in (
        ("sidecars", default.sidecars),
        ("days", default.days),
        ("apps", default.apps),
        ("parts", default.parts),
    ):
        options.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    options.add_argument("--interval", type=int, default=default.interval_s, help="seconds per record (300)")
    options.add_argument("--hot", type=float, default=default.hot, help="1: applications of one size (3)")
    options.add_argument("--seed", type=int, default=default.seed, help="another fleet (1)")
    options.add_argument("--format", choices=("parquet", "json"), default="parquet", dest="form")
    options.add_argument("--master", help="Spark master (all cores of this machine)")
    options.add_argument("--memory", metavar="SIZE", help="memory of a local Spark (2g)")
    options.add_argument("--quiet", action="store_true", help="no progress on stderr")
    given = options.parse_args(arguments)
    if DAY_S % (2 * given.interval):
        print(f"error: --interval {given.interval}: expected seconds that half a day is a multiple of", file=sys.stderr)
        return 2
    size = {"sidecars": given.sidecars, "days": given.days, "interval_s": given.interval, "apps": given.apps}
    fleet = GeneratedFleet(**size, hot=given.hot, seed=given.seed, parts=given.parts)
    try:
        spark = open_session(given.master, given.memory)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        write(spark, fleet, given.output, form=given.form, quiet=given.quiet)
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
