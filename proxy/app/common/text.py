"""Text on a terminal: what commands print, and how they end when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final, NoReturn

import typer

from config.problems import ConfigError, Problem
from config.units import readable_bytes
from config.visible import visible
from quota.entity import DEFAULT, Kind, Name

FAILED: Final = 1
WRONG_USE: Final = 2
MAX_PROBLEMS: Final = 50
UNITS = {Kind.PRODUCE: "bytes/s", Kind.FETCH: "bytes/s", Kind.REQUEST: "% of a thread", Kind.MUTATION: "partitions/s"}


class Form(StrEnum):
    """What a command prints."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        """Whether it is for programs."""
        return self in (Form.JSON, Form.YAML)


def option(names: str, metavar: str, help: str, **more: Any) -> Any:
    """An option of a command that takes a value; its names are separated by spaces."""
    return typer.Option(*names.split(), metavar=metavar, help=help, **more)


def flag(names: str, help: str, **more: Any) -> Any:
    """One whose value needs no name."""
    return typer.Option(*names.split(), help=help, **more)


OutputForm = Annotated[Form, option("--output -o", "FORM", "table, wide (no truncation), json or yaml.")]
AsJson = Annotated[bool, flag("--json", "Same as -o json.")]


def readable_limit(kind: Kind, limit: float | None) -> str:
    """``10 MB/s (10000000)``: readable and exact at once; ``-`` without a limit."""
    if limit is None:
        return "-"
    if kind in (Kind.PRODUCE, Kind.FETCH):
        short = readable_bytes(limit)
        return f"{short}/s" if limit < 1000 else f"{short}/s ({limit:.0f})"
    return f"{limit:g} %" if kind is Kind.REQUEST else f"{limit:g}/s"


def readable_name(name: Name) -> str:
    """A name of a quota entry, safe to print: control characters are escaped, and an empty name is visible."""
    if name is None:
        return "-"
    if name is DEFAULT:
        return "<default>"
    return safe(str(name))


def safe(text: str) -> str:
    """Text from a client or a file, safe on a terminal and not misleading."""
    plain = text.isprintable() and text == text.strip() and text not in ("", "-", "<default>") and text[0] != '"'
    return text if plain else '"' + visible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def say(text: str, *, err: bool = False) -> None:
    """Print our own lines, which may contain foreign text, on stdout or stderr."""
    typer.echo(visible(text, lines=True), err=err)


def say_problems(problems: Sequence[Problem]) -> None:
    """Print what is wrong in a file, one error a line, on stderr."""
    for problem in problems[:MAX_PROBLEMS]:
        say(f"error: {problem}", err=True)
    if len(problems) > MAX_PROBLEMS:
        say(f"error: … and {len(problems) - MAX_PROBLEMS} more problems", err=True)


def fail(reason: str, code: int = FAILED) -> NoReturn:
    """Print the reason on stderr and exit."""
    say(f"error: {reason}", err=True)
    raise typer.Exit(code)


@contextmanager
def errors_reported(code: int = FAILED) -> Iterator[None]:
    """Says what is wrong on stderr and exits: for a file that is invalid, and, with `code`, for anything that cannot be
    reached."""
    try:
        yield
    except ConfigError as error:
        say_problems(error.problems)
        raise typer.Exit(WRONG_USE) from None
    except OSError as error:
        fail(str(error), code)


def json_text(value: Any) -> str:
    r"""JSON for programs and people: letters of any language unchanged, everything invisible as ``\u009b``."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if text.isprintable():
        return text
    # Only strings have such characters; the line breaks are those of the indentation.
    return "".join(c if c.isprintable() or c == "\n" else ascii_json(c)[1:-1] for c in text)


def print_data(value: Any, form: Form = Form.JSON) -> None:
    """Print a value for programs, in JSON or YAML."""
    from config.source import dump  # not needed to show the help

    say(dump(value).rstrip("\n") if form is Form.YAML else json_text(value))


def show(value: Any, text: str, form: Form) -> None:
    """Print the value for programs or the text for people."""
    if form.is_data:
        print_data(value, form)
    else:
        say(text)


def ascii_json(value: Any, **options: Any) -> str:
    """JSON in one line of ASCII without control characters: DEL is the only one that JSON itself does not escape."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")


def more_than(rows: Sequence[object], most: int) -> str:
    """A line that says how many rows are left out after `most`; nothing if there are no more."""
    return f"\n  … and {len(rows) - most} more (--json shows all)" if len(rows) > most else ""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text; the first row is the heading. Nothing is wrapped or cut, so that it can be piped."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)
