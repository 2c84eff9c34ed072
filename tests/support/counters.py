"""What tests look at: a ledger's counters at one moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from quota.counter import QuotaCounter
from quota.ledger import Ledger
from quota.trial import Trial

OWN = ("kind", "limit", "paced", "capped")
USAGE = ("amount", "charges", "throttled", "throttle_ms")


class TrialSnapshot(NamedTuple):
    """A limit that is measured and not applied (:mod:`quota.trial`)."""

    limit: float | None
    """None: no longer on trial."""
    utilisation: float | None
    throttled: int
    throttle_ms: int


def snapshots(ledger: Ledger, now_ms: float) -> list[Any]:
    return [_snapshot(group, int(now_ms)) for group in ledger.groups()]


def _snapshot(group: QuotaCounter, now: int) -> SimpleNamespace:
    user, client_id = group.key.tags
    return SimpleNamespace(
        user=user,
        client_id=client_id,
        level=None if group.level is None else group.level.label,
        mode="none" if group.entry is None else group.entry.mode,
        observed=group.observed(now),
        utilisation=group.utilisation(now),
        throttled_until_ms=group.throttled_until,
        owed_ms=group.owed_ms(now),
        shadow=_trial(group, group.shadowed, now),
        candidate=_trial(group, group.candidate, now),
        **{name: getattr(group, name) for name in OWN},
        **{name: getattr(group.usage, name) for name in USAGE},
    )


def _trial(group: QuotaCounter, trial: Trial | None, now: int) -> TrialSnapshot | None:
    if trial is None:
        return None
    return TrialSnapshot(trial.limit, group.trial_utilisation(trial, now), trial.throttled, trial.throttle_ms)
