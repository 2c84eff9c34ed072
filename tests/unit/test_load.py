"""The load program: what it computes, and a small crowd of 300 connections before a real broker."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from benchmarks.rig.crowd import READERS, WRITERS, fetch_frame
from benchmarks.rig.rawclient import produce_frame
from benchmarks.suites.load import Plan, Result, Round, failures, jain, table
from proxy.wire import requests
from proxy.wire.apis import FETCH, PRODUCE

ROUND = Round(1.0, 10.0, 1.5, 15.0, 0, 2000, 0, 2020, 0.99, 0.98, 5, 9, 600_000.0, 3e6, 0.5, 0.6, 90.0)


def test_jains_index() -> None:
    assert jain([3, 3, 3, 3]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25  # one of four has everything
    assert jain([1, 2, 3]) == pytest.approx(36 / 42)  # (1 + 2 + 3)^2 / (3 (1 + 4 + 9))
    assert jain([0, 0]) == 0.0


def test_the_table_has_each_round_and_the_median() -> None:
    worse = replace(ROUND, loaded_p99_ms=30.0, jain_writers=0.5)
    lines = table(Result(Plan(), [ROUND, worse, worse])).splitlines()
    assert len(lines) == 2 + 3 + 1
    assert "| 1.50 | 2000 | 0 | 0.9900 |" in lines[2]
    assert "| 3.00 | 2000 | 0 | 0.5000 |" in lines[-1]
    assert Result(Plan(), [ROUND, worse]).ratios("p99_ms") == [1.5, 3.0]


def test_the_verdict() -> None:
    assert failures(Result(Plan(), [ROUND] * 3)) == []
    slow = replace(ROUND, loaded_p99_ms=30.0)
    assert failures(Result(Plan(), [ROUND, ROUND, slow])) == [], "the median counts"
    assert "is 3.00 times" in failures(Result(Plan(), [ROUND, slow, slow]))[0]
    for changes, text in (
        ({"dropped": 1}, "1 dropped"),
        ({"connected": 1999}, "1999 of 2000"),
        ({"probe_throttled": 1}, "throttled"),
        ({"least_writes": 0}, "got nothing"),
    ):
        assert text in failures(Result(Plan(), [ROUND, ROUND, replace(ROUND, **changes)]))[0]  # type: ignore[arg-type]


def test_frames_say_who_asks() -> None:
    for frame, api_key, client_id in (
        (produce_frame("t", 1000, WRITERS), PRODUCE, WRITERS),
        (fetch_frame("t"), FETCH, READERS),
    ):
        header = requests.parse_request_header(frame, 0, len(frame), 1 << 20)
        assert header is not None
        assert (header.api_key, header.client_id, header.size) == (api_key, client_id.decode(), len(frame) - 4)
    fields = requests.parse_fetch(fetch_frame("t"), 14 + len(READERS), len(fetch_frame("t")), 4)
    assert fields is not None
    assert fields.max_bytes == 10_000
    assert struct.unpack_from(">h", fetch_frame("t"), 6) == (4,)
