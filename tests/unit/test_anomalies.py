"""The checker of histories: it finds each anomaly where one was planted, and none in a history without."""

import pytest

from tests.support.history import KINDS, Event, History, assert_clean, check


def wrote(value: str, offset: int | None, transaction: str | None = None, what: str = "acknowledged") -> History:
    answer = Event(what, value=value, offset=offset)  # type: ignore[arg-type]
    return [Event("sent", "writer", value, transaction=transaction), answer]


def read(*values: tuple[str, int], who: str = "reader") -> History:
    return [Event("assigned", who, offset=0), *(Event("polled", who, value, offset=at) for value, at in values)]


def ended(what: str, transaction: str, offset: int | None = None) -> Event:
    return Event(what, offset=offset, transaction=transaction)  # type: ignore[arg-type]


A, B, C = wrote("a", 0), wrote("b", 1), wrote("c", 2)
ALL = read(("a", 0), ("b", 1), ("c", 2))
IN_T = [*wrote("a", 0, "t"), *wrote("b", 1, "t")]
CLEAN: list[History] = [
    [*A, *B, *C, *ALL],
    [*A, *wrote("b", None, what="unknown"), *wrote("d", None, what="failed"), *C, *read(("a", 0), ("c", 2))],
    [*IN_T, ended("committed", "t", 3), *wrote("c", 3), *read(("a", 0), ("b", 1), ("c", 3))],
    [*IN_T, ended("aborted", "t", 3), *wrote("c", 3), *read(("c", 3))],
    [*A, *B, *C, *ALL, Event("polled", "late", "c", offset=2)],
]
PLANTED: dict[str, History] = {
    "lost": [*A, *B, *C, *read(("a", 0), ("c", 2))],
    "unseen": [*A, *B, *read(("a", 0))],
    "duplicated": [*A, *B, *read(("a", 0), ("b", 1), ("a", 2))],
    "reordered": [*wrote("a", 1), *wrote("b", 0), *read(("b", 0), ("a", 1))],
    "inconsistent": [*A, *wrote("b", 5), *read(("a", 0), ("b", 1))],
    "went back": [*A, *B, *C, *ALL, Event("polled", "reader", "b", offset=1)],
    "skipped": [*A, *B, *C, *ALL, *read(("a", 0), ("c", 2), who="other")],
    "aborted read": [*IN_T, ended("aborted", "t"), *read(("a", 0))],
    "late": [*IN_T, ended("committed", "t", 1), *read(("a", 0), ("b", 1))],
    "never sent": [*A, *read(("a", 0), ("x", 1))],
    "unanswered": [*A, Event("sent", "writer", "b"), *read(("a", 0), ("b", 1))],
}


def test_planted_anomalies_are_found_alone() -> None:
    for history in CLEAN:
        assert_clean(history)
    for history in ([], A, read(("a", 0))):
        with pytest.raises(AssertionError, match="shows nothing"):
            assert_clean(history)
    for kind in KINDS:
        assert {one: len(few) for one, few in check(PLANTED[kind]).items()} == {kind: 1}
        with pytest.raises(AssertionError, match=f"1 {kind} "):
            assert_clean(PLANTED[kind])
        assert_clean(PLANTED[kind], but=[kind])
