"""What clients did with a log and got as answers, and the anomalies in that: the one checker of losses and repeats."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

KINDS: Final = {
    "lost": "acknowledged, not there, and others behind it are",
    "unseen": "acknowledged, and nothing from its place on was read",
    "duplicated": "at several places",
    "reordered": "before what the same producer sent earlier to the same partition",
    "inconsistent": "two values at one offset, or acknowledged at another than its own",
    "went back": "a reader got an offset that it had passed",
    "skipped": "a reader passed over what others read",
    "aborted read": "read, although it had failed or its transaction was aborted",
    "late": "written after the end of its transaction",
    "never sent": "read, and nobody sent it",
    "unanswered": "its producer got no answer",
}
"""Anomalies, and what a value or offset that is named for one has done."""


class Event(NamedTuple):
    """One thing that a client did, or an answer."""

    what: Literal["sent", "acknowledged", "failed", "unknown", "assigned", "polled", "committed", "aborted"]
    """`failed`: it was certainly not written; `unknown`: it may have been. `assigned`: a reader begins at this offset,
    again after a rebalance or a seek."""
    who: Hashable = ""
    """The producer of what was sent, or the reader."""
    value: Hashable = None
    partition: Hashable = 0
    offset: int | None = None
    """None: not known. Of the end of a transaction: where the partition ended when its producer got the answer."""
    transaction: Hashable = None


History = list[Event]
Place = tuple[Hashable, int]


def check(history: Sequence[Event]) -> dict[str, list[str]]:
    """Anomalies by their kind; empty if there are none."""
    sent: dict[Hashable, Event] = {}
    outcomes: dict[Hashable, Event] = {}
    ends: dict[Hashable, str] = {}
    end_offsets: dict[tuple[Hashable, Hashable], int] = {}
    seen: dict[Hashable, list[Place]] = {}
    values: dict[Place, set[Hashable]] = defaultdict(set)
    readers: dict[tuple[Hashable, Hashable], list[Event]] = defaultdict(list)
    found: dict[str, list[str]] = defaultdict(list)
    for event in history:
        if event.what == "sent":
            sent[event.value] = event
        elif event.what in ("committed", "aborted"):
            ends[event.transaction] = event.what
            if event.offset is not None:
                end_offsets[event.transaction, event.partition] = event.offset
        elif event.what in ("polled", "assigned"):
            readers[event.who, event.partition].append(event)
            if event.what == "polled" and event.offset is not None:
                place = event.partition, event.offset
                values[place].add(event.value)
                if place not in (places := seen.setdefault(event.value, [])):
                    places.append(place)
        else:
            outcomes[event.value] = event
            if event.what == "acknowledged" and event.offset is not None:
                values[event.partition, event.offset].add(event.value)

    def refused(value: Hashable) -> bool:
        event = sent.get(value)
        failed = value in outcomes and outcomes[value].what == "failed"
        return failed or (event is not None and ends.get(event.transaction) == "aborted")

    shown: dict[Hashable, list[int]] = defaultdict(list)
    for value, places in seen.items():
        for partition, offset in places:
            if not refused(value):
                shown[partition].append(offset)
            limit = end_offsets.get((sent[value].transaction, partition)) if value in sent else None
            if limit is not None and offset >= limit:
                found["late"].append(f"{value} at {offset}, its transaction ended before {limit}")
            elif refused(value):
                found["aborted read"].append(f"{value} at {offset}")
        if value not in sent:
            found["never sent"].append(f"{value} at {places[0]}")
        if len(places) > 1:
            found["duplicated"].append(f"{value} at {places}")
    for offsets in shown.values():
        offsets.sort()
    for place, several in values.items():
        if len(several) > 1:
            found["inconsistent"].append(f"{sorted(map(str, several))} at {place}")
    half_shown = {sent[value].transaction for value in seen if value in sent}

    def shows(event: Event) -> bool:
        """What was acknowledged of this must be read: a transaction as a whole, if its end is not known."""
        end = ends.get(event.transaction, "committed" if event.transaction in half_shown else "unknown")
        return event.transaction is None or end == "committed"

    placed: dict[tuple[Hashable, Hashable], list[tuple[int, Hashable]]] = defaultdict(list)
    for value, event in sent.items():
        outcome = outcomes.get(value)
        if outcome is None:
            found["unanswered"].append(str(value))
        answer = None if outcome is None or outcome.offset is None else (outcome.partition, outcome.offset)
        if value in seen:
            if answer is not None and answer not in seen[value]:
                found["inconsistent"].append(f"{value} acknowledged at {answer}, read at {seen[value]}")
        elif outcome is not None and outcome.what == "acknowledged" and shows(event):
            behind = answer is None or bool(shown[answer[0]] and shown[answer[0]][-1] > answer[1])
            found["lost" if behind else "unseen"].append(f"{value} at {answer}")
        if first := seen[value][0] if value in seen else answer:
            placed[event.who, first[0]].append((first[1], value))
    for (who, _), sequence in placed.items():
        for (before, earlier), (offset, value) in pairwise(sequence):
            if offset < before:
                found["reordered"].append(f"{who}'s {value} at {offset}, {earlier} at {before}")
    for (who, partition), events in readers.items():
        _follow(who, events, shown[partition], found)
    return dict(found)


def _follow(who: Hashable, events: Sequence[Event], shown: Sequence[int], found: Mapping[str, list[str]]) -> None:
    last: int | None = None
    for event in events:
        offset = event.offset
        if event.what == "assigned" or offset is None:
            last = None if offset is None else offset - 1
            continue
        if last is not None and offset <= last:
            found["went back"].append(f"{who} from {last} to {offset}")
        elif last is not None and (between := shown[bisect_right(shown, last) : bisect_left(shown, offset)]):
            found["skipped"].append(f"{who} from {last} to {offset} over {between[:5]}")
        last = offset


def problems_of(history: Sequence[Event], but: Collection[str] = ()) -> list[str]:
    """Anomalies, save of kinds that the clients at work do not exclude, or that nothing was acknowledged or read."""
    did = {event.what for event in history}
    if not did >= {"acknowledged", "polled"}:
        return [f"nothing was acknowledged or nothing read, this shows nothing: {did}"]
    wrong = {kind: few for kind, few in check(history).items() if kind not in but}
    return [f"{len(few)} {kind} ({KINDS[kind]}): {few[:5]}" for kind, few in wrong.items()]


def assert_clean(history: Sequence[Event], but: Collection[str] = ()) -> None:
    """As `problems_of`: there are none."""
    wrong = problems_of(history, but)
    assert not wrong, "; ".join(wrong)


def in_words(history: Sequence[Event]) -> str:
    """For a cell of a table: how much was done, and the anomalies in it."""
    done = {what: sum(event.what == what for event in history) for what in ("acknowledged", "committed", "aborted")}
    wrong = ", ".join(f"{len(few)} {kind}" for kind, few in check(history).items())
    return f"{done['acknowledged']} ({done['committed']} + {done['aborted']}): {wrong or 'none'}"
