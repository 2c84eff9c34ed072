"""What keeps the jobs fit for large input: rows stay in the JVMs, and hardly any comes to the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "analysis").rglob("*.py"))
FORBIDDEN = (
    r"\.(collect|toPandas|toLocalIterator|toArrow|take|foreach\w*|rdd|mapInPandas|applyInPandas|createDataFrame)\b"
)


@pytest.mark.parametrize("name", MODULES)
def test_rows_come_to_the_driver_in_one_place_and_never_to_python_workers(name: str) -> None:
    text = (ROOT / name).read_text()
    found = re.findall(FORBIDDEN, text)
    assert found == (["collect"] if name == "analysis/rows.py" else [])
    assert not re.search(r"\b(pandas_)?udf\b", text)
