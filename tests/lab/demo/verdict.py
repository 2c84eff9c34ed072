"""Limit and achieved rate of each client of the plan, and whether they agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.lab.demo.meter import Track, is_long_enough, steady_from
from tests.lab.demo.plan import MB, STEADY_FROM_S, TOLERANCE, WINDOW_S, is_hungry, sharing

SILENCE_S = 1.0
"""Clients report four times a second; one that was silent for longer moved nothing."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One client's result. Rates in bytes/s."""

    track: Track
    steady: float | None
    """Mean rate after the first window; None: the run was too short to have a steady phase."""
    whole: float
    failure: str
    """What is wrong, as a sentence without a full stop; empty if nothing is."""

    @property
    def share(self) -> float | None:
        """The steady rate as a fraction of the limit, or of the client's own target if it has no limit."""
        goal = self.track.plan.limit or self.track.plan.wanted
        return None if self.steady is None or goal is None else self.steady / goal


def compare(tracks: Sequence[Track], seconds: float) -> list[ClientResult]:
    # Where one of them never reached its limit, that will be reported.
    begin = (steady_from(tracks) or float(STEADY_FROM_S)) if is_long_enough(seconds) else None
    return [_compare(track, tracks, begin, seconds) for track in tracks]


def _compare(track: Track, tracks: Sequence[Track], begin: float | None, seconds: float) -> ClientResult:
    steady = None if begin is None else track.rate(begin, _end(track, seconds))
    whole = track.rate(0, _end(track, seconds))
    failure = _failure_below_target(track, steady, whole) or _failure_at_limit(track, tracks, begin, seconds)
    if not failure and track.failed:
        failure = f"{track.plan.name} had {track.failed} errors, the last one: {track.problem}"
    return ClientResult(track, steady, whole, failure)


def _end(track: Track, seconds: float) -> float:
    """The time of the last report, or later if the client has been silent for suspiciously long."""
    return min(seconds, max(track.reported_until, seconds - SILENCE_S))


def _failure_below_target(track: Track, steady: float | None, whole: float) -> str:
    """For a client that wants less than it may have: is it slowed?"""
    plan = track.plan
    if is_hungry(plan):
        return ""
    assert plan.wanted is not None, "a client without a limit and without a target cannot be compared"
    kind, hint = "wants less than its part of the limit", ""
    if plan.limit is None:
        kind, hint = "has no quota", " (is the machine busy with something else?)"
        steady = whole if steady is None else steady
    if steady is None or steady >= plan.wanted * (1 - TOLERANCE):
        return ""
    return f"{plan.name}, which {kind}, reached {megabytes(steady)} of the {megabytes(plan.wanted)} it wanted{hint}"


def _failure_at_limit(track: Track, tracks: Sequence[Track], begin: float | None, seconds: float) -> str:
    """For a client that wants more than it may have: do those that share its limit move just that together?"""
    plan = track.plan
    if plan.limit is None or not is_hungry(plan):
        return ""
    names = [other.name for other in sharing(plan, [one.plan for one in tracks])]
    together = [one for one in tracks if one.plan.name in names]
    who, its = " and ".join(names), "the limit that they share" if plan.shared else "its limit"
    if begin is None:
        # No steady phase: the window lets 10 s' worth pass at once and the limit from then on, never more.
        most = plan.limit * (WINDOW_S + seconds) * (1 + TOLERANCE)
        if (moved := sum(one.moved_by(seconds) for one in together)) > most:
            return f"{who} moved {moved / MB:.1f} MB in {seconds:.0f} s, where {its} allows {most / MB:.1f} MB"
        return ""
    steady = sum(one.rate(begin, _end(one, seconds)) for one in together)
    if abs(steady / plan.limit - 1) <= TOLERANCE:
        return ""
    share = f"{steady / plan.limit:.0%} of {its} of {megabytes(plan.limit)}"
    return f"{who} moved {megabytes(steady)} in the steady phase, {share}"


def sentence(outcomes: Sequence[ClientResult], seconds: float) -> str:
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    if failures:
        return f"Not as expected: {'; '.join(failures)}."
    tracks = [outcome.track for outcome in outcomes]
    free = " and ".join(track.plan.name for track in tracks if track.plan.limit is None)
    begin = steady_from(tracks)
    if begin is None or any(outcome.steady is None for outcome in outcomes):
        return (
            f"Too short a run to judge the limits (steady only from second {STEADY_FROM_S} on; try --seconds 30). "
            f"No client got more than the first window lets through, and {free}, without a quota, was not slowed."
        )
    plans = [track.plan for track in tracks]
    shared = [sharing(plan, plans) for plan in plans if plan.shared and is_hungry(plan)]
    fleet = "".join(f" {' and '.join(one.name for one in group)} shared one limit." for group in shared)
    return (
        f"Every limit was kept within {TOLERANCE:.0%} from second {begin:.0f} to {seconds:.0f}, and {free}, "
        f"without a quota, was not slowed.{fleet}"
    )


def megabytes(rate: float) -> str:
    """``1500000`` -> ``1.50 MB/s``."""
    return f"{rate / MB:.2f} MB/s"
