"""The benchmark program: a tiny run against a real broker ends without an error and measures both ways."""

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.report import tables as report
from benchmarks.rig import variants

pytestmark = pytest.mark.long


@pytest.mark.timeout(240)
def test_tiny_run_compares_kquota_with_direct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--plan", "tiny", "--variants", "direct,05", "--output", str(tmp_path)], Console(width=180))
    out = capsys.readouterr().out
    (file,) = tmp_path.glob("*.samples.json")
    result = report.load(file)
    assert (code, result["errors"]) == (0, []), out
    samples = {(sample["scenario"], sample["variant"]): sample["values"] for sample in result["samples"]}
    for key in ("produce", "fetch", "small", "together", "tls-both-fetch", "tls-client-full"):
        assert {(key, variants.DIRECT.key), (key, variants.KQUOTA.key)} <= samples.keys()
    assert samples["small", variants.KQUOTA.key]["cpu_us_per_request"] > 0
    (page,) = tmp_path.glob("*.md")
    assert page.with_suffix(".png").stat().st_size > 10_000
