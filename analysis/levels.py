"""The quotas that `whatif` tries, and the limit of each client under them: what the sidecar's own table says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.errors import WrongUseError
from quota.counter import LedgerSettings
from quota.entity import Kind
from quota.table import RATE_FIELD, Entry, QuotaTable

ADDED = {"group_user": "string", "group_client": "string", "of_fleet": "boolean", "limits": "array<double>"}
"""Columns that :func:`resolved` adds."""
_WINDOWS = {
    "num": "quota.window.num",
    "size_seconds": "quota.window.size.seconds",
    "controller_num": "controller.quota.window.num",
    "controller_size_seconds": "controller.quota.window.size.seconds",
    "controller_algorithm": "controller_mutation_algorithm",
}
"""What `kquota check --json` calls these settings."""


@dataclass(frozen=True, slots=True)
class CandidateQuotas:
    """Quotas to try, and how they count."""

    table: QuotaTable
    settings: LedgerSettings = field(default_factory=LedgerSettings)

    def scaled(self, factor: float) -> CandidateQuotas:
        """The same entries with their limits multiplied."""

        def times(entry: Entry) -> dict[str, Any]:
            return {RATE_FIELD[kind]: limit * factor for kind in Kind if (limit := entry.limit(kind)) is not None}

        scaled = [replace(entry, **times(entry)) for entry in self.table.entries]
        return replace(self, table=QuotaTable(scaled, default_scope=self.table.default_scope))

    def entries(self, kind: Kind) -> list[Entry]:
        """Every entry that limits `kind`."""
        return [entry for entry in self.table.entries if entry.limit(kind) is not None]


def load_candidate(path: str | Path) -> CandidateQuotas:
    """Read a configuration file, or the output of `kquota check --json`. Raises WrongUseError if it is neither."""
    from config.load import load, validate  # here, as executors have neither it nor a file
    from config.model import Config
    from config.overlay import table_in_force
    from config.problems import ConfigError
    from config.settings import windows
    from config.source import Source

    try:
        if Path(path).suffix in (".yaml", ".yml"):
            config = load(path, on_paper=True)
        else:
            config = validate(Config, Source(str(path), _checked(path)))
        return CandidateQuotas(table_in_force(config), LedgerSettings(**windows(config)))
    except ConfigError as error:
        raise WrongUseError("\n".join(f"--candidate {problem}" for problem in error.problems)) from None


def _checked(path: str | Path) -> dict[str, Any]:
    """What `kquota check --json` has printed, as values of a configuration file."""
    printed = f"--candidate {path}: expected what `kquota check --json` prints for a valid configuration"
    try:
        found = json.loads(Path(path).read_bytes())
        entries = [{name: value for name, value in one.items() if name != "level"} for one in found["quotas"]]
        return {"quotas": entries} | {key: found["windows"][name] for name, key in _WINDOWS.items()}
    except OSError as error:
        raise WrongUseError(f"--candidate {path}: cannot be read: {error.strerror or error}") from None
    except KeyError as error:
        raise WrongUseError(f"{printed}; it has no {error}") from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WrongUseError(f"{printed}: {error}") from None


def resolved(
    kind: Kind, candidates: Iterable[CandidateQuotas]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over rows with `user` and `client_id`, for executors. It adds the names of the clients' counter,
    `group_user` and `group_client` (null: plays no part), `of_fleet` (all instances share it) and `limits`, one under
    each candidate (null: none). The candidates have entries for the same clients."""
    tables = [one.table for one in candidates]

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
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], [*batch.schema.names, *ADDED])

    return run
