"""The Kafka releases that kquota supports: those whose jars tests/lab/kafka/checksums lists, and older protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CHECKSUMS: Final = Path(__file__).parent / "kafka/checksums"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


RUN: Final = tuple(
    sorted((file.stem.removeprefix("kafka-") for file in CHECKSUMS.glob("kafka-*.txt")), key=_numbers, reverse=True)
)
NEW: Final = RUN[0]
OLD: Final = RUN[-1]
"""With NEW, the one that `make test` runs: the last release that serves the old protocol versions."""
BETWEEN: Final = RUN[1:-1]
PROTOCOLS: Final = (*RUN, "3.7.2")
"""Releases whose message schemas are in the wire tables, newest first."""
