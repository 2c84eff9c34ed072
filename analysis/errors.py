"""Errors of a report, each with a text for the person who asked for it."""

from __future__ import annotations


class ReportError(Exception):
    """The report cannot be made (exit code 1)."""


class WrongUseError(ReportError):
    """The request is invalid, or a file that it names is (exit code 2)."""
