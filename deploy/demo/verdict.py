"""Limit vs achieved: was everybody held to what the plan says?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.demo.meter import Track
from deploy.demo.plan import MB, STEADY_AT_LEAST_S, STEADY_FROM_S, TOLERANCE, WINDOW_S

SILENCE_S = 1.0
"""Clients report four times a second; from one that was silent for longer, nothing came."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one client fared. Rates in bytes/s."""

    track: Track
    steady: float | None
    """Mean rate after the first window; None: the run was too short to have a steady phase."""
    whole: float
    """Mean rate of the whole run, opening burst included."""
    complaint: str
    """What is not as it should be, as a sentence without a full stop; empty when all is well."""

    @property
    def share(self) -> float | None:
        """The steady rate as a share of the limit, or of the client's own target where it has no limit."""
        goal = self.track.plan.limit or self.track.plan.wanted
        return None if self.steady is None or goal is None else self.steady / goal


def judge(tracks: Sequence[Track], seconds: float) -> list[Outcome]:
    """Compare each client with its plan, over a run of `seconds`."""
    return [_judge(track, seconds) for track in tracks]


def _judge(track: Track, seconds: float) -> Outcome:
    long_enough = seconds >= STEADY_FROM_S + STEADY_AT_LEAST_S
    # What a client did after its last report is not known, unless it has been silent for suspiciously long.
    end = min(seconds, max(track.reported_until, seconds - SILENCE_S))
    steady = track.rate(STEADY_FROM_S, end) if long_enough else None
    whole = track.rate(0, end)
    complaint = _complaint(track, steady, whole, seconds)
    if not complaint and track.failed:
        complaint = f"{track.plan.client_id} had {track.failed} errors, the last one: {track.problem}"
    return Outcome(track, steady, whole, complaint)


def _complaint(track: Track, steady: float | None, whole: float, seconds: float) -> str:
    plan = track.plan
    if plan.limit is None:
        assert plan.wanted is not None, "a client without a limit and without a target cannot be judged"
        reached = whole if steady is None else steady
        if reached < plan.wanted * (1 - TOLERANCE):
            return (
                f"{plan.client_id}, which has no quota, reached {megabytes(reached)} of the {megabytes(plan.wanted)} "
                "it wanted (is the machine busy with something else?)"
            )
        return ""
    if steady is None:
        # No steady phase: the window lets 10 s' worth pass at once and the limit from then on, never more.
        most = plan.limit * (WINDOW_S + seconds) * (1 + TOLERANCE)
        if (moved := track.moved_by(seconds)) > most:
            return (
                f"{plan.client_id} moved {moved / MB:.1f} MB in {seconds:.0f} s, "
                f"where its limit allows {most / MB:.1f} MB"
            )
        return ""
    if abs(steady / plan.limit - 1) > TOLERANCE:
        return (
            f"{plan.client_id} moved {megabytes(steady)} in the steady phase, "
            f"{steady / plan.limit:.0%} of its limit of {megabytes(plan.limit)}"
        )
    return ""


def sentence(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The result in words."""
    complaints = [outcome.complaint for outcome in outcomes if outcome.complaint]
    if complaints:
        return f"Not as expected: {'; '.join(complaints)}."
    free = " and ".join(outcome.track.plan.client_id for outcome in outcomes if outcome.track.plan.limit is None)
    if any(outcome.steady is None for outcome in outcomes):
        return (
            f"Too short a run to judge the limits (steady only from second {STEADY_FROM_S} on; try --seconds 30). "
            f"Nobody got more than the first window lets through, and {free}, without a quota, was not slowed."
        )
    return (
        f"Every limited client stayed within {TOLERANCE:.0%} of its limit from second {STEADY_FROM_S} to "
        f"{seconds:.0f}, and {free}, without a quota, was not slowed."
    )


def megabytes(rate: float) -> str:
    """``1500000`` -> ``1.50 MB/s``."""
    return f"{rate / MB:.2f} MB/s"
