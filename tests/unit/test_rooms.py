"""Each test file is in a room, markers of rooms come from the folder alone, and what is in quarantine is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import LONG, QUARANTINE, ROOMS
from tests.support.schedule import NO_SESSION, SESSION, SESSIONS, SPLIT, group_of

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def test_every_file_is_in_a_room() -> None:
    assert len(FILES) > 150
    assert {path.relative_to(TESTS).parts[0] for path in FILES} == set(ROOMS)


def test_names_of_files_are_unique() -> None:
    """Reports and documents name them without their folders."""
    assert len({path.name for path in FILES}) == len(FILES)


def test_no_test_marks_itself_for_a_room_nor_asks_for_another_try() -> None:
    marked = re.compile(rf"mark\.({'|'.join((*ROOMS, 'flaky'))})\b")
    assert [path.name for path in FILES if path.name != Path(__file__).name and marked.search(path.read_text())] == []


def test_what_is_named_is_there() -> None:
    assert set(LONG) <= {path.stem for path in FILES}
    for test, reason in QUARANTINE.items():
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (TESTS.parent / file).read_text(), re.MULTILINE), test
        assert len(reason) > 20, test


def test_groups_are_files_but_for_spark_sessions_and_clusters_apart() -> None:
    assert group_of("tests/broker/test_export.py::test_a[1]") == "tests/broker/test_export.py"
    same = "tests/broker/test_transparency.py"
    assert group_of(f"{same}::test_same_results[kafka_391-records.x]") == f"{same}::kafka_391"
    assert group_of(f"{same}::test_the_sidecar_noticed_nothing_wrong[kafka3]") == f"{same}::kafka3"
    assert group_of(f"{same}::test_another") == same
    for path in FILES:
        if path.parent.name == "spark":
            group = group_of(f"{path.relative_to(TESTS.parent)}::test_a")
            with_session = re.search(r"spark: SparkSession|report: Make\b", path.read_text())
            assert group.startswith(SESSION) == bool(with_session), path.name
    assert group_of("tests/spark/test_analysis_audit.py::test_a") == group_of(
        "tests/spark/test_analysis_plans.py::test_b"
    )
    assert group_of("tests/spark/test_report_pages.py::test_a") == group_of(
        "tests/spark/test_analysis_stream.py::test_b"
    )
    spark = [path for path in FILES if path.parent.name == "spark"]
    assert len({group_of(f"{path.relative_to(TESTS.parent)}::test_a") for path in spark}) == len(SESSIONS) + len(
        NO_SESSION
    )
    assert {*NO_SESSION, *SPLIT, *(file for files in SESSIONS for file in files)} <= {path.stem for path in FILES}
