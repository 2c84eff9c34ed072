"""Accounts for each instance's records and removes duplicates. Nothing sorts records: sequence numbers become bits, 64
to a word, and words are shuffled."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analysis.columns import merged, together
from analysis.files import kept
from quota.record import IDENTITY

STEP_BACK_MS = 1000
WORD = 64
MAX_WORDS = 200_000
"""Up to this many words with duplicates are broadcast, some 30 MB; beyond, all rows are shuffled."""


def words(rows: DataFrame) -> DataFrame:
    """Per instance and word (64 sequence numbers): which existed, how many records, how often the clock went back by
    more than a second. Rows with a `reason` are only counted. Intervals with the same end and gaps in their numbers, as
    after a clock was set back, are examined record by record."""
    bit = F.expr(f"shiftleft(1L, int(sequence % {WORD}))")
    fit = F.col("reason").isNull()
    rows = rows.select(
        "reason",
        *(F.when(fit, F.col(name)).alias(name) for name in ("instance", "sequence", "start_ms", "end_ms", "pod")),
    )
    # The pod is one of the keys, not the least of several strings: Spark keeps aggregates of numbers in a hash table,
    # but has to sort the rows for those of strings.
    intervals = rows.groupBy("reason", "instance", "pod", word().alias("word"), "end_ms").agg(
        F.bit_or(bit).alias("mask"),
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.min("start_ms").alias("first_ms"),
        F.count("*").alias("records"),
    )
    whole = F.bit_count("mask") == F.col("last") - F.col("first") + 1
    there = F.expr(f"filter(sequence(first, last), one -> (mask & shiftleft(1L, int(one % {WORD}))) != 0)")
    intervals = intervals.withColumn("number", F.explode(F.when(whole | ~fit, F.array("first")).otherwise(there)))
    in_order = Window.partitionBy("instance").orderBy("number", "end_ms")
    by_pod = (
        intervals.withColumn("back", F.col("end_ms") < F.lag("end_ms").over(in_order) - STEP_BACK_MS)
        .groupBy("reason", "instance", "pod", "word")
        .agg(
            F.expr("sum(IF(number <=> first, records, 0))").alias("records"),
            *merged(bit_or=["mask"], min=["first", "first_ms"], max=["last"]),
            F.count_if("back").alias("clock_steps"),
            F.max("end_ms").alias("last_ms"),
            F.max(F.col("end_ms") - F.col("first_ms")).alias("longest_ms"),
        )
    )
    return together_words(by_pod.withColumnRenamed("pod", "pod_min").withColumn("pod_max", F.col("pod_min")))


def together_words(parts: DataFrame) -> DataFrame:
    """Merge words that were made of parts of the records. A clock that went back between two parts is not noticed."""
    found = parts.groupBy("reason", "instance", "word").agg(
        *together(),
        *merged(bit_or=["mask"], sum=["clock_steps"], min=["first", "pod_min"], max=["last", "pod_max", "longest_ms"]),
    )
    return found.withColumn("duplicates", F.expr("records - bit_count(mask)"))


def word() -> Column:
    """The word that contains a record's sequence number."""
    return F.floor(F.col("sequence") / WORD)


def instances(found: DataFrame) -> DataFrame:
    """One row per instance, from its words: records, duplicates, missing ones, steps of the clock. A run of numbers
    begins at a bit whose lower neighbour (of bit 0: bit 63 of the word before) is not set; n runs have n - 1 gaps."""
    in_order = Window.partitionBy("instance").orderBy("word")
    begins = F.bit_count(F.expr("mask & ~shiftleft(mask, 1)"))
    # Bit 63 is the sign.
    goes_on = (
        F.expr("mask & 1L = 1L")
        & (F.lag("word").over(in_order) == F.col("word") - 1)
        & (F.lag("mask").over(in_order) < 0)
    )
    runs = begins - F.coalesce(goes_on, F.lit(False)).cast("int")
    return (
        found.where("reason IS NULL")
        .withColumn("runs", runs)
        .groupBy("instance")
        .agg(
            *together(),
            F.sum("duplicates").alias("duplicates"),
            (F.max("last") - F.min("first") + 1 - F.sum(F.bit_count("mask"))).alias("missing"),
            (F.sum("runs") - 1).alias("gaps"),
            F.sum("clock_steps").alias("clock_steps"),
            F.coalesce(F.min("pod_min") != F.max("pod_max"), F.lit(False)).alias("renamed"),
            F.max("pod_max").alias("pod"),
            F.percentile_approx("longest_ms", 0.5).alias("interval_ms"),  # the first one may be half as long again
        )
    )


def without_repeats(records: DataFrame, repeated: DataFrame, count: int, staging: str) -> DataFrame:
    """The records, each once. `repeated`: the words with duplicates, `count` of them: few, so only their rows are
    shuffled. `staging`: where these are kept, so that they are searched for once."""
    if count > MAX_WORDS:
        return records.dropDuplicates(list(IDENTITY))
    rows = records.withColumn("word", word())
    few = F.broadcast(repeated.select("instance", "word"))
    once = rows.join(few, ["instance", "word"], "left_anti")
    again = rows.join(few, ["instance", "word"], "left_semi").dropDuplicates(list(IDENTITY))
    return once.unionByName(kept(again, staging)).drop("word")
