"""Quota entries that are read without the YAML parser have the values that it would give them, wherever they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import config.rows as rows_module
import config.source as source_module
from config.load import load_bytes
from config.problems import ConfigError
from config.rows import _MAX_TRIED, Rows
from config.source import plain_values
from tests.unit.test_reload_cost import outcome

ROW = "  - client-id: c{0}\n    producer_byte_rate: 4M\n"
HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'


def rows(count: int, row: str = ROW) -> str:
    return "".join(row.format(number) for number in range(count))


def left(text: str) -> int:
    """How many characters are left to the parser."""
    return len(Rows(text, str).text)


def by_nodes(text: str) -> Any:
    """What the file's nodes say: the parser alone, and nothing of what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "plain_values", _refuse)
        return outcome(text.encode())


def _refuse(*_: object) -> None:
    raise ValueError


TAKEN = [
    "quotas:\n" + rows(5),
    "quotas:\n" + rows(5, "- client-id: c{0}\n  producer_byte_rate: 4M\n"),
    "quotas:\n" + rows(5, "    - user: u{0}\n      request_percentage: 50%\n") + "log: {level: info}\n",
    "quotas:\n" + rows(5, "  - {{client-id: c{0}, producer_byte_rate: 4M}}\n"),
    "quotas:\n  source: file\n  entries:\n" + rows(5, "    - {{user: <default>, client-id: c{0}, mode: shadow}}\n"),
    "quotas:\n" + rows(3) + "# a comment\n" + rows(3) + "\n\n" + rows(4, "  - {{user: u{0}}}\n"),
    "quotas:\n" + rows(3, "  - client-id: \"c {0} # yes: no\"\n    user: '\"{0}\" {{}} \\'\n    mode: ''\n"),
    "quotas:\n" + rows(9, "  - user: 0{0}\n    a: 0x1{0}\n    b: 1_0{0}.5\n    c: yes\n    d: null\n    e: .{0}e+3\n"),
    "quotas:\n"
    + rows(3, "  - user: 2024-01-0{0}\n    a: .inf\n    b: 12e03\n    c: <x=/@>\n    d: '1'\n    e: \"0x1\"\n"),
    "quotas:\n" + rows(3) + "  - &x {client-id: y}\n",
    "quotas:\n" + rows(3, "  - " + ", ".join(f"k{key}: v" for key in "abc").replace(", ", "\n    ") + "\n"),
]


@pytest.mark.parametrize("written", TAKEN)
def test_rows_have_the_values_that_the_parser_gives_them(written: str) -> None:
    assert left(written) < len(written)
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


def test_nearly_nothing_of_many_rows_is_left_to_the_parser() -> None:
    text = HEAD + "quotas:\n" + rows(1000)
    assert left(text) < 200
    assert len(plain_values(text)["quotas"]) == 1000
    assert plain_values(text)["quotas"][998:] == [
        {"client-id": f"c{n}", "producer_byte_rate": "4M"} for n in (998, 999)
    ]


LEFT = {
    "values that go on": rows(3, "  - client-id: c{0}\n      and more\n"),
    "nested": rows(3, "  - client-id: c{0}\n    candidate: {{user: a}}\n"),
    "comments": rows(3, "  - client-id: c{0} # why\n"),
    "anchors": rows(3, "  - client-id: &a{0} c\n"),
    "tags": rows(3, "  - client-id: !!str c\n"),
    "merge keys": rows(3, "  - <<: c\n"),
    "another indent": rows(3, "  -   client-id: c{0}\n"),
    "no value": rows(3, "  - client-id:\n    user: \n"),
    "escapes": rows(3, '  - client-id: "c\\x41"\n') + rows(3, "  - client-id: 'it''s'\n"),
    "a colon": rows(3, "  - client-id: a:b\n"),
    "tabs": rows(3, "  - client-id: a\n") + "#\t\n",
    "other line breaks": rows(3, "  - client-id: a\r\n"),
    "not ASCII": rows(3, "  - client-id: é\n") + rows(3, '  - client-id: "\x07"\n'),
    "one alone": rows(1),
    "far to the right": rows(3, " " * 9 + "- client-id: c{0}\n"),
}


@pytest.mark.parametrize("written", LEFT.values(), ids=LEFT.keys())
def test_whatever_else_is_written_is_left_to_the_parser(written: str) -> None:
    assert Rows("quotas:\n" + written, str).text == "quotas:\n" + written
    assert repr(outcome(b"quotas:\n" + written.encode())) == repr(by_nodes("quotas:\n" + written))


ELSEWHERE = {
    "a text": "a: |\n" + rows(3) + "quotas:\n" + rows(3),
    "a folded text": "a: >-\n" + rows(3),
    "an unquoted text": "a: b\n" + rows(3),
    "a quoted text": 'a: "\n' + rows(3) + '"\n',
    "a flow list": "quotas: [\n" + rows(3) + "]\n",
    "another list": "a:\n" + rows(3) + "quotas:\n" + rows(3),
    "a list in the list": "quotas:\n- \n" + rows(3),
    "a key": "? \n" + rows(3) + ": a\n",
    "keys twice": "quotas:\n" + rows(3) + rows(3, "  - user: a\n    user: b\n") + rows(2),
    "a list of nothing": rows(3),
    "an alias": "quotas:\n" + rows(3) + "a: &x b\nc: *x\n",
    "two documents": "quotas:\n" + rows(3) + "---\nquotas:\n" + rows(3),
    "the end of a document": "quotas:\n" + rows(3) + "...\n",
    "no YAML": "quotas:\n" + rows(3) + "   - a: b\n",
    "no YAML before": "quotas: [\n" + rows(3),
    "a long number": "quotas:\n" + rows(3, "  - user: " + "9" * 1001 + "{0}\n"),
    "a mapping among them": "quotas:\n" + rows(3) + "  a: b\n",
    "something deeper": "quotas:\n" + rows(3) + "      a: b\n",
    "a text that goes on": "quotas:\n" + rows(3) + "      and on\n" + rows(3),
}


@pytest.mark.parametrize("written", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_rows_that_are_no_entries_are_read_by_the_parser(written: str) -> None:
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


def test_mistakes_in_rows_are_placed_where_they_stand() -> None:
    text = HEAD + "quotas:\n" + rows(50).replace("client-id: c40\n    producer_byte_rate: 4M", "usr: u\n    mode: 4M")
    with pytest.raises(ConfigError) as refused:
        load_bytes("q.yaml", text.encode())
    said = [str(problem).split(" ")[0:2] for problem in refused.value.problems]
    assert ["q.yaml:83:5:", "quotas[40].usr:"] in said
    assert ["q.yaml:84:11:", "quotas[40].mode:"] in said


PIECES = st.sampled_from(
    [
        "quotas:\n",
        "  entries:\n",
        "a: |\n",
        "b: text\n",
        "c: [\n",
        "]\n",
        "  - client-id: a\n    user: 12\n",
        "  - client-id: b\n",
        "  - client-id: b\n",
        "  - client-id: b\n    mode: 1.5\n    mode: x\n",
        "  - {user: b, mode: '~'}\n",
        "  - {user: c, mode: ~}\n",
        "  - {user: c, mode: no}\n",
        "- user: b\n",
        "- user: <default>\n  mode: no\n",
        "    - user: b\n",
        "    - user: \"b\"\n      mode: '1'\n",
        "    - user: null\n      mode: 0o7\n",
        "  - \n",
        "  -\n",
        "      more\n",
        "    : x\n",
        "  # comment\n",
        "\n",
        "  'x'\n",
        '"\n',
        "'\n",
        "---\n",
        "...\n",
        "? \n",
        "  - &a\n",
        "  - *a\n",
        "  - !!str\n",
        "  <<: {}\n",
        "  mode: 1\n",
        "    mode: 2\n",
        "  - user: b\n\n    mode: 2\n",
        "  - user: b # why\n",
        "  - user: -b\n",
        "  - user: 2024-01-01\n",
        "  - user: .5\n    mode: +5\n",
        "  - user: =\n",
        "  - user: 0b1\n    mode: 1:30\n",
    ]
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_files_put_together_of_anything(pieces: list[str], headed: bool) -> None:
    written = ("quotas:\n" if headed else "") + "".join(pieces)
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


TEXTS = st.text(st.sampled_from("aZ09_.<>/@=+%-:#,'\"\\[]{}&*!|? ~éx"), max_size=6)


PAIRS = st.lists(st.tuples(st.text("abz_-<", max_size=4), TEXTS), min_size=1, max_size=3)


@given(PAIRS, st.lists(TEXTS, max_size=4), st.booleans(), st.booleans())
def test_anything_as_keys_and_values(pairs: list[tuple[str, str]], firsts: list[str], flow: bool, quoted: bool) -> None:
    """Several rows that differ in their first value alone."""
    written = "quotas:\n"
    for first in (pairs[0][1], *firsts):
        row = [(pairs[0][0], first), *pairs[1:]]
        said = [f"{key}: {value!r}" if quoted else f"{key}: {value}" for key, value in row]
        written += "  - " + ("{" + ", ".join(said) + "}" if flow else "\n    ".join(said)) + "\n"
    written += "  - user: last\n"
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


FIRSTS = ["a", "'a, b: c'", '"a, b: c"', "'a, b: c", '"a', "a, b: c", "a, d: e", "a}", "a: b", "{a", "-", "&a a", "a #"]


@given(st.lists(st.sampled_from(FIRSTS), max_size=6), st.booleans(), st.booleans())
def test_rows_with_ends_that_are_known(firsts: list[str], flow: bool, alone: bool) -> None:
    end = "}\n" if flow else "\n"
    between = ", " if flow else "\n    "
    begin = "  - {" if flow else "  - "
    rest = "" if alone else f"{between}b: c"
    written = "quotas:\n" + "".join(f"{begin}user: {first}{rest}{end}" for first in ("x", "y", *firsts, "z"))
    written += "".join(f"{begin}user: u{between}a: {second}{rest}{end}" for second in ("x", *firsts, "z"))
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


def test_an_end_is_matched_once() -> None:
    """Counted by what the pattern of a whole row was asked."""
    asked = 0

    class Whole:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def match(self, text: str, at: int) -> re.Match[str] | None:
            nonlocal asked
            asked += 1
            return self.pattern.match(text, at)

    usual = rows_module._patterns

    def counting(indent: str, flow: bool) -> tuple[re.Pattern[str], re.Pattern[str], Any]:
        first, first_two, whole = usual(indent, flow)
        return first, first_two, Whole(whole)

    two = "  - user: u{0}\n    client-id: c{0}\n    mode: shadow\n"
    for written in (rows(500), rows(500, "  - {{user: u{0}, mode: shadow}}\n"), rows(500, two)):
        asked = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows_module, "_patterns", counting)
            assert left("quotas:\n" + written) < 200
        assert asked == 3, "the first, the last, and where there is none"


FORMS = st.sampled_from(
    [
        ROW,
        "- client-id: c{0}\n  producer_byte_rate: 4M\n",
        "  - {{client-id: c{0}, producer_byte_rate: 4M}}\n",
        "  - user: \"u {0}\"\n    mode: '{0}'\n    request_percentage: 5.{0}\n",
    ]
)
JUNK = st.text(st.sampled_from(" -:#{}[]'\"|>&*!?%\n,ab<~=@\té\u2028"), min_size=1, max_size=6)


@given(st.sampled_from(["quotas:\n", "quotas:\n  entries:\n", "a: |\n", ""]), FORMS, FORMS, JUNK, st.integers(0, 400))
def test_anything_anywhere_in_rows(head: str, form: str, other: str, junk: str, at: int) -> None:
    written = head + rows(4, form) + rows(3, other)
    written = written[:at] + junk + written[at:]
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


def test_the_start_of_a_file_is_no_row() -> None:
    written = rows(3, "- user: u{0}\n")
    assert Rows(written, str).text.startswith("- user: u0\n")
    assert repr(outcome(written.encode())) == repr(by_nodes(written))


def test_rows_are_not_looked_for_for_ever() -> None:
    few, many = ("quotas:\n" + "  - a\n" * count + rows(3) for count in (_MAX_TRIED - 1, _MAX_TRIED))
    assert left(few) < len(few)
    assert left(many) == len(many)
    assert (
        plain_values(many)["quotas"][-1]
        == plain_values(few)["quotas"][-1]
        == {
            "client-id": "c2",
            "producer_byte_rate": "4M",
        }
    )
