"""The page of a report: one self-contained HTML file, readable without a network. Its script sorts tables."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, NumericType

from analysis.columns import some_rows
from analysis.intake import Quality
from analysis.report import Content, Report, Table
from analysis.words import cell, span
from config.visible import visible

MAX_LINES = 60
DETAILS = "throttling"
IN_SHORT = ("chargeback", "throttling", "slo", "forecast", "anomalies")
"""Reports whose first findings begin the index, in this order."""
OPTIONAL = ("cluster_id", "group_user", "library")
"""Columns of text that are left out if empty everywhere."""
WHOLE_CHARACTERS = 16
"""Words of up to this length are not broken, however narrow the column: kinds, levels, names that people give."""
SCRIPTS = ("sortable/sortable.min.js", "tables.js")


def render(
    report: Report,
    content: Content,
    tables: Mapping[str, DataFrame],
    quality: Quality,
    *,
    here: str = "",
    others: Collection[str] = (),
) -> str:
    """The page as text. `others`: the names of all the reports that it links to; `here` is its own."""
    # Names come from clients: everything is escaped except the plots, which do it themselves; and invisible characters
    # and direction marks are shown as their code.
    return _page(
        "report.html.j2",
        quality,
        here=here,
        others=others,
        title=report.title,
        question=report.question,
        findings=[visible(text) for text in content.findings],
        plots=[(caption, _apart(svg, number)) for number, (caption, svg) in enumerate(content.plots)],
        tables=[
            _shown(name, table, tables[name], DETAILS in others) for name, table in report.tables.items() if table.shown
        ],
        details=DETAILS,
        files={visible(name): _head(visible(text, lines=True)) for name, text in content.files.items()},
        notes=[visible(text) for text in content.notes],
    )


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A report's entry in the index."""

    name: str
    title: str
    question: str
    findings: Sequence[str]
    quality: Quality


def render_index(entries: Sequence[IndexEntry], failed: Mapping[str, str]) -> str:
    """The page that links to all others, their findings first. `failed`: reports that could not be made, and why."""
    found = {one.name: one for one in entries}
    return _page(
        "index.html.j2",
        entries[0].quality,
        in_short=[(one, visible(found[one].findings[0])) for one in IN_SHORT if one in found and found[one].findings],
        reports=[replace(one, findings=[visible(text) for text in one.findings]) for one in entries],
        failed={name: visible(text) for name, text in failed.items()},
    )


def _page(template: str, quality: Quality, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("analysis"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    folder = Path(__file__).with_name("templates")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    # Browsers run nothing but the script with the hash of the content security policy.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        first=_moment(quality.first_ms),
        last=_moment(quality.last_ms),
        length=span(quality.seconds),
        quality=[visible(text) for text in quality.sentences()],
        **content,
    )


def _shown(name: str, table: Table, frame: DataFrame, linked: bool) -> dict[str, Any]:
    rows = some_rows(frame, table.shown + 1)
    left_out = list(table.left_out)
    for field in frame.schema.fields:
        optional = isinstance(field.dataType, NumericType) or field.name in OPTIONAL
        if rows and optional and not any(row[field.name] for row in rows):
            left_out.append(field.name)  # 0 or nothing everywhere
    fields = [field for field in frame.schema.fields if field.name not in left_out]
    numbers = [isinstance(field.dataType, NumericType | BooleanType) for field in fields]
    kinds = "kind" in frame.columns
    cells = [
        [
            {
                "text": visible(cell(field.name, row[field.name], row["kind"] if kinds else None)),
                # What it is sorted by, if that is not its text: no value comes last.
                "sort": None if not number else "" if row[field.name] is None else repr(float(row[field.name])),
                # A client whose hours and causes the page of DETAILS has, for the address.
                "client": quote(visible(row[field.name]))
                if linked and field.name == "client_id" and row[field.name]
                else None,
            }
            for field, number in zip(fields, numbers, strict=True)
        ]
        for row in rows[: table.shown]
    ]
    # The class of a column's cells: n for numbers, w for words that stay whole.
    styles = [
        "n" if number else "w" if all(_is_whole(str(row[at]["text"])) for row in cells) else ""
        for at, number in enumerate(numbers)
    ]
    return {
        "name": name,
        "caption": table.caption,
        "heads": [{"text": _words(one.name), "style": style} for one, style in zip(fields, styles, strict=True)],
        "rows": cells,
        "more": len(rows) > table.shown,
        "left_out": [_words(one) for one in dict.fromkeys(left_out)],
    }


def _is_whole(text: str) -> bool:
    return all(len(word) <= WHOLE_CHARACTERS for word in text.split())


def _apart(svg: str, number: int) -> str:
    """The plot with ids that are unique on the page, and without matplotlib's names of groups."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>plot-{number}-", re.sub(r'<g id="[^"]*"', "<g", svg))


def _words(name: str) -> str:
    return re.sub(r"\bper s\b", "per\N{NO-BREAK SPACE}s", name.replace("_", " "))


def _head(text: str) -> str:
    lines = text.splitlines()
    rest = len(lines) - MAX_LINES
    return text if rest <= 0 else "\n".join([*lines[:MAX_LINES], f"… and {rest:,} more lines in the file"])


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
