"""Errors of a report, each with a text for the person who asked for it."""

from __future__ import annotations


class ReportError(Exception):
    """The report cannot be made (exit code 1)."""


class WrongUseError(ReportError):
    """The request is invalid, or a file that it names is (exit code 2)."""


def in_short(error: Exception) -> str:
    """An error in one line: of Java's, the first line only names a call, the second one says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
