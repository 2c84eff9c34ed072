"""/metrics as Prometheus' own tool judges it."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.programs import program
from tests.unit.test_metrics_exposition import busy_ledger, metrics_of


@pytest.mark.trio
async def test_promtool_has_nothing_to_say() -> None:
    text = await metrics_of(busy_ledger()).text(0)
    command = [program("promtool", "prometheus"), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)  # noqa: ASYNC221
    assert (checked.returncode, checked.stderr.decode()) == (0, "")
