"""The suites of other clients: what their runs said, compared (tests/peers)."""

from __future__ import annotations

import json

import pytest

from tests.peers.outcomes import NEVER_BEGUN, Ended, Outcome, Row, count, of_go, of_librdkafka, side_by_side, table

PASSED, FAILED, SKIPPED = (Ended(one, 1.5) for one in (Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED))


def test_what_go_says() -> None:
    said = """\
=== RUN   TestPing
--- PASS: TestPing (0.01s)
=== RUN   TestGroupETL
=== PAUSE TestGroupETL
=== CONT  TestGroupETL
=== RUN   TestGroupETL/range
    --- FAIL: TestGroupETL/range (3.00s)
--- FAIL: TestGroupETL (3.25s)
=== RUN   TestOAuthAuth
--- SKIP: TestOAuthAuth (0.00s)
=== RUN   TestTxnEtl
panic: test timed out after 15m0s
"""
    assert of_go(said) == {
        "TestPing": Ended(Outcome.PASSED, 0.01),
        "TestGroupETL": Ended(Outcome.FAILED, 3.25),
        "TestOAuthAuth": Ended(Outcome.SKIPPED),
        "TestTxnEtl": Ended(Outcome.UNFINISHED),
    }


def test_what_librdkafka_says() -> None:
    states = {"<MAIN>": "PASSED", "0012": "PASSED", "0022": "FAILED", "0045": "RUNNING", "0097": "SKIPPED"}
    states |= {"0011": "DNS", "0098": "SKIPPED"}
    tests = {name: {"name": name, "state": state, "duration": 1.5} for name, state in states.items()}
    assert of_librdkafka(json.dumps({"tests": tests}), ["0011", "0012", "0022", "0045", "0097"]) == {
        "0012": PASSED,
        "0022": FAILED,
        "0045": Ended(Outcome.UNFINISHED, 1.5),
        "0097": SKIPPED,
    }


@pytest.mark.parametrize(
    ("direct", "through", "suspect"),
    [
        ([PASSED], [PASSED], False),
        ([PASSED], [FAILED], True),
        ([PASSED], [NEVER_BEGUN], True),
        ([PASSED], [SKIPPED], True),
        ([FAILED], [FAILED], False),
        ([FAILED], [PASSED], False),
        ([SKIPPED], [SKIPPED], False),
        ([PASSED, PASSED], [FAILED, PASSED], False),
        ([PASSED, FAILED], [FAILED, FAILED], False),
        ([PASSED, PASSED, PASSED], [FAILED, NEVER_BEGUN, FAILED], True),
    ],
)
def test_suspect_is_what_always_passes_at_the_broker_and_never_through_the_sidecar(
    direct: list[Ended], through: list[Ended], suspect: bool
) -> None:
    assert Row("a", direct, through).suspect is suspect


def test_both_runs_side_by_side() -> None:
    rows = side_by_side(
        {"b": PASSED, "a": SKIPPED, "quick": Ended(Outcome.PASSED)}, {"b": FAILED, "quick": Ended(Outcome.PASSED)}
    )
    rows[1].direct.append(PASSED)
    assert [row.name for row in rows] == ["a", "b", "quick"]
    assert count(rows) == "3 tests: 1 passed both ways, 2 ended differently"
    assert table(rows).splitlines()[2:] == [
        "| a | skipped | unfinished 0.0 s |",
        "| b | passed 1.5 s, passed 1.5 s | failed 1.5 s |",
    ]
