"""Each test file is in a room, markers of rooms come from the folder alone, and what is in quarantine is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import LONG, QUARANTINE, ROOMS

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
