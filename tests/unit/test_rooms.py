"""Each test file is in a room, which is its marker, and files of one Spark session stay together."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import BEGUN_FIRST, ROOMS
from tests.support.schedule import NO_SESSION, group_of

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
NAMES = {path.stem for path in FILES}


def test_every_file_is_in_a_room() -> None:
    assert {path.relative_to(TESTS).parts[0] for path in FILES} == set(ROOMS)
    assert len(NAMES) == len(FILES), "reports name files without their folders"
    assert {*BEGUN_FIRST, *NO_SESSION} <= NAMES


def test_no_file_marks_itself_for_a_room() -> None:
    marked = re.compile(rf"mark\.({'|'.join((*ROOMS, 'flaky'))})\b")
    assert [path.name for path in FILES if path != Path(__file__) and marked.search(path.read_text())] == []


def test_files_with_a_spark_session_stay_together() -> None:
    for path in (path for path in FILES if path.parent.name == "spark"):
        with_session = re.search(r"spark: SparkSession|report: Make\b", path.read_text())
        assert (group_of(f"tests/spark/{path.name}::test_a") == "tests/spark") == bool(with_session), path.name
    assert group_of("tests/broker/test_export.py::test_a[1]") == "tests/broker/test_export.py"
