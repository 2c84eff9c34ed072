"""`kquota demo`: its arithmetic, its texts and its parts, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from config.load import load
from config.table import to_table
from quota.entity import Kind
from tests.lab.demo.errors import DemoError
from tests.lab.demo.meter import Track
from tests.lab.demo.plan import MB, PLANS, STEADY_FROM_S, DemoClient
from tests.lab.demo.sidecar import configuration
from tests.lab.demo.stage import check_libraries
from tests.lab.demo.verdict import compare, sentence

ORDERS, GREEDY, MODEST, REPORTS, BATCH = PLANS


# ---- the meter ------------------------------------------------------------------------------------------------------


def track_of(plan: DemoClient, points: list[tuple[float, float]]) -> Track:
    """A track with reports (second, MB in all); the common start is second 1000 of the clock."""
    track = Track(plan, began=1000.0)
    for second, megabytes in points:
        track.note(1000.0 + second, megabytes * MB)
    return track


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


# ---- what people see ------------------------------------------------------------------------------------------------


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_the_sidecars_configuration_is_a_good_one(tmp_path: Path) -> None:
    file = tmp_path / "kquota.yaml"
    file.write_text(yaml.safe_dump(configuration(PLANS, ["127.0.0.1:20000"], 21000, 22000, tmp_path / "key", tmp_path)))
    config = load(file)
    assert config.export is not None
    assert config.export.directory == str(tmp_path)
    table = to_table(config)
    assert len(config.quotas) == 3
    for plan in PLANS:
        kind = Kind.PRODUCE if plan.role == "producer" else Kind.FETCH
        assert table.resolve(kind, "ANONYMOUS", plan.client_id).limit == plan.limit


def test_missing_packages_are_named_with_the_remedy() -> None:
    check_libraries(lambda _name: object())
    with pytest.raises(DemoError, match=r"needs kafka-python, jgo, .* pip install 'kquota\[demo\]'"):
        check_libraries(lambda name: None if name in ("kafka", "jgo") else object())
