"""`kquota top`: which clients use how much of which quota, which are throttled now and until when; live, as top(1)."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from config.units import readable_rate, readable_span
from config.visible import visible
from proxy.app.cli.admin_client import get_json, understood
from proxy.app.common.text import safe
from quota.entity import Kind

NEAR = 0.9
BAR_COLUMNS = 10
HEADINGS = ("user", "client-id", "kind", "limit", "now", "use", "delay", "state", "limit from")
NAMES = ("client-id", "user", "limit from")
FIGURES = {"limit", "now", "delay"}
UNCUT = 1000
"""The width without a terminal: nothing is cut, so that the output can be piped."""
WIDE = 100
"""From this many columns on bars and wider gaps fit."""
GROUPS_ASKED = 10_000

Key = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One counter: a group of clients and one kind of quota."""

    kind: Kind
    user: str | None
    """None: the counter is shared by all users."""
    client_id: str | None
    limit: float
    now: float
    """The value that the limit applies to; tokens left for mutations."""
    use: float
    shadow: bool
    level: str
    throttled_for_ms: int
    owed_ms: int
    waiting: int
    delayed: float | None
    """Seconds of delay per second since the last refresh: 1 is one client all the time; None: first refresh."""

    @property
    def throttled(self) -> bool:
        """Whether it throttles any client."""
        return not self.shadow and bool(self.throttled_for_ms or self.owed_ms or self.waiting)

    @property
    def state(self) -> str:
        """One word, and how long."""
        if self.shadow:
            return "shadow"
        parts = [f"{self.waiting} waiting"] if self.waiting else []
        if self.owed_ms:
            parts.insert(0, f"owes {readable_span(self.owed_ms)}")
        elif self.throttled_for_ms:
            parts.insert(0, f"throttled {readable_span(self.throttled_for_ms)}")
        return ", ".join(parts) or ("near" if self.use >= NEAR else "ok")


Answer = dict[str, Any]
Rows = Sequence[Row]


def rows(groups: Sequence[Answer], before: dict[Key, int], elapsed_s: float) -> list[Row]:
    """The counters that have a limit. `before`: delay (ms) by counter at the last refresh, `elapsed_s` ago."""
    found = []
    for group in groups:
        if group["limit"] is None:
            continue
        ((key, imposed_ms),) = imposed([group]).items()
        known = before.get(key)
        found.append(
            Row(
                kind=Kind(group["kind"]),
                user=group["user"],
                client_id=group["client_id"],
                limit=group["limit"],
                now=group["observed"],
                use=group["utilisation"] or 0.0,
                shadow=group["mode"] == "shadow",
                level=(group["level"] or "-") + _of_fleet(group.get("fleet")),
                throttled_for_ms=group["throttled_for_ms"],
                owed_ms=group["owed_ms"],
                waiting=group.get("waiting", 0),  # missing from older sidecars
                delayed=None if known is None or elapsed_s <= 0 else max(imposed_ms - known, 0) / 1000 / elapsed_s,
            )
        )
    return found


def _of_fleet(fleet: dict[str, Any] | None) -> str:
    if fleet is None:
        return ""
    unheard = ", no contact with the fleet" if fleet["why"] in ("last", "alone") else ""
    return f", {100 * fleet['share']:.0f} % of the fleet's{unheard}"


def imposed(groups: Sequence[Answer]) -> dict[Key, int]:
    """The argument `before` of the next call of `rows`."""
    return {(group["kind"], group["user"], group["client_id"]): int(group["totals"]["throttle_ms"]) for group in groups}


def chosen(found: Rows, text: str, sort: str) -> list[Row]:
    """The rows whose user, client-id or kind contains `text`, in the order asked for."""
    wanted = text.casefold()
    kept = [row for row in found if wanted in f"{row.kind} {row.user or ''} {row.client_id or ''}".casefold()]
    orders: dict[str, Callable[[Row], Any]] = {
        "use": lambda row: -row.use,
        "throttled": lambda row: (
            -max(row.owed_ms, row.throttled_for_ms),
            -row.waiting,
            -(row.delayed or 0.0),
            -row.use,
        ),
        "rate": lambda row: -row.now,
        "name": lambda row: (row.user or "", row.client_id or "", row.kind),
    }
    return sorted(kept, key=orders[sort])


def amount(kind: Kind, value: float, *, limit: bool = False) -> str:
    """A rate or a limit with its unit; for mutations what is left in the bucket."""
    if kind is not Kind.MUTATION:
        return readable_rate(kind, value)
    return f"{value:g}/s" if limit else f"{value:.1f} left"


def table(found: Rows, most: int, width: int) -> Table:
    """The rows as a table of at most `most` rows for a terminal of `width` columns: names are cut, figures are not."""
    bars, gap = (BAR_COLUMNS, 2) if width >= WIDE else (0, 1)
    shown = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False)
    for heading in HEADINGS:
        shown.add_column(
            heading,
            no_wrap=heading not in NAMES,  # only names give way
            justify="right" if heading in FIGURES else "left",
            style="dim" if heading == "limit from" else None,
        )
    for row in found[:most]:
        shown.add_row(*_cells(row, bars))
    return shown


def _cells(row: Row, bar_columns: int) -> list[Text]:
    full = min(round(row.use * bar_columns), bar_columns)
    bar = "█" * full + "░" * (bar_columns - full) + " " * bool(bar_columns)
    return [
        *(_cut("(all)" if name is None else safe(name)) for name in (row.user, row.client_id)),
        Text(row.kind.value),
        Text(amount(row.kind, row.limit, limit=True)),
        Text(amount(row.kind, row.now)),
        Text(f"{bar}{row.use:4.0%}", style="red" if row.use > 1 else ""),
        Text("-" if row.delayed is None else f"{row.delayed:.0%}"),
        Text(row.state, style=_style(row)),
        _cut(visible(row.level)),
    ]


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class Look:
    """Queries one sidecar repeatedly."""

    def __init__(self, admin: str, text: str, sort: str) -> None:
        self._admin = admin
        self._text = text
        self._sort = sort
        self._before: dict[Key, int] = {}
        self._looked_s = time.monotonic()

    def page(self, height: int, width: int) -> RenderableType:
        """All of it on one screen: the totals of every row, and the rows that match. Raises OSError with one readable
        sentence."""
        quotas = get_json(self._admin, "/quotas", {"limit": str(GROUPS_ASKED)})
        connections = get_json(self._admin, "/connections", {"limit": "0"})
        now_s = time.monotonic()
        with understood(self._admin):
            every = rows(quotas["groups"], self._before, now_s - self._looked_s)
            self._before, self._looked_s = imposed(quotas["groups"]), now_s
            states, throttled = connections["states"], sum(row.throttled for row in every)
            waits = f", {states['waiting']} waiting" if "waiting" in states else ""
            head = (
                f"kquota {visible(self._admin)}   connections {connections['total']} "
                f"({states.get('muted', 0)} muted{waits})   counters {quotas['total']} ({throttled} throttled)"
            )
            found = chosen(every, self._text, self._sort)
            if not found:
                none = "No quotas." if quotas["total"] else "No traffic on a quota yet."
                if self._text and quotas["total"]:
                    none = f"No counter's user, client-id or kind contains {visible(self._text)!r}."
                return Group(_cut(head, "bold"), Text(none, style="dim"))
            most = max(height - 4, 1)
            more = [Text(f"… and {len(found) - most} more", style="dim")] if len(found) > most else []
            return Group(_cut(head, "bold"), table(found, most, width), *more)


def look_json(admin: str, text: str, sort: str) -> dict[str, Any]:
    """One refresh for programs: the rows that match `text` in the order of `sort`. Raises OSError."""
    quotas = get_json(admin, "/quotas", {"limit": str(GROUPS_ASKED)})
    with understood(admin):
        counters = [
            asdict(row) | {"throttled": row.throttled} for row in chosen(rows(quotas["groups"], {}, 0.0), text, sort)
        ]
        for counter in counters:
            del counter["delayed"]  # between two refreshes
        return {"admin": admin, "total": quotas["total"], "counters": counters}


def watch(admin: str, *, interval_s: float, once: bool, text: str, sort: str, uncut: bool) -> None:
    """Show until Ctrl-C or SIGTERM, or once, with `uncut` in lines of any length. Raises OSError if it cannot show it
    once."""
    console = Console() if sys.stdout.isatty() and not uncut else Console(width=UNCUT)
    look = Look(admin, text, sort)
    if once or uncut or not console.is_terminal:
        console.print(look.page(1_000_000, console.width))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal gets its screen and cursor back
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = look.page(console.height, console.width)
            except OSError as error:
                again = f"Retrying every {interval_s:g} s; Ctrl-C ends."
                shown = Text(f"{visible(str(error))}\n{again}", style="red")
            live.update(shown, refresh=True)
            time.sleep(interval_s)


def _style(row: Row) -> str:
    if row.shadow:
        return "cyan"
    if row.throttled:
        return "bold red"
    return "yellow" if row.use >= NEAR else "green"
