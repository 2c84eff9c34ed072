"""docs/metrics.md lists every metric with its real type and labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from proxy.core.errors import CloseReason
from tests.support.exposition import everything

TEXT = Path(__file__, "../../../docs/metrics.md").resolve().read_text()
LABEL = (
    r"\b(kind|cause|user|client_id|mode|limit|reason|api|version|python|ip|scope|outcome|sink|library|peer|setting|entity|"
    r"data_path|what)\b"
)


async def test_the_page_and_the_exposition_agree() -> None:
    exported = {}
    for family in text_string_to_metric_families((await everything()).decode()):
        if family.name.startswith("process_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.samples, f"{name} has no sample here, so its labels cannot be compared"
        labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        exported[name] = (family.type, labels)
    documented = {}
    before: set[str] = set()
    for row in TEXT.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 6 and cells[1].startswith("`kquota_"):
            labels = before if cells[3] == "the same" else set(re.findall(LABEL, re.sub(r"\([^)]*\)", "", cells[3])))
            before = labels
            documented[cells[1].strip("`")] = (cells[2], labels)
    assert documented == exported


def test_every_close_reason_is_explained() -> None:
    (table,) = re.findall(r"\| reason \| meaning \|\n(.*?)\n\n", TEXT, re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {str(reason) for reason in CloseReason}


def test_queries_on_the_page_use_metrics_that_exist() -> None:
    (queries,) = re.findall(r"```promql\n(.*?)```", TEXT, re.DOTALL)
    for name in re.findall(r"kquota_\w+", queries):
        assert f"| `{name}` |" in TEXT
