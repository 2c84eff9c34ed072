"""The four kinds of quota as the records have them: columns, units, and Kafka's names of the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from quota.entity import Kind
from quota.record import UNITS
from quota.table import RATE_FIELD


@dataclass(frozen=True, slots=True)
class Measure:
    """The columns of a kind of quota in a record."""

    kind: Kind
    column: str
    """Usage in the interval."""
    scale: float
    """`column` times this, over seconds, is a rate in the unit of the limit."""

    @property
    def unit(self) -> str:
        """Unit of limits and rates."""
        return UNITS[self.kind.value]

    @property
    def limit_name(self) -> str:
        """Kafka's name of the limit, as in the configuration file."""
        return RATE_FIELD[self.kind]

    @property
    def limit(self) -> str:
        """The column with the limit in force."""
        return f"{self.kind.value}_limit"

    def rate(self, seconds: Column | float) -> Column:
        """Usage as a rate over this many seconds, in the unit of the limit."""
        return F.col(self.column) * F.lit(self.scale) / seconds


MEASURES = {
    one.kind: one
    for one in (
        Measure(Kind.PRODUCE, "produce_bytes", 1.0),
        Measure(Kind.FETCH, "fetch_bytes", 1.0),
        Measure(Kind.REQUEST, "request_seconds", 100.0),  # one thread busy all the time is 100 percent
        Measure(Kind.MUTATION, "mutations", 1.0),
    )
}
BYTE_KINDS = (Kind.PRODUCE, Kind.FETCH)


def by_kind(rows: DataFrame, keep: Sequence[str], kinds: Sequence[Kind] = tuple(Kind), **per_kind: str) -> DataFrame:
    """One row per record and kind: `keep`, `kind`, and `per_kind` (new name -> pattern such as ``{kind}_limit``, or
    ``{column}`` for the usage)."""
    parts = [
        F.struct(
            F.lit(kind.value).alias("kind"),
            *(
                F.col(pattern.format(kind=kind.value, column=MEASURES[kind].column)).cast(_type(pattern)).alias(name)
                for name, pattern in per_kind.items()
            ),
        )
        for kind in kinds
    ]
    return rows.select(*keep, F.explode(F.array(*parts)).alias("_one")).select(*keep, "_one.*")


def _type(pattern: str) -> str:
    # Booleans become 1 and 0, so that all kinds of values are numbers or texts.
    return "string" if pattern.endswith(("_user", "_client_id", "_mode", "_level")) else "double"
