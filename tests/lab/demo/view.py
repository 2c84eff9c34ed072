"""The live view, the plain lines, the summary. Only text is made here; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tests.lab.demo.meter import Track, steady_from
from tests.lab.demo.plan import MB, STEADY_FROM_S, WINDOW_S, DemoClient
from tests.lab.demo.verdict import ClientResult

WIDE = 112
"""From this many columns on there is room for the small graph and for the throttles that the clients report."""
GRAPH_COLUMNS = 20
BARS = " ▁▂▃▄▅▆▇█"

FIRST_WINDOW = (
    f"First window: a Kafka quota is an average over {WINDOW_S} s, so a client may send {WINDOW_S} s' worth at once. "
    f"Then it is held until the average is back at its limit, at about second {STEADY_FROM_S}. Watch `now` drop."
)
STEADY = (
    "Steady: the first window is over. Clients that want more get their limits, evenly: each answer carries a "
    "throttle time, and the sidecar does not read from that client (muted) until it is over. The two of clicks "
    "have one limit behind two sidecars: what the modest one leaves is the greedy one's."
)


def explanation(tracks: Sequence[Track], second: float) -> str:
    if second < STEADY_FROM_S:  # certain, and cheaper to check
        return FIRST_WINDOW
    begin = steady_from(tracks)
    return FIRST_WINDOW if begin is None or second < begin else STEADY


def live(tracks: Sequence[Track], title: str, second: float, seconds: float, width: int) -> RenderableType:
    left = f" {second:3.0f} of {seconds:.0f} s"
    bar = ProgressBar(total=seconds, completed=min(second, seconds), width=max(width - len(left) - 2, 1))
    progress = Table.grid()
    progress.add_row(bar, left)
    return Group(
        Text(title, style="bold", overflow="ellipsis", no_wrap=True),
        progress,
        clients_table(tracks, second, width),
        Text(explanation(tracks, second), style="italic"),
        Text("Ctrl-C stops everything and leaves nothing behind.", style="dim"),
    )


def clients_table(tracks: Sequence[Track], second: float, width: int) -> Table:
    """A row for each client. Rates are in MB/s."""
    table = _table(("\nwants", "\nlimit", "\nnow", "\naverage", "throttle,\nlast ms", "held,\ns in all"))
    if width >= WIDE:
        table.add_column("client saw,\nlongest ms", justify="right", no_wrap=True)
    table.add_column("\nstate", no_wrap=True, min_width=8)
    if width >= WIDE:
        table.add_column("rate since the start\n(of its highest)", no_wrap=True)
    for track in tracks:
        plan = track.plan
        cells: list[RenderableType] = [
            who(plan),
            number(plan.wanted, "all"),
            limit(track),
            Text(number(track.now()), style=_colour(track)),
            number(track.average()),
            milliseconds(track.last_throttle_ms if track.throttles else None),
            held(track),
        ]
        if width >= WIDE:
            cells.append(milliseconds(track.client_throttle_max_ms))
        cells.append(state(track))
        if width >= WIDE:
            cells.append(Text(graph(track.history(GRAPH_COLUMNS, max(second, 1.0))), style="cyan"))
        table.add_row(*cells)
    return table


def _table(headings: Sequence[str], **more: Any) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False, **more)
    table.add_column("client\n(rates in MB/s)", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def limit(track: Track) -> Text:
    """Its limit, and below it the part that its sidecar may use if the limit is the fleet's."""
    whole = (number(track.plan.limit, "none"), "bold")
    if not track.plan.shared:
        return Text.assemble(whole)
    share = "shared" if track.share is None else f"× {track.share:.0%}"
    return Text.assemble(whole, "\n", (share, "dim"))


def who(plan: DemoClient) -> Text:
    return Text.assemble((plan.name, "bold"), f" {plan.role}\n", (f"{plan.library}, {plan.manner}", "dim"))


def state(track: Track) -> Text:
    if track.plan.limit is None:
        return Text("free", style="green")
    return Text("muted", style="magenta") if track.muted else Text("flowing", style="green")


def held(track: Track) -> str:
    return f"{track.held_ms / 1000:.1f}" if track.plan.limit else "-"


def graph(rates: Sequence[float]) -> str:
    top = max(rates, default=0.0)
    if top <= 0:
        return BARS[0] * len(rates)
    return "".join(BARS[round(rate / top * (len(BARS) - 1))] for rate in rates)


def plain_line(track: Track, second: float) -> str:
    plan = track.plan
    wanted = f"wants {number(plan.wanted, 'all it can')}"
    rates = f"now {number(track.now())}, average {number(track.average())} MB/s"
    if plan.limit is None:
        return f"{second:4.0f} s  {plan.name:<9} {wanted}, no limit: {rates}; free"
    share = "" if track.share is None else f", {track.share:.0%} of it here"
    delays = f"last throttle {track.last_throttle_ms:.0f} ms, held {track.held_ms / 1000:.1f} s"
    limited = f"limit {number(plan.limit)}{share}"
    return f"{second:4.0f} s  {plan.name:<9} {wanted}, {limited}: {rates}; {delays}, {state(track)}"


def summary_table(outcomes: Sequence[ClientResult]) -> Table:
    """Limit vs achieved; fits 80 columns."""
    headings = ("\nlimit", "\nsteady", "of the\nlimit", "whole\nrun", "held,\ns in all", "client\nsaw, ms")
    table = _table(headings, title="limit vs achieved", title_justify="left", title_style="bold")
    table.add_column("\nresult", no_wrap=True)
    for outcome in outcomes:
        plan = outcome.track.plan
        share = "-" if outcome.share is None else f"{outcome.share:.0%}" + ("" if plan.limit else " *")
        table.add_row(
            who(plan),
            limit(outcome.track),
            number(outcome.steady),
            share,
            number(outcome.whole),
            held(outcome.track),
            milliseconds(outcome.track.client_throttle_max_ms),
            Text("off", style="bold red") if outcome.failure else Text("ok", style="bold green"),
        )
    return table


def summary_notes(outcomes: Sequence[ClientResult]) -> str:
    free = [outcome.track.plan for outcome in outcomes if outcome.track.plan.limit is None]
    starred = "".join(f" * of the {number(plan.wanted)} that {plan.name} wants." for plan in free)
    return (
        f"steady: after the first window, from about second {STEADY_FROM_S} on. whole run: with the {WINDOW_S} s' "
        f"worth that the first window lets through at once.{starred} × 70%: the part of a limit of the fleet that this "
        "client's sidecar may use. client saw: the longest throttle time that the library reports (aiokafka has "
        "none). Rates count the records alone; the quota counts the bytes on the wire, a few per cent more."
    )


def number(rate: float | None, absent: str = "-") -> str:
    """Bytes/s as MB/s with two digits."""
    return absent if rate is None else f"{rate / MB:.2f}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _colour(track: Track) -> str:
    return "yellow" if track.plan.limit and track.now() > 1.1 * track.plan.limit else "green"
