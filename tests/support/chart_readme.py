"""The chart's README from Chart.yaml, values.yaml and README.md.gotmpl, as helm-docs makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.lab.chart import CHART

README = CHART / "README.md"


def readme() -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = (CHART / "README.md.gotmpl").read_text()
    text = re.sub(r'\{\{ template "chart\.(\w+)" \. \}\}', lambda found: str(chart[found[1]]), text)
    values = (CHART / "values.yaml").read_text()
    rows = "".join(f"\n| {name} | {default} | {said} |" for name, default, said in _rows(values))
    return re.sub(r"\n\{\{- range \.Values \}\}.*\{\{- end \}\}", lambda _: rows, text, flags=re.DOTALL)


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, default and description of each value: with a comment `# -- ...` before it, or one that holds no others."""
    values: dict[str, Any] = yaml.safe_load(text)
    commented = r"^( *)# -- (.*(?:\n *# .*)*)\n *([\w-]+):"
    keys: list[str] = []
    told = " "
    for found in re.finditer(rf"{commented}|^( *)([\w-]+):", text, re.MULTILINE):
        depth = len(found[1] or found[4] or "") // 2
        keys = [*keys[:depth], found[3] or found[5]]
        name = ".".join(keys)
        if name.startswith(f"{told}."):
            continue
        value: Any = values
        for key in keys:
            value = value[key]
        if found[2] or not (value and isinstance(value, dict)):
            told = name
            default = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
            yield name, f"`{default}`", re.sub(r"\n *# ", " ", found[2] or "")
