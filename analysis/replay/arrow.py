"""The replay as a function over Arrow batches, which Spark's executors run in Python (`mapInArrow`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from analysis.replay.fold import Rule, fold

ROWS = "gid bigint, rule int, limits array<double>, start_ms bigint, duration_s double, amount double"
"""Input: one row per group, with its rule and its limits, and one per interval, where these two are null."""
RESULT = (
    "gid bigint, place int, seconds_over bigint, longest_ms bigint, extreme double, seconds_seen double, peak double"
)
"""Output: one row per group and limit; `place` counts the group's limits from 0."""
_NAMES = [one.split()[0] for one in RESULT.split(", ")]


def folded(rules: Sequence[Rule]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over all rows (:data:`ROWS`) of some groups, in any order."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = list(batches)
        if not every:
            return
        table = pa.Table.from_batches(every)
        del every
        heads, rows = table.filter(table["rule"].is_valid()), table.filter(table["rule"].is_null())
        del table
        gids = heads["gid"].to_numpy()
        order = np.argsort(gids)
        gids, which = gids[order], heads["rule"].to_numpy()[order]
        limits = heads["limits"].combine_chunks().take(pa.array(order))
        group = np.searchsorted(gids, rows["gid"].to_numpy())
        start_ms, duration_s, amount = (rows[name].to_numpy() for name in ("start_ms", "duration_s", "amount"))
        for number, rule in enumerate(rules):
            mine = np.flatnonzero(which == number)
            if not len(mine):
                continue
            some = np.isin(group, mine)
            matrix = limits.take(pa.array(mine)).flatten().to_numpy(zero_copy_only=False).reshape(len(mine), -1)
            outcome = fold(
                rule, np.searchsorted(mine, group[some]), start_ms[some], duration_s[some], amount[some], matrix
            )
            several = matrix.shape[1]
            columns = [
                np.repeat(gids[mine], several),
                np.tile(np.arange(several, dtype=np.int32), len(mine)),
                outcome.seconds_over.ravel(),
                outcome.longest_ms.ravel(),
                outcome.extreme.ravel(),
                np.repeat(outcome.seconds_seen, several),
                np.repeat(outcome.peak, several),
            ]
            yield pa.RecordBatch.from_arrays([pa.array(one, from_pandas=True) for one in columns], _NAMES)

    return run
