"""The soak in two minutes; half an hour of it is `make soak`. And its judgement, on soaks that are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.soak import Sample, Soaked, judge, slope_mb_per_h
from tests.support.fault_tools import Held

MINUTES = float(os.environ.get("KQUOTA_SOAK_MINUTES", "2"))
REST = Held(12, 22, 0, 0)


@pytest.mark.timeout(60 * MINUTES + 480)
def test_nothing_grows_and_nothing_stays_behind() -> None:
    """In a process of its own: the client libraries leave sockets to the garbage collector when faults strike them."""
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES + 420, check=False)
    print(done.stdout[-8000:], done.stderr[-8000:])
    assert done.returncode == 0
    assert "all is well" in done.stdout


def made_up(mb_per_h: float = 0.0, tasks_per_h: float = 0.0, minutes: int = 30) -> Soaked:
    """A soak as it should be, but for what is asked for."""
    samples = [
        Sample(
            at_s, 75.0 + mb_per_h * at_s / 3600 + at_s % 3, 40, int(40 + tasks_per_h * at_s / 3600) + at_s % 30, 4, 0, 9
        )
        for at_s in range(0, minutes * 60, 5)
    ]
    return Soaked(
        minutes,
        samples,
        visits={"a client": 5},
        faults=Counter({"broker reset": 1}),
        reloads=3,
        refused_reloads=1,
        at_rest_before=REST,
        at_rest_after=REST,
        closed={"client_closed": 7.0},
        opened=7.0,
    )


def test_judgement() -> None:
    assert judge(made_up()) == []
    assert judge(made_up(mb_per_h=5.0)) == []
    assert "memory grows by" in judge(made_up(mb_per_h=60.0))[0]
    assert "tasks at the quietest moment grew" in judge(made_up(tasks_per_h=600.0))[0]
    assert "left behind" in judge(replace(made_up(), at_rest_after=replace(REST, descriptors=13)))[0]
    assert "left behind" in judge(replace(made_up(), at_rest_after=replace(REST, reservations=1)))[0]
    assert (
        "unexplained"
        in judge(replace(made_up(), complaints=Counter({("connection closed by a bug of ours", None): 1})))[0]
    )
    assert judge(replace(made_up(), complaints=Counter({("cluster not reached", None): 9}))) == []
    assert "8.0 connections opened, 7.0 closed" in judge(replace(made_up(), opened=8.0))[0]
    assert "has not done what it should" in judge(replace(made_up(), visits={"a client": 0}))[0]


def test_what_a_busy_machine_does_to_a_short_soak_is_not_held_against_it() -> None:
    late_look, no_turn = {"problems": ["/metrics did not answer: ReadTimeout"]}, {"visits": {"a": 1, "b": 0}}
    for changes in (late_look, no_turn):
        assert judge(replace(made_up(minutes=2), **changes)) == []  # type: ignore[arg-type]
        assert len(judge(replace(made_up(), **changes))) == 1  # type: ignore[arg-type]
    assert len(judge(replace(made_up(minutes=2), problems=4 * late_look["problems"]))) == 4
    assert judge(replace(made_up(minutes=2), problems=["broken"])) == ["broken"]
    assert judge(replace(made_up(minutes=2), visits={"a": 1, "b": 0, "c": 0}))
    assert "memory grows by" in judge(made_up(mb_per_h=900.0, minutes=2))[0]


def test_slope_is_not_moved_by_a_step() -> None:
    """60 MB/h, and one look in the middle that found 50 MB more: 1 MB a minute all the same."""
    soaked = made_up(mb_per_h=60.0)
    soaked.samples[100] = replace(soaked.samples[100], rss_mb=soaked.samples[100].rss_mb + 50)
    assert slope_mb_per_h(soaked.samples) == pytest.approx(60.0, abs=1.0)
