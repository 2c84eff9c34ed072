"""What can go wrong in a report, each with a text for the person who asked for it."""

from __future__ import annotations


class ReportError(Exception):
    """The report cannot be made (exit code 1)."""


class WrongUseError(ReportError):
    """What was asked for makes no sense, or a file that was named is wrong (exit code 2)."""
