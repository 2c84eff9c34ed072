"""What keeps the jobs fit for large input: rows stay in the JVMs but for those that are replayed, and hardly any comes
to the driver.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for name in ("replay", "trend") for path in (ROOT / "analysis" / name).glob("*.py"))
MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "analysis").rglob("*.py") if path not in SHIPPED)
IN_PYTHON = ("analysis/jobs/whatif.py", "analysis/jobs/forecast.py")
"""Intervals are replayed there, and series foretold."""
FORBIDDEN = r"\.(collect|toPandas|toLocalIterator|toArrow|take|foreach\w*|rdd|mapIn\w+|\w*applyIn\w+|createDataFrame)\b"


@pytest.mark.parametrize("name", MODULES)
def test_rows_reach_driver_and_workers_in_known_places(name: str) -> None:
    text = (ROOT / name).read_text()
    found = re.findall(FORBIDDEN, text)
    assert found == {"analysis/rows.py": ["collect"], **{one: ["mapInArrow"] for one in IN_PYTHON}}.get(name, [])
    assert not re.search(r"\b(pandas_)?udf\b", text)


def test_worker_code_imports_nothing_of_spark() -> None:
    """It is shipped by itself, with `quota`: `analysis.session.ship_code`."""
    assert len(SHIPPED) > 7
    for path in SHIPPED:
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        known = r"(analysis\.(replay|trend)|quota|numpy|scipy|statsmodels|pyarrow|"
        known += r"__future__|collections|dataclasses|heapq|typing)\b"
        assert [name for name in imported if not re.match(known, name)] == [], path.name
