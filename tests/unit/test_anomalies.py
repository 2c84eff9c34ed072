"""The checker of histories: it finds each anomaly where one was planted, and none in a history without."""

from __future__ import annotations

import pytest

from tests.support.history import KINDS, Event, History, assert_clean, check, in_words


def wrote(value: str, offset: int | None, transaction: str | None = None, what: str = "acknowledged") -> History:
    """Sent by one producer, and what it was told."""
    told = Event(what, value=value, offset=offset)  # type: ignore[arg-type]
    return [Event("sent", "writer", value, transaction=transaction), told]


def read(*values: tuple[str, int], who: str = "reader") -> History:
    """From the beginning."""
    return [Event("assigned", who, offset=0), *(Event("polled", who, value, offset=at) for value, at in values)]


def ended(what: str, transaction: str, offset: int | None = None) -> Event:
    return Event(what, offset=offset, transaction=transaction)  # type: ignore[arg-type]


A, B, C = wrote("a", 0), wrote("b", 1), wrote("c", 2)
ALL = read(("a", 0), ("b", 1), ("c", 2))
IN_T = [*wrote("a", 0, "t"), *wrote("b", 1, "t")]
CLEAN: dict[str, History] = {
    "all is read": [*A, *B, *C, *ALL],
    "an unknown one is there": [*A, *wrote("b", None, what="unknown"), *C, *ALL],
    "an unknown one and a failed one are not": [
        *A, *wrote("b", None, what="unknown"), *wrote("d", None, what="failed"), *C, *read(("a", 0), ("c", 2))
    ],
    "committed, its marker at 2": [
        *IN_T, ended("committed", "t", 3), *wrote("c", 3), *read(("a", 0), ("b", 1), ("c", 3))
    ],
    "aborted, and not read": [*IN_T, ended("aborted", "t", 3), *wrote("c", 3), *read(("c", 3))],
    "an end that is not known, nothing is read": [*IN_T, *wrote("c", 3), *read(("c", 3))],
    "a reader begins again": [*A, *B, *C, *ALL, *ALL],
    "a reader begins late": [*A, *B, *C, *ALL, Event("polled", "late", "c", offset=2)],
    "two producers, two partitions": [
        *A, Event("sent", "other", "d"), Event("acknowledged", value="d", partition=1, offset=0),
        Event("sent", "writer", "e"), Event("acknowledged", value="e", partition=1, offset=1),
        *read(("a", 0)), Event("polled", "reader", "d", 1, 0), Event("polled", "reader", "e", 1, 1),
    ],
}  # fmt: skip
PLANTED: dict[str, tuple[str, History]] = {
    "lost": ("lost", [*A, *B, *C, *read(("a", 0), ("c", 2))]),
    "lost, told no offset": ("lost", [*A, *wrote("b", None), *read(("a", 0))]),
    "lost of a transaction": ("lost", [*IN_T, ended("committed", "t"), *wrote("c", 3), *read(("a", 0), ("c", 3))]),
    "half of an unknown transaction": ("lost", [*IN_T, *wrote("c", 3), *read(("a", 0), ("c", 3))]),
    "unseen": ("unseen", [*A, *B, *read(("a", 0))]),
    "duplicated": ("duplicated", [*A, *B, *read(("a", 0), ("b", 1), ("a", 2))]),
    "reordered": ("reordered", [*wrote("a", 1), *wrote("b", 0), *read(("b", 0), ("a", 1))]),
    "two at one offset": (
        "inconsistent", [*A, *wrote("b", None), *read(("a", 0)), *read(("b", 0), who="other")]
    ),
    "acknowledged elsewhere": ("inconsistent", [*A, *wrote("b", 5), *read(("a", 0), ("b", 1))]),
    "went back": ("went back", [*A, *B, *C, *ALL, Event("polled", "reader", "b", offset=1)]),
    "read twice": ("went back", [*A, *read(("a", 0), ("a", 0))]),
    "skipped": ("skipped", [*A, *B, *C, *ALL, *read(("a", 0), ("c", 2), who="other")]),
    "skipped the first": ("skipped", [*A, *B, *C, *ALL, *read(("b", 1), ("c", 2), who="other")]),
    "aborted read": ("aborted read", [*IN_T, ended("aborted", "t"), *read(("a", 0))]),
    "a failed one is read": ("aborted read", [*A, *wrote("b", None, what="failed"), *read(("a", 0), ("b", 1))]),
    "late": ("late", [*IN_T, ended("committed", "t", 1), *read(("a", 0), ("b", 1))]),
    "late, after an abort": ("late", [*IN_T, ended("aborted", "t", 1), *read(("b", 1))]),
    "never sent": ("never sent", [*A, *read(("a", 0), ("x", 1))]),
    "unanswered": ("unanswered", [*A, Event("sent", "writer", "b"), *read(("a", 0), ("b", 1))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAN)
def test_history_without_anomalies_is_clean(name: str) -> None:
    assert check(CLEAN[name]) == {}
    assert_clean(CLEAN[name])


@pytest.mark.parametrize("name", PLANTED)
def test_planted_anomaly_is_found_alone(name: str) -> None:
    kind, history = PLANTED[name]
    found = check(history)
    assert {one: len(few) for one, few in found.items()} == {kind: 1}
    with pytest.raises(AssertionError, match=f"1 {kind} "):
        assert_clean(history)
    assert_clean(history, but=[kind])
    assert in_words(history).endswith(f": 1 {kind}")


def test_every_kind_is_planted_and_empty_histories_refused() -> None:
    assert {kind for kind, _ in PLANTED.values()} == set(KINDS)
    for history in ([], A, read(("a", 0))):
        with pytest.raises(AssertionError, match="shows nothing"):
            assert_clean(history)
