"""The days of a report: which directories are read, and which records count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from pyspark.sql import Column
from pyspark.sql import functions as F

from analysis.columns import DAY_S
from analysis.errors import WrongUseError


@dataclass(frozen=True, slots=True)
class Days:
    """From one day to another, both included, in UTC; None: unbounded."""

    first: date | None = None
    last: date | None = None

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return self.first is not None or self.last is not None

    def __contains__(self, day: str) -> bool:
        return (self.first is None or day >= str(self.first)) and (self.last is None or day <= str(self.last))

    def partitions(self) -> Column:
        """A condition on the partition column `date`, by which Spark skips directories."""
        condition = F.lit(True)
        if self.first is not None:
            condition &= F.col("date") >= str(self.first)
        if self.last is not None:
            condition &= F.col("date") <= str(self.last)
        return condition

    def records(self) -> Column:
        """A condition on records: the middle of the interval lies within the days."""
        middle_ms = (F.col("start_ms") + F.col("end_ms")) / 2
        condition = F.lit(True)
        if self.first is not None:
            condition &= middle_ms >= _midnight_ms(self.first)
        if self.last is not None:
            condition &= middle_ms < _midnight_ms(self.last) + DAY_S * 1000  # 9999-12-31 has no day after
        return condition


EVERY_DAY = Days()


def day(option: str, text: str | None) -> date | None:
    """Parse a day. Raises WrongUseError."""
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise WrongUseError(f"{option} {text}: expected a day such as 2026-08-31") from None


def _midnight_ms(of: date) -> int:
    return int(datetime(of.year, of.month, of.day, tzinfo=UTC).timestamp() * 1000)
