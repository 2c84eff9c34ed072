"""Which limit a client has, and who shares it: Kafka's eight levels of precedence as joins with the few quota
entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analysis.errors import WrongUseError
from analysis.kinds import MEASURES
from quota.counter import MutationAlgorithm
from quota.entity import Kind

DEFAULT_WORD = "<default>"
_LIMIT = "struct<limit: double, of_fleet: boolean>"
_ENTRIES = f"array<struct<user: string, client_id: string, found: {_LIMIT}>>"


class Limited(NamedTuple):
    """An entry that limits some kind of quota. None: the name plays no part."""

    user: str | None
    client_id: str | None
    limit: float
    of_fleet: bool
    """Whether all instances share it; otherwise each has the whole limit for itself."""


@dataclass(frozen=True, slots=True)
class CandidateQuotas:
    """Quotas to try: the output of `kquota check --json` for a configuration file."""

    quotas: list[Mapping[str, Any]]
    num_samples: int = 11
    window_ms: int = 1000
    mutation_num_samples: int = 11
    mutation_window_ms: int = 1000
    mutation_algorithm: MutationAlgorithm = "token_bucket"

    def scaled(self, factor: float) -> CandidateQuotas:
        """The same entries with their limits multiplied."""
        names = {measure.limit_name for measure in MEASURES.values()}
        quotas: list[Mapping[str, Any]] = [
            {name: value * factor if name in names and value is not None else value for name, value in entry.items()}
            for entry in self.quotas
        ]
        return replace(self, quotas=quotas)

    def entries(self, kind: Kind) -> list[Limited]:
        """Every entry that limits `kind`."""
        name = MEASURES[kind].limit_name
        return [
            Limited(entry.get("user"), entry.get("client-id"), float(entry[name]), entry.get("scope") == "fleet")
            for entry in self.quotas
            if entry.get(name) is not None
        ]


def load_candidate(path: str | Path) -> CandidateQuotas:
    """Read the output of `kquota check --json`. Raises WrongUseError if it is something else."""
    try:
        values = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise WrongUseError(f"--candidate {path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints: {error}") from None
    if not isinstance(values, dict) or not values.get("ok") or "windows" not in values:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints for a valid configuration")
    windows = values["windows"]
    return CandidateQuotas(
        values["quotas"],
        windows["num"],
        windows["size_seconds"] * 1000,
        windows["controller_num"],
        windows["controller_size_seconds"] * 1000,
        windows["controller_algorithm"],
    )


def resolved(rows: DataFrame, candidate: CandidateQuotas, kind: Kind) -> DataFrame:
    """Rows (`user`, `client_id`) with `limit` (null: none), the counter's `group_user` and `group_client` (null: plays
    no part), and `of_fleet`. The entries are broadcast, and no row is shuffled."""
    spark = rows.sparkSession
    entries = candidate.entries(kind)
    named = [entry for entry in entries if DEFAULT_WORD not in entry[:2]]
    fixed = {entry[:2]: entry for entry in entries}

    def lookup(found: list[Limited], on: list[str], name: str) -> DataFrame:
        # One JSON literal: rows made from Python values would be unpickled by Python workers on the executors.
        rows = [
            {"user": one.user, "client_id": one.client_id, "found": {"limit": one.limit, "of_fleet": one.of_fleet}}
            for one in found
        ]
        frame = spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), _ENTRIES)))
        return F.broadcast(frame.select(*on, F.col("found").alias(name)))

    both = [entry for entry in named if entry[0] is not None and entry[1] is not None]
    users = [entry for entry in named if entry[1] is None]
    clients = [entry for entry in named if entry[0] is None]
    user_default = [e for e in entries if e[1] == DEFAULT_WORD and e[0] not in (None, DEFAULT_WORD)]
    default_client = [e for e in entries if e[0] == DEFAULT_WORD and e[1] not in (None, DEFAULT_WORD)]
    for mine, on, name in (
        (both, ["user", "client_id"], "_1"),
        (user_default, ["user"], "_2"),
        (users, ["user"], "_3"),
        (default_client, ["client_id"], "_4"),
        (clients, ["client_id"], "_7"),
    ):
        if mine:
            rows = rows.join(lookup(mine, on, name), on, "left")
        else:
            rows = rows.withColumn(name, F.lit(None).cast(_LIMIT))

    def default_of(user: str | None, client: str | None) -> Column:
        one = fixed.get((user, client))
        if one is None:
            return F.lit(None).cast(_LIMIT)
        return F.struct(F.lit(one.limit).alias("limit"), F.lit(one.of_fleet).alias("of_fleet"))

    levels = [
        F.col("_1"),
        F.col("_2"),
        F.col("_3"),
        F.col("_4"),
        default_of(DEFAULT_WORD, DEFAULT_WORD),
        default_of(DEFAULT_WORD, None),
        F.col("_7"),
        default_of(None, DEFAULT_WORD),
    ]
    level = F.coalesce(*(F.when(one.isNotNull(), F.lit(number)) for number, one in enumerate(levels, 1)))
    # With one sort of level configured anywhere the counters are of that sort; otherwise the level that was found
    # decides.
    per_both = any(one.user is not None and one.client_id is not None for one in entries)
    per_user = any(one.client_id is None for one in entries)
    per_client = any(one.user is None for one in entries)
    no_name = F.lit(None).cast("string")
    if per_both + per_user + per_client == 1:
        user = no_name if per_client else F.col("user")
        client = no_name if per_user else F.col("client_id")
    else:
        user = F.when(F.coalesce(level, F.lit(9)) < 7, F.col("user"))
        client = F.when(~F.coalesce(level.isin(3, 6), F.lit(False)), F.col("client_id"))
    found = F.coalesce(*levels)
    names = {
        "limit": found["limit"],
        "of_fleet": F.coalesce(found["of_fleet"], F.lit(False)),
        "group_user": user,
        "group_client": client,
    }
    return rows.withColumns(names).drop("_1", "_2", "_3", "_4", "_7")
