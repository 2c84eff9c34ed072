"""What benchmarks store: medians and spreads, a row a line."""

from __future__ import annotations

import json

from benchmarks.report import stored


def test_rounds_become_a_row_with_its_spread() -> None:
    rounds = [
        {"scenario": "fetch", "round": number, "variant": "05", "values": {"cpu": cpu, "attempts": 1.0}}
        for number, cpu in enumerate((0.123456, 0.5, 0.3))
    ]
    text = stored.text({"machine": {"cores": 2}, "per_second": list(range(100)), "samples": rounds, "note": "n" * 250})
    assert json.loads(text) == {
        "machine": {"cores": 2},
        "per_second": [0, 49.5, 99],
        "samples": [
            {"rounds": 3, "scenario": "fetch", "variant": "05", "cpu": [0.1235, 0.3, 0.5], "attempts": 1},
        ],
        "note": "n" * 250,
    }
    assert len(text.splitlines()) == 4  # the braces, one line that is filled, and the note
    assert stored.text(json.loads(text)) == text
