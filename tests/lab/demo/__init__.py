"""`kquota demo`: a real Kafka broker, two real sidecars and real clients on one machine, and a view of them at work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from config.visible import visible
from tests.lab.demo import view
from tests.lab.demo.meter import Track, length
from tests.lab.demo.stage import DemoError, Interrupted, Stage, staged
from tests.lab.demo.verdict import compare, sentence
from tests.lab.kafka import EmbeddedKafkaError

PLAIN_EVERY_S = 2.0
PLAIN_WIDTH = 100

__all__ = ["main"]


def main(seconds: int, plain: bool, usage: Path | None = None) -> int:
    """Run the demo for `seconds` of work; `plain` prints lines in place of the live view (so does a pipe); `usage` is a
    directory for the sidecars' usage records. The run becomes up to 15 s longer if clients on a busy machine need
    longer for their first window.

    Returns the exit code: 0 when every client was held to its limit (or, without one, not slowed), 1 when not or when
    something failed, 2 for an unusable `usage`, 128 + n after signal n (130 for Ctrl-C).
    """
    # No terminal, no width: lines in a log are not cut.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    plain = plain or not console.is_terminal or console.is_dumb_terminal
    if usage is not None:
        try:
            usage.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return _failed(console, f"--usage {usage}: {error.strerror}", 2)
    try:
        return _demo(console, seconds, plain, usage)
    except Interrupted as interrupted:
        console.print("Stopped: clients, sidecars and broker are gone.")
        return interrupted.exit_code
    except (DemoError, EmbeddedKafkaError) as error:
        return _failed(console, str(error), 1)


def _failed(console: Console, message: str, code: int) -> int:
    console.print(f"[bold red]error:[/] {escape(visible(message, lines=True))}", soft_wrap=True)
    return code


def _demo(console: Console, seconds: int, plain: bool, usage: Path | None) -> int:
    began = time.monotonic()

    def say(line: str) -> None:
        line = visible(line)
        stamp = f"{time.monotonic() - began:5.1f} s"
        if plain:
            console.print(f"{stamp}  {line}", markup=False, soft_wrap=True)
        else:
            grid = Table.grid(padding=(0, 2))
            grid.add_row(Text(stamp, style="dim"), Text(line))
            console.print(grid)

    # The spinner shows that work goes on; the live view replaces it in between.
    spinner = nullcontext() if plain else console.status("Ctrl-C stops everything")
    with spinner as status, staged(say, usage) as stage:
        if status is not None:
            status.stop()
        show = _show_plain if plain else _show_live
        tracks = show(console, stage, seconds)
        if status is not None:
            status.start()
    if usage is not None:
        program = sys.argv[0] if Path(sys.argv[0]).name == "kquota" else "kquota"
        say(f"usage records are in {usage}: {program} report throttling --input {usage} --output DIR")
    return _summarise(console, tracks, length(tracks, seconds))


def _show_live(console: Console, stage: Stage, seconds: int) -> list[Track]:
    tracks: list[Track] = []
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for second, tracks in stage.run(seconds):
            live.update(view.live(tracks, stage.title, second, max(seconds, second), console.width), refresh=True)
    return tracks


def _show_plain(console: Console, stage: Stage, seconds: int) -> list[Track]:
    say: Callable[[str], None] = partial(console.print, soft_wrap=True, markup=False)
    say(stage.title)
    explained, due = "", 0.0
    tracks: list[Track] = []
    for second, tracks in stage.run(seconds):
        if second < due and second != seconds:
            continue
        due += PLAIN_EVERY_S
        if explained != (explained := view.explanation(tracks, second)):
            say(explained)
        for track in tracks:
            say(view.plain_line(track, second))
    return tracks


def _summarise(console: Console, tracks: list[Track], seconds: float) -> int:
    outcomes = compare(tracks, seconds)
    failed = any(outcome.failure for outcome in outcomes)
    console.print()
    console.print(view.summary_table(outcomes))
    console.print(view.summary_notes(outcomes), style="dim")
    console.print(f"\n{sentence(outcomes, seconds)}", style="bold red" if failed else "bold green", markup=False)
    return 1 if failed else 0
