"""Fuzzing in short: findings stay fixed, recorded traffic breaks nothing, the fuzzer works."""

import random
from pathlib import Path

import pytest

from tests.fuzz import blind
from tests.fuzz.__main__ import run
from tests.fuzz.targets import TARGETS

REGRESSIONS = Path(__file__).parents[1] / "fuzz" / "regressions"
MUTATIONS = 150


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_fuzzing_findings_stay_fixed(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_simple_mutations_of_them_break_no_invariant(name: str) -> None:
    one = TARGETS[name]
    inputs = [seed[: one.max_bytes] for seed in one.seeds()]
    assert inputs, "nothing to start from"
    for data in inputs:
        one.run(data)
    rng = random.Random(17)
    for _ in range(MUTATIONS):
        one.run(blind.mutated(rng, inputs)[: one.max_bytes])


@pytest.mark.long
def test_the_fuzzer_runs_and_counts(tmp_path: Path) -> None:
    done = run("response_metadata", tmp_path, runs=1000, seconds=150)
    assert done.finding is None
    assert done.executions >= 500
    assert list((tmp_path / "corpus/response_metadata").iterdir()), "no input has reached anything new"
