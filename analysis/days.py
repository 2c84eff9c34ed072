"""The days of a report: which directories are read, and which records count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis.columns import DAY_S


@dataclass(frozen=True, slots=True)
class Days:
    """From one day to another, both included, in UTC."""

    first: date = date.min
    last: date = date.max

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return self != EVERY_DAY

    def __contains__(self, day: str) -> bool:
        return str(self.first) <= day <= str(self.last)

    def partitions(self) -> Column:
        """A condition on the partition column `date`, by which Spark skips directories."""
        return F.col("date").between(str(self.first), str(self.last))

    def records(self) -> Column:
        """A condition on records: the middle of the interval lies within the days."""
        first_s, last_s = (datetime.combine(day, time(), UTC).timestamp() for day in (self.first, self.last))
        middle_s = (F.col("start_ms") + F.col("end_ms")) / 2000
        return (middle_s >= first_s) & (middle_s < last_s + DAY_S)  # 9999-12-31 has no day after


EVERY_DAY = Days()
