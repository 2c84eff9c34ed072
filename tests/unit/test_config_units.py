"""Sizes and durations: what is accepted, what it means, what is refused."""

from __future__ import annotations

import pytest

from config.units import parse_duration_ms, parse_size, readable_bytes, readable_span, similar_size

SIZES = [
    ("0", 0), ("1", 1), ("10_000", 10_000), ("4M", 4_000_000), ("4K", 4_000), ("4KiB", 4_096), ("4MB", 4_000_000),
    ("4MB/s", 4_000_000), ("4Mi", 4_194_304), ("4MiB", 4_194_304), ("2.5k", 2_500), ("0.5KiB", 512), ("1G", 10**9),
    ("1T", 10**12), (" 7 kB ", 7_000), ("100B", 100),
]  # fmt: skip
NO_SIZES = ["", "M", "4X", "-4M", "4MM", "4 M B", "1.5", "0.0001k", "1e6", "٤M", "4Mbit", "nan", "inf"]
AMBIGUOUS = [
    ("2m", "2M (megabytes) or 2Mi"),  # a thousandth in Kubernetes
    ("10Mb", "10M (megabytes) or 10Mi"),  # bits on a network
    ("10mb/s", "10M (megabytes) or 10Mi"),
    ("5g", "5G (gigabytes) or 5Gi"),
    ("4mib", "4Mi"),
    ("500b", "500 (bytes)"),
    ("02M", "2M"),
    ("00", "0"),
    ("4X", None),
    ("fast", None),
]
DURATIONS = [
    ("30s", None, 30_000), ("500ms", None, 500), ("1.5s", None, 1_500), ("2m", None, 120_000), ("2 min", None, 120_000),
    ("1h", None, 3_600_000), ("0", None, 0), ("250", "ms", 250), ("3", "s", 3_000), ("0.25", "s", 250),
]  # fmt: skip
NO_DURATIONS = [("30", None), ("s", "s"), ("-1s", "s"), ("1y", None), ("0.1ms", None), ("1 2s", "s")]
READABLE = [
    (0, "0 B"), (500, "500 B"), (2_000_000, "2 MB"), (1_500, "1.5 kB"), (4_194_304, "4 MiB"), (1_024, "1 KiB"),
    (10**9, "1 GB"), (123_456_789, "123.457 MB"), (2**63 - 1, "9.223 EB"), (1234.56, "1.235 kB"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SIZES)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", NO_SIZES)
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        parse_size(text)


@pytest.mark.parametrize(("text", "meant"), AMBIGUOUS)
def test_refuses_ambiguous_units_with_a_proposal(text: str, meant: str | None) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
    assert similar_size(text) == meant


@pytest.mark.parametrize(("text", "bare_unit", "expected_ms"), DURATIONS)
def test_durations(text: str, bare_unit: str | None, expected_ms: int) -> None:
    assert parse_duration_ms(text, bare_unit=bare_unit) == expected_ms


@pytest.mark.parametrize(("text", "bare_unit"), NO_DURATIONS)
def test_no_durations(text: str, bare_unit: str | None) -> None:
    with pytest.raises(ValueError, match=r"duration|unit|finer"):
        parse_duration_ms(text, bare_unit=bare_unit)


@pytest.mark.parametrize(("value", "expected"), READABLE)
def test_readable_bytes(value: float, expected: str) -> None:
    assert readable_bytes(value) == expected


def test_readable_span() -> None:
    found = [readable_span(value) for value in (0, 250, 1500, 250_000, 7_500_000, 200_000_000)]
    assert found == ["0 ms", "250 ms", "1.5 s", "4 min 10 s", "2 h 5 min", "2 d 7 h"]
