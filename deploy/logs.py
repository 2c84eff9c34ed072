"""Log lines: JSON for collectors, key=value for people. Names and sizes only, never a secret or a payload."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

LEVEL_VARIABLE = "KQUOTA_LOG_LEVEL"
"""Environment variable that wins over the file's `log.level`."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def effective_level(configured: str) -> tuple[str, str | None]:
    """(level, complaint): the environment's level if it is one, else the configured one and what was wrong."""
    wanted = os.environ.get(LEVEL_VARIABLE, "").strip().lower()
    if not wanted:
        return configured, None
    if wanted not in LEVELS:
        return configured, f"{LEVEL_VARIABLE}={wanted!r} is none of {', '.join(LEVELS)}; using {configured}"
    return wanted, None


def configure(level: str, style: str = "auto", stream: TextIO | None = None) -> None:
    """Set up logging for the process; called again when a reload changes it. Raises KeyError for an unknown level."""
    stream = stream or sys.stderr
    console = style == "console" or (style == "auto" and stream.isatty())
    render: list[Any]
    if console:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False)
        render = [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            )
        ]
    else:
        stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        # Python's own text, without local variables: they may hold what a client sent, a password or a token among it.
        render = [
            structlog.processors.format_exc_info,
            _in_reading_order,
            structlog.processors.JSONRenderer(default=str),
        ]
    structlog.configure(
        processors=[structlog.processors.add_log_level, stamp, structlog.processors.StackInfoRenderer(), *render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_Factory(stream),
        cache_logger_on_first_use=False,  # a reload may change the level
    )


def _in_reading_order(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """When, how bad, who, what; then the details."""
    first = {key: event.pop(key) for key in ("timestamp", "level")}
    return {**first, "logger": logger.name, "message": event.pop("event"), **event}


class _Logger(structlog.WriteLogger):
    """Writes lines and knows its name."""

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self.name = name


class _Factory:
    """Makes loggers for one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *names: Any) -> _Logger:
        return _Logger(self._stream, str(names[0]) if names else "kquota")
