"""The quotas that `whatif` tries, and the limit of each client under them: what the sidecar's own table says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.errors import WrongUseError
from quota.counter import MutationAlgorithm
from quota.entity import DEFAULT, Kind, Name
from quota.table import RATE_FIELD, Entry, QuotaTable

ADDED = "group_user string, group_client string, of_fleet boolean, limits array<double>"
"""Columns that :func:`resolved` adds."""


@dataclass(frozen=True, slots=True)
class CandidateQuotas:
    """Quotas to try, and how they count."""

    table: QuotaTable
    num_samples: int = 11
    window_ms: int = 1000
    mutation_num_samples: int = 11
    mutation_window_ms: int = 1000
    mutation_algorithm: MutationAlgorithm = "token_bucket"

    @classmethod
    def of(cls, quotas: Iterable[Mapping[str, Any]], **windows: Any) -> CandidateQuotas:
        """Of entries as `kquota check --json` prints them."""
        return cls(QuotaTable(map(_entry, quotas)), **windows)

    def scaled(self, factor: float) -> CandidateQuotas:
        """The same entries with their limits multiplied."""
        scaled = [entry._replace(**_times(entry, factor)) for entry in self.table.entries]
        return replace(self, table=QuotaTable(scaled, default_scope=self.table.default_scope))

    def entries(self, kind: Kind) -> list[Entry]:
        """Every entry that limits `kind`."""
        return [entry for entry in self.table.entries if entry.limit(kind) is not None]


def _times(entry: Entry, factor: float) -> dict[str, Any]:
    return {RATE_FIELD[kind]: limit * factor for kind in Kind if (limit := entry.limit(kind)) is not None}


def _entry(written: Mapping[str, Any]) -> Entry:
    limits = {name: _number(written, name) for name in RATE_FIELD.values() if written.get(name) is not None}
    return Entry(_name(written.get("user")), _name(written.get("client-id")), scope=written.get("scope"), **limits)


def _name(written: Any) -> Name:
    if written is not None and not isinstance(written, str):
        raise ValueError(f"got {written!r}, expected a name")
    return DEFAULT if written == DEFAULT.value else written


def _number(written: Mapping[str, Any], name: str) -> Any:
    value = written[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}: got {value!r}, expected a number above 0")
    return value


def load_candidate(path: str | Path) -> CandidateQuotas:
    """Read a configuration file, or the output of `kquota check --json`. Raises WrongUseError if it is neither."""
    if Path(path).suffix in (".yaml", ".yml"):
        return _of_configuration(path)
    try:
        values = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise WrongUseError(f"--candidate {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints: {error}") from None
    if not isinstance(values, dict) or not values.get("ok") or "windows" not in values:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints for a valid configuration")
    try:
        windows = values["windows"]
        return CandidateQuotas.of(
            values["quotas"],
            num_samples=_number(windows, "num"),
            window_ms=_number(windows, "size_seconds") * 1000,
            mutation_num_samples=_number(windows, "controller_num"),
            mutation_window_ms=_number(windows, "controller_size_seconds") * 1000,
            mutation_algorithm=windows["controller_algorithm"],
        )
    except KeyError as error:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints, with {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise WrongUseError(f"--candidate {path}: expected what `kquota check --json` prints: {error}") from None


def _of_configuration(path: str | Path) -> CandidateQuotas:
    from config.load import load  # here, as executors have neither it nor a file
    from config.overlay import table_in_force
    from config.problems import ConfigError
    from config.settings import windows

    try:
        config = load(path, on_paper=True)
        table = table_in_force(config)
    except ConfigError as error:
        raise WrongUseError("\n".join(f"--candidate {problem}" for problem in error.problems)) from None
    return CandidateQuotas(table, **windows(config))


def resolved(
    kind: Kind, candidates: Sequence[CandidateQuotas]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over rows with `user` and `client_id`, for executors. It adds the names of the clients' counter,
    `group_user` and `group_client` (null: plays no part), `of_fleet` (all instances share it) and `limits`, one under
    each candidate (null: none). The candidates have entries for the same clients."""
    tables = [one.table for one in candidates]
    added = [column.split()[0] for column in ADDED.split(", ")]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = list(zip(batch["user"].to_pylist(), batch["client_id"].to_pylist(), strict=True))
            found = [[table.resolve(kind, *one) for table in tables] for one in names]
            first = [each[0] for each in found]
            columns = (
                pa.array([one.key.user for one in first], pa.string()),
                pa.array([one.key.client_id for one in first], pa.string()),
                pa.array([tables[0].of_fleet(one.entry) for one in first], pa.bool_()),
                pa.array([[one.limit for one in each] for each in found], pa.list_(pa.float64())),
            )
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *added])

    return run
