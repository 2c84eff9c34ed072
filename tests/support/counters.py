"""What tests look at: a ledger's counters at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from quota.counter import QuotaCounter
from quota.entity import Kind
from quota.ledger import Ledger
from quota.trial import Trial


@dataclass(frozen=True, slots=True)
class TrialSnapshot:
    """A limit that is measured and not applied (:mod:`quota.trial`)."""

    limit: float | None
    """None: no longer on trial."""
    utilisation: float | None
    throttled: int
    throttle_ms: int


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One counter at one moment."""

    kind: Kind
    user: str
    """Kafka's user tag, "" when the user plays no part."""
    client_id: str
    limit: float | None
    level: str | None
    """The level that the limit comes from, as people write it."""
    mode: str
    observed: float
    """bytes/s, percent of one thread, or tokens left."""
    utilisation: float | None
    throttled_until_ms: int
    """End of the latest delay; in the past when no client is throttled."""
    owed_ms: int
    """The minimum of the next delay, because an earlier one was cut to the cap."""
    paced: bool
    """Whether smooth pacing is active."""
    amount: float
    """Everything charged to this counter since its creation (bytes, busy ms, partitions)."""
    charges: int
    throttled: int
    throttle_ms: int
    capped: int
    shadow: TrialSnapshot | None
    """What the limit would have done, if it is or was one of a shadow entry."""
    candidate: TrialSnapshot | None
    """What the candidate beside the limit would have done, if there is or was one."""


def snapshots(ledger: Ledger, now_ms: float) -> list[GroupSnapshot]:
    """Every counter's state now."""
    return [_snapshot(group, int(now_ms)) for group in ledger.groups()]


def _snapshot(group: QuotaCounter, now: int) -> GroupSnapshot:
    user, client_id = group.key.tags
    usage = group.usage
    return GroupSnapshot(
        kind=group.kind,
        user=user,
        client_id=client_id,
        limit=group.limit,
        level=None if group.level is None else group.level.label,
        mode="none" if group.entry is None else group.entry.mode,
        observed=group.observed(now),
        utilisation=group.utilisation(now),
        throttled_until_ms=group.throttled_until,
        owed_ms=group.owed_ms(now),
        paced=group.paced,
        amount=usage.amount,
        charges=usage.charges,
        throttled=usage.throttled,
        throttle_ms=usage.throttle_ms,
        capped=group.capped,
        shadow=_trial(group, group.shadowed, now),
        candidate=_trial(group, group.candidate, now),
    )


def _trial(group: QuotaCounter, trial: Trial | None, now: int) -> TrialSnapshot | None:
    if trial is None:
        return None
    return TrialSnapshot(trial.limit, group.trial_utilisation(trial, now), trial.throttled, trial.throttle_ms)
