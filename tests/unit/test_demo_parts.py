"""`kquota demo`: its arithmetic, its texts and its parts, without a broker."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from config.load import load
from config.table import to_table
from deploy.demo import view
from deploy.demo.clients.kafka_python_producer import throttle_max_ms
from deploy.demo.clients.reporter import Pace
from deploy.demo.errors import DemoError
from deploy.demo.meter import Track
from deploy.demo.phases import length, steady_from
from deploy.demo.plan import LONGER_S, MB, PLANS, STEADY_AT_LEAST_S, STEADY_FROM_S, DemoClient
from deploy.demo.sidecar import configuration
from deploy.demo.stage import check_libraries
from deploy.demo.verdict import compare, sentence
from quota.entity import Kind

ORDERS, GREEDY, MODEST, REPORTS, BATCH = PLANS


# ---- the meter ------------------------------------------------------------------------------------------------------


def track_of(plan: DemoClient, points: list[tuple[float, float]]) -> Track:
    """A track with reports (second, MB in all); the common start is second 1000 of the clock."""
    track = Track(plan, began=1000.0)
    for second, megabytes in points:
        track.note(1000.0 + second, megabytes * MB)
    return track


def test_rates_between_reports_are_in_proportion() -> None:
    track = track_of(ORDERS, [(1.0, 4.0), (3.0, 10.0), (5.0, 10.0)])
    # From second 1 to 3 it moved 6 MB: by second 2 that is 4 + 3 = 7 MB.
    assert track.moved_by(2.0) == 7.0 * MB
    assert track.rate(1.0, 3.0) == 3.0 * MB  # 6 MB in 2 s
    assert track.now() == 0.0  # nothing in the last 2 s, from 3 to 5
    assert track.average() == 2.0 * MB  # 10 MB in 5 s
    assert track.history(5, until=5.0) == [4.0 * MB, 3.0 * MB, 3.0 * MB, 0.0, 0.0]
    assert track.rate(4.0, 4.0) == 0.0


def test_reports_from_before_the_start_and_repeated_ones_are_dropped() -> None:
    track = track_of(ORDERS, [(-0.5, 1.0), (2.0, 4.0), (2.0, 5.0), (1.0, 9.0)])
    assert track.moved_by(2.0) == 4.0 * MB
    assert track.reported_until == 2.0


def test_last_throttle_is_what_came_since_the_last_look() -> None:
    track = track_of(ORDERS, [])
    track.note_sidecar(throttles=1, held_ms=500.0, muted=True)
    assert track.last_throttle_ms == 500.0
    track.note_sidecar(throttles=5, held_ms=900.0, muted=True)
    assert track.last_throttle_ms == 100.0  # (900 - 500) ms in 4 throttles
    track.note_sidecar(throttles=5, held_ms=900.0, muted=False)
    assert track.last_throttle_ms == 100.0
    assert not track.muted


# ---- the verdict ----------------------------------------------------------------------------------------------------


def held(plan: DemoClient, share: float, seconds: float = 30.0) -> Track:
    """A client that bursts 10 s' worth in the first second, waits, and then moves `share` of its limit."""
    assert plan.limit is not None
    limit = plan.limit / MB
    steady = [(second, limit * (10 + share * (second - STEADY_FROM_S))) for second in (seconds - 1, seconds)]
    return track_of(plan, [(1.0, 10 * limit), (STEADY_FROM_S, 10 * limit), *steady])


def pair(greedy: float, modest: float, seconds: float = 30.0) -> list[Track]:
    """The two with one limit: the first moves `greedy` MB/s all the time, the second `modest`."""
    return [track_of(plan, [(seconds, rate * seconds)]) for plan, rate in ((GREEDY, greedy), (MODEST, modest))]


def free(share: float, seconds: float = 30.0) -> Track:
    """The client without a limit, at `share` of the rate it wants."""
    assert BATCH.wanted is not None
    return track_of(BATCH, [(seconds, BATCH.wanted / MB * share * seconds)])


def test_all_clients_within_ten_percent_is_well() -> None:
    outcomes = compare([held(ORDERS, 0.91), *pair(1.4, 0.5), held(REPORTS, 1.09), free(0.95)], 30)
    assert [outcome.failure for outcome in outcomes] == [""] * 5
    assert [round(outcome.share or 0, 2) for outcome in outcomes] == [0.91, 0.7, 0.25, 1.09, 0.95]
    # orders: 10 MB at once, then 0.91 MB/s from second 13 to 30: (10 + 0.91 * 17) / 30 = 0.849 MB/s
    assert outcomes[0].whole == pytest.approx((10 + 0.91 * 17) / 30 * MB)
    assert sentence(outcomes, 30) == (
        "Every limit was kept within 10% from second 13 to 30, and batch, without a quota, was not slowed. "
        "clicks-1 and clicks-2 shared one limit."
    )


@pytest.mark.parametrize(
    ("greedy", "modest", "words"),
    [
        (1.5, 0.5, ""),
        (2.0, 0.5, "clicks-1 and clicks-2 moved 2.50 MB/s in the steady phase, 125% of the limit that they "
         "share of 2.00 MB/s"),
        (1.1, 0.5, "clicks-1 and clicks-2 moved 1.60 MB/s in the steady phase, 80% of the limit"),
        (1.6, 0.4, "clicks-2, which wants less than its part of the limit, reached 0.40 MB/s of the 0.50 MB/s"),
    ],
)  # fmt: skip
def test_clients_that_share_a_limit_are_judged_together(greedy: float, modest: float, words: str) -> None:
    failures = "; ".join(one.failure for one in compare(pair(greedy, modest), 30) if one.failure)
    assert failures.startswith(words)
    assert bool(failures) is bool(words)


def test_a_run_becomes_longer_where_the_first_window_takes_long() -> None:
    # 9 of the first 10 s' worth (9 MB) are through at second 9 of 1 MB/s: steady from 9 + 11 = 20, for 4 s at least.
    slow = track_of(ORDERS, [(19.0, 19.0)])
    assert steady_from([slow]) == 20.0
    assert length([slow], 19) == 24.0
    assert length([slow], 30) == 30
    assert length([slow], 10) == 10  # too short to judge anyway
    quick = track_of(ORDERS, [(1.0, 10.0), (19.0, 17.0)])
    assert steady_from([quick]) == STEADY_FROM_S  # 1 + 11 = 12
    assert length([quick], 19) == 19
    never = track_of(ORDERS, [(19.0, 1.0)])
    assert steady_from([never]) is None
    assert length([never], 19) == 19 + LONGER_S
    assert "moved 0.05 MB/s in the steady phase" in compare([never], 19)[0].failure


@pytest.mark.parametrize(
    ("track", "words"),
    [
        (held(ORDERS, 1.2), "orders moved 1.20 MB/s in the steady phase, 120% of its limit of 1.00 MB/s"),
        (held(REPORTS, 0.8), "reports moved 1.20 MB/s in the steady phase, 80% of its limit of 1.50 MB/s"),
        (free(0.5), "batch, which has no quota, reached 2.50 MB/s of the 5.00 MB/s it wanted"),
    ],
)
def test_the_sentence_names_who_is_off_and_by_how_much(track: Track, words: str) -> None:
    outcomes = compare([*pair(1.5, 0.5), track], 30)
    assert sentence(outcomes, 30).startswith(f"Not as expected: {words}")


def test_a_client_that_fell_silent_is_off_and_errors_are_told() -> None:
    silent = track_of(ORDERS, [(1.0, 10.0), (STEADY_FROM_S, 10.0), (20.0, 17.0)])
    # 7 MB from second 13 to 29 (the last second is in its favour): 0.44 MB/s
    assert "44% of its limit" in compare([silent], 30)[0].failure
    failing = replace_problem(held(ORDERS, 1.0), 3, "KafkaTimeoutError: too late")
    assert compare([failing], 30)[0].failure == "orders had 3 errors, the last one: KafkaTimeoutError: too late"


def replace_problem(track: Track, failed: int, problem: str) -> Track:
    track.failed, track.problem = failed, problem
    return track


def test_a_short_run_is_judged_by_what_the_window_lets_through() -> None:
    seconds = STEADY_FROM_S + STEADY_AT_LEAST_S - 1
    well = [track_of(ORDERS, [(5.0, 10.0)]), free(1.0, seconds)]
    outcomes = compare(well, seconds)
    assert [outcome.steady for outcome in outcomes] == [None, None]
    assert sentence(outcomes, seconds).startswith("Too short a run")
    # 10 s' worth at once and 16 s at 1 MB/s are 26 MB; 10 % more are 28.6 MB.
    assert compare([track_of(ORDERS, [(5.0, 28.5)])], 16)[0].failure == ""
    assert "moved 28.7 MB in 16 s" in compare([track_of(ORDERS, [(5.0, 28.7)])], 16)[0].failure


# ---- what people see ------------------------------------------------------------------------------------------------


def rendered(renderable: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def some_tracks() -> list[Track]:
    tracks = [held(ORDERS, 1.0), *pair(1.5, 0.5), held(REPORTS, 1.0), free(1.0)]
    tracks[0].note_sidecar(throttles=200, held_ms=123_400.0, muted=True)
    tracks[0].client_throttle_max_ms = 10_999.0
    tracks[1].note_sidecar(throttles=100, held_ms=4_000.0, muted=True, share=0.734)
    return tracks


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_fits_and_says_everything(width: int) -> None:
    lines = rendered(view.live(some_tracks(), "5 clients → 2 sidecars → broker", 20, 30, width), width)
    text = "\n".join(lines)
    assert len(lines) <= 24
    assert "…" not in text
    assert "20 of 30 s" in text
    assert "Steady: the first window is over." in text
    row = next(line for line in lines if line.startswith("orders producer"))
    # wants 3, limit 1, now 1 (the last 2 s), average (10 + 17) / 30 = 0.9; last throttle 123400 / 200 = 617 ms
    assert row.split()[2:8] == ["3.00", "1.00", "1.00", "0.90", "617", "123.4"]
    assert "muted" in row
    assert ("10999" in row) is (width == 120)
    assert ("█" in row) is (width == 120)
    assert "× 73%" in text
    free_row = next(line for line in lines if line.startswith("batch producer"))
    assert free_row.split()[2:6] == ["5.00", "none", "5.00", "5.00"]
    assert "free" in free_row
    assert any("librdkafka, stubborn" in line for line in lines)


def test_the_view_explains_the_first_window_while_it_lasts() -> None:
    assert "10 s' worth at once" in view.explanation(some_tracks(), STEADY_FROM_S - 0.1)
    assert view.explanation(some_tracks(), STEADY_FROM_S).startswith("Steady")
    assert "10 s' worth at once" in view.explanation([track_of(ORDERS, [(20.0, 1.0)])], 20.0)


def test_plain_lines_tell_the_same() -> None:
    lines = view.plain_lines(some_tracks(), 20)
    assert lines[0] == (
        "  20 s  orders    wants 3.00, limit 1.00: now 1.00, average 0.90 MB/s; "
        "last throttle 617 ms, held 123.4 s, muted"
    )
    assert lines[4] == "  20 s  batch     wants 5.00, no limit: now 5.00, average 5.00 MB/s; free"


def test_the_summary_fits_eighty_columns() -> None:
    outcomes = compare(some_tracks(), 30)
    lines = rendered(view.summary_table(outcomes), 80)
    assert "…" not in "\n".join(lines)
    row = next(line for line in lines if line.startswith("orders producer"))
    assert row.split()[2:] == ["1.00", "1.00", "100%", "0.90", "123.4", "10999", "ok"]
    assert "batch wants" in view.summary_notes(outcomes)


def test_the_graph_is_scaled_to_its_highest_bar() -> None:
    assert view.graph([0.0, 4.0, 8.0]) == " ▄█"
    assert view.graph([0.0, 0.0]) == "  "


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_the_sidecars_configuration_is_a_good_one(tmp_path: Path) -> None:
    file = tmp_path / "kquota.yaml"
    file.write_text(yaml.safe_dump(configuration(PLANS, ["127.0.0.1:20000"], 21000, 22000, tmp_path)))
    config = load(file)
    assert config.export is not None
    assert config.export.directory == str(tmp_path)
    table = to_table(config)
    assert len(config.quotas) == 3
    for plan in PLANS:
        kind = Kind.PRODUCE if plan.role == "producer" else Kind.FETCH
        assert table.resolve(kind, "ANONYMOUS", plan.client_id).limit == plan.limit


def test_a_pace_does_not_make_up_for_what_was_missed() -> None:
    pace = Pace(wanted=1000.0, now=100.0)
    assert pace.wait_s(500, 100.0) == 0.0
    assert pace.wait_s(500, 100.0) == 0.5  # 500 bytes at 1000 bytes/s
    # The next is due at 101. After a hold of 10 s only a quarter of a second of lateness is left to make up for:
    # due at 109.75, the one after at 110.25.
    assert pace.wait_s(500, 110.0) == 0.0
    assert pace.wait_s(500, 110.0) == 0.25


def test_the_longest_throttle_among_kafka_pythons_metrics() -> None:
    assert throttle_max_ms({"producer-metrics": {"throttle-time-max": float("-inf")}, "other": {}}) is None
    assert throttle_max_ms({"a": {"throttle-time-max": 3.0}, "b": {"throttle-time-max": 250.0}}) == 250.0


def test_missing_packages_are_named_with_the_remedy() -> None:
    check_libraries(lambda _name: object())
    with pytest.raises(DemoError, match=r"needs kafka-python, jgo, .* pip install 'kquota\[demo\]'"):
        check_libraries(lambda name: None if name in ("kafka", "jgo") else object())
