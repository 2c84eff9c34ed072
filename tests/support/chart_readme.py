"""The chart's README, made by a real helm-docs from Chart.yaml, values.yaml and README.md.gotmpl."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.chart import CHART
from tests.support import go_tools

README = CHART / "README.md"
SOURCES = ("Chart.yaml", "values.yaml", "README.md.gotmpl")


def helm_docs() -> Path:
    return go_tools.program("helmdocs", "github.com/norwoodj/helm-docs/cmd/helm-docs")


def readme() -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            shutil.copy(CHART / name, folder)
        done = subprocess.run(
            [helm_docs(), "--chart-search-root=.", "--sort-values-order=file", "--log-level=warning"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return (Path(folder) / "README.md").read_text()
