"""Log lines: JSON for collectors, key=value for people; never a secret or a payload. Names come from clients, as many
as they like: a line stays one line, controls no terminal, values are cut, and each message has a budget of bytes."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, TextIO, cast

import structlog

from config.visible import visible
from proxy.app.common.log_output import LogOutput, output_of
from proxy.app.common.text import ascii_json, safe

LEVEL_VARIABLE = "KQUOTA_LOG_LEVEL"
"""Environment variable that overrides the file's `log.level`."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

INTERVAL_S: Final = 10.0
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Log lines with one message in an interval; further ones are counted in `left_out` of the next one that is written."""
MAX_VALUE_CHARACTERS: Final = 2000
MAX_TRACEBACK_CHARACTERS: Final = 8000
_QUOTED = frozenset(" ='\"")
"""A value with one of these is quoted, so that its end is visible."""


def configure(level: str, style: str = "auto", stream: TextIO | None = None) -> None:
    """Set up logging for the process; called again when a reload changes it. The environment's level has precedence.
    Raises KeyError for an unknown level."""
    wanted = os.environ.get(LEVEL_VARIABLE, "").strip().lower()
    level = wanted if wanted in LEVELS else level
    stream = stream or sys.stderr
    output = output_of(stream)
    console = style == "console" or (style == "auto" and stream.isatty())
    render: list[Any]
    if console:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False)
        plain = structlog.dev.plain_traceback
        console_line = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain, sort_keys=False)
        render = [_visible_values, console_line]
    else:
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        render = [_in_reading_order, structlog.processors.JSONRenderer(ascii_json, default=str)]
    # Python's own tracebacks, without local variables: they may hold client data, passwords and tokens included.
    render = [structlog.processors.format_exc_info, _short_values, *render]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.StackInfoRenderer(),
            _Budget(render, output),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=partial(_Logger, output),
        cache_logger_on_first_use=False,  # a reload may change the level
    )
    if wanted not in ("", level):
        complaint = f"{LEVEL_VARIABLE}={wanted!r} is not one of {', '.join(LEVELS)}; using {level}"
        structlog.get_logger("kquota").warning(complaint)


class _Budget:
    """The last processor: renders a line, or drops it if its message has used up the interval's bytes."""

    def __init__(self, render: list[Any], output: LogOutput) -> None:
        self._render = render
        self._output = output
        self._until_s = 0.0
        self._used: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        now_s, message = time.monotonic(), str(event["event"])
        if now_s >= self._until_s:
            self._until_s = now_s + INTERVAL_S
            self._used.clear()
        if self._used[message] >= MAX_MESSAGE_BYTES:
            self._left_out[message] += 1
            raise structlog.DropEvent
        if left_out := self._left_out.pop(message, 0):
            event["left_out"] = left_out
        if lost := self._output.lost:
            event["lost_lines"] = lost
        line: Any = event
        for step in self._render:
            line = step(logger, method, line)
        self._used[message] += len(line)
        return line


def _short_values(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _short(value, MAX_TRACEBACK_CHARACTERS if key == "exception" else MAX_VALUE_CHARACTERS)
    return event


def _short(text: str, most: int) -> str:
    """The text, or its beginning and its end: of an error's chain, the last one was raised last."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[: most // 2]} [{left_out} characters left out] {text[-(most // 2) :]}"


def _in_reading_order(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Time, level, logger, event; then the details."""
    first = {key: event.pop(key) for key in ("timestamp", "level")}
    return {**first, "logger": logger.name, "message": event.pop("event"), **event}


class _Shown:
    """A value as the console should show it: the renderer uses the `repr` of anything that is not text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _visible_values(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Before the console renderer adds colours: nothing else in the line may control the terminal."""
    shown: dict[str, Any] = {}
    for key, value in event.items():
        if key in ("event", "level", "timestamp"):
            shown[key] = visible(str(value))
        elif key in ("stack", "exception"):
            shown[key] = _indented(str(value))
        else:
            shown[visible(key)] = _Shown(_value(value))
    return shown


def _value(value: Any) -> str:
    if not isinstance(value, str):
        return visible(repr(value))
    text = safe(value)
    return repr(text) if text == value and _QUOTED.intersection(text) else text


def _indented(text: str) -> str:
    """Lines that cannot be mistaken for log lines: messages of exceptions may contain names with line breaks."""
    return "\n".join("  " + line for line in visible(text, lines=True).split("\n"))


class _Logger(structlog.WriteLogger):
    def __init__(self, output: LogOutput, name: str = "kquota") -> None:
        super().__init__(cast(TextIO, output))
        self.name = name
