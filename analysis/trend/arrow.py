"""The forecast as a function over Arrow batches, which Spark's executors run in Python (`mapInArrow`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.trend.weekly import back_test, every_day, outlook

RESULT = (
    "series bigint, day bigint, mean double, low double, high double, growth double, "
    "held_out int, error_share double, covered_share double"
)
"""Output: one row per series and day ahead; none for a series with too few days."""
_TYPES = {"bigint": pa.int64(), "double": pa.float64(), "int": pa.int32()}
_FIELDS = [(name, _TYPES[kind]) for name, kind in (one.split() for one in RESULT.split(", "))]


def foretold(last_day: int, horizon: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over rows `series bigint, days array<bigint>, peaks array<double>`: `horizon` days after `last_day`.

    A series is one row, with its days (since 1970) in any order and the peak of each.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ahead = np.arange(last_day + 1, last_day + 1 + horizon)
        for batch in batches:
            rows: list[list[Any]] = [[] for _ in _FIELDS]
            for one in batch.to_pylist():
                day, value = every_day(np.array(one["days"]), np.array(one["peaks"]), last_day)
                found = outlook(day, value, ahead)
                if found is None:
                    continue
                tested = back_test(day, value)
                test = (None,) * 3 if tested is None else (tested.days, tested.error_share, tested.covered_share)
                same = (found.growth, *test)
                columns: list[Iterable[Any]] = [[one["series"]] * horizon, ahead, found.mean, found.low, found.high]
                columns += [[value] * horizon for value in same]
                for place, values in zip(rows, columns, strict=True):
                    place.extend(values)
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, kind) for values, (_, kind) in zip(rows, _FIELDS, strict=True)],
                [name for name, _ in _FIELDS],
            )

    return run
