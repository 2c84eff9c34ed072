"""Records `kquota demo`, a real run, as an animated SVG: `python docs/_site/record_demo.py` (under a minute).

What is drawn is what the demo shows on a terminal, frame by frame, and its summary at the end. The script fails where
the demo does, so that a picture of a run that was not held to its limits is never kept.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.demo import view  # noqa: E402
from tests.lab.demo.meter import Track, length  # noqa: E402
from tests.lab.demo.stage import staged  # noqa: E402
from tests.lab.demo.verdict import compare, sentence  # noqa: E402

PICTURE: Final = ROOT / "docs" / "images" / "demo.svg"
SECONDS: Final = 30
SHOWN_AT_S: Final = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28)
FRAME_S: Final = 1.2
SUMMARY_S: Final = 6.0
COLUMNS: Final = 118

_SVG: Final = """<svg id="{unique_id}" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>"""
"""Rich's own, without the font that it would fetch."""


def frame(shown: RenderableType, number: int) -> str:
    """One frame as an SVG element."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(shown)
    return console.export_svg(title="make demo", unique_id=f"f{number}", code_format=_SVG)


def animation(frames: list[str]) -> str:
    """The frames one after the other, the last one longest; it alone where the viewer wants no motion."""
    sizes = [re.search(r'width="([\d.]+)" height="([\d.]+)"', one) for one in frames]
    width = max(float(size[1]) for size in sizes if size)
    height = max(float(size[2]) for size in sizes if size)
    whole_s = FRAME_S * (len(frames) - 1) + SUMMARY_S
    rules = [".frame { visibility: hidden; }"]
    for number in range(len(frames)):
        begin = 100 * FRAME_S * number / whole_s
        end = 100.0 if number == len(frames) - 1 else 100 * FRAME_S * (number + 1) / whole_s
        before = "" if number == 0 else "0% { visibility: hidden; } "
        after = "" if end == 100.0 else f" {end:.2f}%, 100% {{ visibility: hidden; }}"
        last = " 100% { visibility: visible; }" if end == 100.0 else ""
        rules.append(f"@keyframes k{number} {{ {before}{begin:.2f}% {{ visibility: visible; }}{after}{last} }}")
        rules.append(f"#g{number} {{ animation: k{number} {whole_s:.1f}s step-end infinite; }}")
    rules.append(
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none !important; } "
        f"#g{len(frames) - 1} {{ visibility: visible; }} }}"
    )
    groups = "\n".join(f'<g class="frame" id="g{number}">{one}</g>' for number, one in enumerate(frames))
    style = "\n".join(rules)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="kquota demo: five clients, each held to its limit, two of them to one limit together">\n'
        f"<style>\n{style}\n</style>\n{groups}\n</svg>\n"
    )


def main() -> int:
    """Run the demo and write the picture; 1 if a client was not held to its limit."""
    frames: list[str] = []
    due = list(SHOWN_AT_S)
    with staged(print) as stage:
        tracks: list[Track] = []
        for second, tracks in stage.run(SECONDS):
            if due and second >= due[0]:
                due.pop(0)
                frames.append(frame(view.live(tracks, stage.title, second, SECONDS, COLUMNS), len(frames)))
    seconds = length(tracks, SECONDS)
    outcomes = compare(tracks, seconds)
    failed = any(outcome.failure for outcome in outcomes)
    last = Text(sentence(outcomes, seconds), style="bold red" if failed else "bold green")
    summary = Group(view.summary_table(outcomes), Text(view.summary_notes(outcomes), style="dim"), Text(), last)
    frames.append(frame(summary, len(frames)))
    print(sentence(outcomes, seconds))
    if failed:
        return 1
    PICTURE.write_text(animation(frames), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
