"""Draws docs/images/architecture.svg: `python docs/_site/draw_architecture.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).resolve().parents[1] / "images" / "architecture.svg"
WIDTH: Final = 880
HEIGHT: Final = 330

_HEAD: Final = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" \
aria-label="Applications connect to kquota in their pod, kquota connects to the brokers">
<style>
text {{ font-family: system-ui, sans-serif; font-size: 14px; fill: #1c2733; }}
.head {{ font-weight: 600; }} .small {{ font-size: 12px; fill: #55606e; }}
.box {{ fill: #ffffff; stroke: #8a97a8; }} .own {{ fill: #e8edfb; stroke: #3f51b5; stroke-width: 2; }}
.pod {{ fill: #f4f6f9; stroke: #b6c0cc; stroke-dasharray: 5 4; }}
.way {{ stroke: #3f51b5; stroke-width: 2; fill: none; }}
.side {{ stroke: #8a97a8; stroke-width: 1.5; fill: none; stroke-dasharray: 3 3; }}
</style>
<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#3f51b5"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"""


def box(kind: str, x: int, y: int, width: int, height: int, lines: list[str]) -> str:
    """A rectangle with a heading and smaller lines below it."""
    parts = [f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>']
    for number, line in enumerate(lines):
        style = "head" if number == 0 else "small"
        parts.append(f'<text class="{style}" x="{x + 12}" y="{y + 24 + 19 * number}">{escape(line)}</text>')
    return "".join(parts)


def way(kind: str, points: str, *, tip: bool = True) -> str:
    """A line through points."""
    end = ' marker-end="url(#tip)"' if tip else ""
    return f'<polyline class="{kind}" points="{points}"{end}/>'


def label(x: int, y: int, text: str) -> str:
    """Small text."""
    return f'<text class="small" x="{x}" y="{y}">{escape(text)}</text>'


def picture() -> str:
    """The picture as SVG."""
    parts = [
        _HEAD,
        box("pod", 20, 20, 500, 215, ["pod"]),
        box("box", 40, 70, 150, 120, ["application", "any Kafka client", "bootstrap.servers", "= 127.0.0.1:9092"]),
        box(
            "own",
            300,
            60,
            200,
            150,
            ["kquota", "reads request headers", "charges user, client-id", "throttles over quota", "patches addresses"],
        ),
        *(box("box", 700, 20 + 76 * number, 150, 56, [f"broker {number + 1}", "unchanged"]) for number in range(3)),
        way("way", "190,120 296,120"),
        label(198, 110, "Kafka protocol"),
        label(198, 142, "throttle time,"),
        label(198, 158, "then muted"),
        *(way("way", f"500,{110 + 20 * number} 696,{48 + 76 * number}") for number in range(3)),
        label(545, 42, "one local port"),
        label(545, 58, "for each broker"),
        box("box", 40, 262, 230, 50, ["kquota.yaml", "Kafka quotas, reloaded live"]),
        box("box", 300, 262, 300, 50, ["admin port 9404", "/metrics, /ui, kquota top, kquota explain"]),
        way("side", "155,262 155,248 340,248 340,212", tip=False),
        way("side", "440,212 440,262", tip=False),
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
