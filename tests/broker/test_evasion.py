"""Limits cannot be escaped: the worst of `make evasion` in short, and the arithmetic that judges them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.evasion import frames, honest
from benchmarks.evasion.arithmetic import compute_achieved, steps
from benchmarks.evasion.beside import Beside, Neighbour
from benchmarks.evasion.report import Report, summary, table
from benchmarks.evasion.rows import BATCHES, BOUND, ROWS, Row, chosen
from benchmarks.evasion.run import Batch, Outcome, in_words, run_batch
from benchmarks.evasion.stage import Stage, stage

WINDOW_NUM = 3
HONEST_S, HONEST_LIMIT = 15.0, 400_000
"""sarama has up to 5 MB on its way, which takes 13 s at this limit."""
SECONDS = 30.0
SHORT_BOUND = BOUND + 0.05
"""Over 27 s a request of 20 kB more or less is 1.5 % of 50 kB/s, and a quarter of a second at each end 1.9 %."""
WORST = (
    "p4-reconnect", "p30-impatient", "p4-half-close", "p4-acks-0-reconnect", "p4-idempotent", "p8-addresses", "p4-tls",
    "p4-certificate", "p8-ipv6-addresses", "s4-plain", "s4-gssapi", "s1-oauth-5s-piped", "n-user", "m4-impatient",
    "m4-partitions", "m4-delete", "r4-reconnect", "h4-share", "f30-v4-reconnect", "f30-v17-half-close",
)  # fmt: skip
# A debt outlives the longest mute (5 s here).
LONG_DEBT = Row("debt", "2 MB at 50 kB/s (40 s)", "large", limit=50_000, size=2_000_000, offer=50, one_at_least=False)


def short(row: Row) -> Row:
    """The same attack on a smaller limit with smaller requests."""
    if row.attack not in ("produce", "fetch", "share"):
        return row
    return replace(row, limit=50_000, size=20_000, title=f"{row.name}, smaller")


# ---- arithmetic ----------------------------------------


def stairs(*rises: tuple[float, float], until_s: float = 134.0) -> list[tuple[float, float]]:
    """A staircase sampled every quarter of a second, from (time, how much more)."""
    found, so_far, left = [], 0.0, list(rises)
    for quarter in range(int(until_s * 4) + 1):
        while left and left[0][0] <= quarter / 4:
            so_far += left.pop(0)[1]
        found.append((quarter / 4, so_far))
    return found


def test_a_request_every_forty_seconds_is_the_limit_wherever_the_run_begins_and_ends() -> None:
    # 20 MB every 40 s at 0.5 MB/s: 20 / (40 * 0.5) = 1
    for first in (0.0, 6.0, 12.0):
        later = [first + 40.0 * number for number in range(1, 4)]
        got = compute_achieved(stairs((0.0, 20e6), *((at, 20e6) for at in later)), 0.5e6, 11, 134)
        assert got.achieved == pytest.approx(1.0)
        assert got.seconds == pytest.approx(80)
    # Two steps 40 s apart are too few: 2 * 20 MB over all of the 123 s.
    assert compute_achieved(stairs((0.0, 20e6), (70.0, 20e6), (110.0, 20e6)), 0.5e6, 11, 134).achieved == pytest.approx(
        40 / 61.5
    )


def test_the_first_window_is_left_out_and_what_follows_is_not() -> None:
    burst = [(0.0, 1_100_000)]
    paced = [(11.0 + number, 100_000) for number in range(120)]
    assert compute_achieved(stairs(*burst, *paced), 100_000, 11, 134).achieved == pytest.approx(1.0)
    twice = [(11.0 + number / 2, 100_000) for number in range(240)]
    got = compute_achieved(stairs(*burst, *twice), 100_000, 11, 134)
    assert got.achieved == pytest.approx(2.0, rel=0.01)
    # 1.1 MB at once, then 0.1 MB/s more than allowed from 11 s to 130.5 s: 1.1 + 23.9 - 13.05 MB
    assert got.burst == pytest.approx((1.1e6 + 24e6 - 13.05e6) / 1.1e6, rel=0.01)


def test_a_long_debt_counts_over_all_of_the_time() -> None:
    assert compute_achieved(stairs((0.0, 20e6)), 100_000, 11, 134).achieved == 0.0
    # a second one after 30 s, as a cap of delays gives it: 20 MB in 123 s at 0.1 MB/s
    assert compute_achieved(stairs((0.0, 20e6), (30.0, 20e6)), 100_000, 11, 134).achieved == pytest.approx(20 / 12.3)
    # one every 30 s: 3 x 20 MB in 90 s
    four = [(30.0 * number, 20e6) for number in range(5)]
    assert compute_achieved(stairs(*four), 100_000, 11, 134).achieved == pytest.approx(60 / 9)


def test_what_is_let_through_at_once_and_seen_one_after_another_is_one_step() -> None:
    # Four topics every 4 s at 1/s are the limit: 4 / (4 * 1) = 1.
    groups = [(4.0 * number, 4.0) for number in range(7)]
    assert compute_achieved(stairs(*groups, until_s=30), 1.0, 3, 30, at_once=4).achieved == pytest.approx(1.0)
    # The last of the last group is seen a quarter of a second late: (5 * 4 + 3) / 20.25 without `at_once`.
    split = [*groups[:-1], (24.0, 3.0), (24.25, 1.0)]
    assert compute_achieved(stairs(*split, until_s=30), 1.0, 3, 30).achieved == pytest.approx(23 / 20.25)
    assert compute_achieved(stairs(*split, until_s=30), 1.0, 3, 30, at_once=4).achieved == pytest.approx(1.0)
    # A fifth more than allowed stays a fifth more: 4 / (10 / 3) = 1.2
    faster = [(10 / 3 * number, 4.0) for number in range(9)]
    assert compute_achieved(stairs(*faster, until_s=30), 1.0, 3, 30, at_once=4).achieved == pytest.approx(1.2, rel=0.02)
    # One group only: all of it over all of the time after the first window.
    assert compute_achieved(stairs((0.0, 4.0), (10.0, 4.0), until_s=30), 1.0, 3, 30, at_once=4).achieved == 4 / 27


def test_nothing_at_all_and_steps() -> None:
    assert compute_achieved([], 1.0, 11, 134).achieved == compute_achieved([(1.0, 0.0)], 1.0, 11, 134).total == 0.0
    assert steps([(0.0, 0.0), (1.0, 5.0), (2.0, 5.0), (3.0, 7.0)]) == [(1.0, 5.0), (3.0, 2.0)]


# ---- rows and frames ----------------------------------------


def test_rows_have_names_of_their_own_and_a_batch_that_runs() -> None:
    every = chosen([])
    assert len({row.name for row in every}) == len(every)
    assert {row.batch for row in every} == {name for together in BATCHES for name in together}
    assert chosen(["p4-tls"]) == [row for row in ROWS if row.name == "p4-tls"]
    with pytest.raises(ValueError, match="no row and no batch nonsense"):
        chosen(["nonsense"])


def test_a_compressed_frame_is_about_as_large_as_asked_for() -> None:
    for size in (1000, 50_000):
        assert len(frames.produce("t", size, "c", compressed=True)) == pytest.approx(size, rel=0.25)
        assert len(frames.produce("t", size, "c")) == pytest.approx(size, abs=100)


def test_a_client_that_is_slowed_is_told_from_what_slows_all() -> None:
    row = chosen(["p4-tls"])[0]
    alone = {"sidecar": [1.0] * 90 + [4.0] * 10, "broker": [1.0] * 90 + [2.0] * 10}
    found = Neighbour(alone)

    def beside(sidecar_ms: float, broker_ms: float) -> Beside:
        return Beside(row, {"sidecar": [1.0] * 90 + [sidecar_ms] * 10, "broker": [1.0] * 90 + [broker_ms] * 10})

    assert found.times(beside(6.0, 2.0)) == (pytest.approx(1.5), pytest.approx(1.0))
    assert not found.slowed(beside(6.0, 2.0))
    assert found.slowed(beside(6.1, 2.0))
    assert found.slowed(beside(6.1, 1.0)), "that the broker became faster excuses nothing"
    assert not found.slowed(beside(12.0, 4.0)), "every client waits twice as long, so 3 times are 1.5"
    assert found.slowed(beside(12.1, 4.0))
    assert found.slowed(Beside(row, beside(1.0, 1.0).beside, ["TimeoutError()"]))
    assert found.slowed(Beside(row)), "nothing was measured"
    found.attacks = [beside(6.1, 2.0), beside(6.0, 2.0), Beside(row)]
    text = table(Report("2026-01-01T00:00:00Z", 134.0, neighbour=found))
    assert "| 1.00 | 6.10 | 1.52 **missed** | 1.00 | 2.00 | 1.00 |" in text
    assert "| 1.00 | 6.00 | 1.50 | 1.00 | 2.00 | 1.00 |" in text


def test_the_table_says_which_row_missed() -> None:
    row = chosen(["p4-tls"])[0]
    seen = {"requests": 9, "connections": 9, "errors": {}}
    good = Outcome(
        row, compute_achieved(stairs(*((float(at), 100_000) for at in range(130))), 1e5, 11, 134), 1e5, seen, "log"
    )
    bad = replace(good, figures=replace(good.figures, achieved=1.06))
    assert good.passed
    assert not bad.passed
    assert in_words(bad).startswith("FAIL   1.060")
    text = table(Report("2026-01-01T00:00:00Z", 134.0, [Batch([good, bad])]))
    assert "1 of 2 rows" in text
    assert f"| Produce | 2 | 1.060 **missed** | {row.title} |" in summary([good, bad])
    assert f"| Produce | 1 | 1.000 | {row.title} |" in summary([good])
    assert "| 1.060 **missed** |" in text


# ---- a broker, sidecars, attackers ----------------------------------------


@pytest.fixture(scope="module")
def on() -> Iterator[Stage]:
    """The stage of both tests."""
    with stage(rows()) as made:
        yield made


def rows() -> list[Row]:
    """The attacks."""
    return [*(short(row) for row in chosen(list(WORST))), LONG_DEBT]


@pytest.mark.timeout(300)
def test_no_attack_gets_more_than_its_limit(on: Stage) -> None:
    batch = run_batch(on, rows(), SECONDS, window_num=WINDOW_NUM, settings={"max_mute": "5s"})
    said = "\n".join(in_words(one) for one in batch.outcomes)
    print(said)
    assert not batch.unclean, batch.unclean
    for one in batch.outcomes:
        assert one.figures.total > 0, f"nothing arrived, so nothing was tried:\n{in_words(one)}"
        assert one.figures.achieved <= SHORT_BOUND, said
        if one.charged is not None and one.row.attack == "produce":
            # What was charged and not yet in the log when the time was over: no more than is under way.
            assert one.charged >= 0.99 * one.figures.total, said


@pytest.mark.timeout(300)
def test_honest_clients_beside_attacks_lose_and_repeat_nothing(on: Stage) -> None:
    """At 20 times their limit, with the timeouts that their libraries have by themselves."""
    found = honest.run(on, honest.NAMES, HONEST_S, print, chosen(list(honest.ATTACKS[:3])), limit=HONEST_LIMIT)
    said = "\n".join(honest.in_words(one) for one in found)
    for one in found:
        assert not one.missing, said
        assert one.acknowledged == one.sent > HONEST_S * HONEST_LIMIT / honest.RECORD_BYTES / 2, said
        assert (one.lost, one.repeated, one.errors) == (0, 0, []), said
