"""YAML that is too deep, too full or too slow: refused with its place before anything recurses, in little time."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config.bounds import MAX_DEPTH, MAX_DIRECTIVES, MAX_FILE_BYTES, MAX_PROBLEMS, MAX_VALUES
from config.load import load_bytes
from config.overlay import parse_overlay
from config.problems import ConfigError
from config.scalars import MAX_NUMBER_CHARS
from config.source import parse
from tests.support.examples import examples

HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'
MAX_CPU_S = 15.0
"""Each of these took minutes, gigabytes or the process before; they take one to two seconds at most."""


def refused(data: bytes) -> list[str]:
    began_s = time.thread_time()
    with pytest.raises(ConfigError) as error:
        load_bytes("q.yaml", data)
    assert time.thread_time() - began_s < MAX_CPU_S
    return [str(problem) for problem in error.value.problems]


# ---- depth ----


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[" * 100_000, "1:33"),
        ("[" * 50_000 + "]" * 50_000, "1:33"),
        ("{" * 100_000, "1:33"),
        ("{a: " * 50_000 + "1" + "}" * 50_000, "1:129"),
        ("- " * 100_000 + "x", "1:65"),
        ("? " * 100_000 + "x", "1:65"),
        ("[{a: " * 50_000, "1:81"),
        ("[[]," * 100_000, "1:126"),
        ("[? " * 50_000, "1:49"),
        ("".join(" " * level + "a:\n" for level in range(1000)) + " " * 1000 + "b", "33:33"),
        (HEAD + "quotas: " + "[" * 100_000, "2:40"),
        ("a: &a 1\nb: " + "[" * 100_000, "2:35"),
        ("!!seq [" * 50_000, "1:225"),
    ],
)
def test_depth_is_refused_where_it_begins(text: str, place: str) -> None:
    expected = f"q.yaml:{place}: (the whole file): expected at most {MAX_DEPTH} levels of nesting"
    assert refused(text.encode()) == [expected]
    with pytest.raises(ConfigError, match="levels of nesting"):
        parse_overlay("o.yaml", text.encode())


@pytest.mark.parametrize("anchor", ["", "&anchored "])
def test_as_many_levels_as_are_taken(anchor: str) -> None:
    def nested(levels: int) -> bytes:
        return (anchor + "[" * levels + "1" + "]" * levels).encode()

    value = parse("q.yaml", nested(MAX_DEPTH)).values
    for _ in range(MAX_DEPTH):
        (value,) = value
    assert value == 1
    with pytest.raises(ConfigError, match="levels of nesting"):
        parse("q.yaml", nested(MAX_DEPTH + 1))


OPENERS = [
    "[",
    "{",
    "- ",
    "? ",
    "{a: ",
    "[{a: ",
    "&a [",
    "!!seq [",
    "[[],",
    "a: [",
    "\n- ",
    "? - ",
    '"a": [',
    "[? ",
    "-\n",
]


@given(
    st.lists(st.tuples(st.sampled_from(OPENERS), st.integers(1, 60_000)), min_size=1, max_size=5), st.text("]} a:,\n")
)
@settings(max_examples=examples(150))
@example([("[", 60_000)], "")
@example([("{a: ", 60_000)], "")
@example([("- ", 60_000)], "a")
def test_no_nesting_ends_the_process(parts: list[tuple[str, int]], end: str) -> None:
    data = ("".join(opener * times for opener, times in parts) + end).encode()
    for read in (lambda: load_bytes("q.yaml", data), lambda: parse_overlay("o.yaml", data)):
        with suppress(ConfigError):
            read()


# ---- number ----


TOO_MANY = f"expected at most {MAX_VALUES} values in the file (keys, values, lists and mappings)"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- a\n" * MAX_VALUES, MAX_VALUES),
        ("[" + "a,\n" * MAX_VALUES + "]", MAX_VALUES),
        ("".join(f"k{number}: 1\n" for number in range(MAX_VALUES)), MAX_VALUES // 2),
        (HEAD + "quotas:\n" + "- {user: a, ip: b}\n" * MAX_VALUES, 50_001),
        (HEAD + "quotas:\n" + "- user: a\n  ip: b\n" * MAX_VALUES, 99_999),
        ("- [" + "[],\n" * MAX_VALUES, MAX_VALUES - 1),
    ],
)
def test_too_many_values_are_refused(text: str, line: int) -> None:
    (found,) = refused(text.encode())
    assert found.endswith(f": (the whole file): {TOO_MANY}")
    assert abs(int(found.split(":")[1]) - line) <= 2


def test_as_many_values_as_are_taken_whichever_way_they_are_read() -> None:
    items = MAX_VALUES - 1
    for first in ("a", "&anchored a"):  # from events alone, and from nodes
        assert len(parse("q.yaml", f"- {first}\n".encode() + b"- a\n" * (items - 1)).values) == items
        with pytest.raises(ConfigError, match="values in the file"):
            parse("q.yaml", f"- {first}\n".encode() + b"- a\n" * items)


def test_a_file_of_too_many_bytes() -> None:
    (found,) = refused(b"#" * (MAX_FILE_BYTES + 1))
    assert found == f"q.yaml: (the whole file): expected a file of at most 16777216 bytes, it has {MAX_FILE_BYTES + 1}"


def test_directives_are_counted() -> None:
    """libyaml compares each with all before it: a million of them took an hour in which no other thread ran."""
    text = "".join(f"%TAG !a{number}! a\n" for number in range(MAX_DIRECTIVES))
    assert parse("q.yaml", (text + "--- 1\n").encode()).values == 1
    (found,) = refused((text + "%TAG !b! b\n" + "--- 1\n").encode())
    assert "expected at most 100 directives (lines that begin with %), there are 101" in found


# ---- what grows when it is read ----


def lists_of_lists(item: str, reference: str) -> bytes:
    lines = [f"a: &a {item}"]
    for number in range(98, 115):
        lines.append(f"{chr(number)}: &{chr(number)} {reference % ','.join([f'*{chr(number - 1)}'] * 10)}")
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    "data",
    [
        lists_of_lists("[x,x,x,x,x,x,x,x,x,x]", "[%s]"),
        lists_of_lists("{x: 1}", "{<<: [%s]}"),
        b"a: &a [*a]\n",
        b"a: &a {b: *a}\n",
        b"a: &a {<<: *a}\n",
    ],
)
def test_aliases_that_multiply(data: bytes) -> None:
    (found,) = refused(data)
    assert "nests too deeply or expands to too many values (aliases?)" in found


@pytest.mark.parametrize(
    "value", ["9" * 5000, "-" + "9" * 1_000_000, "0." + "1" * 1000, "1." + "0" * 990 + "e+99999999"]
)
def test_numbers_that_take_long(value: str) -> None:
    found = refused(f"a: {value}\n".encode())
    text = f"expected a value, or quotes around it: it has {len(value)} characters, at most {MAX_NUMBER_CHARS}"
    assert any(text in each for each in found)
    assert parse("q.yaml", f"a: '{value}'\n".encode()).values == {"a": value}


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("".join(f"k{number}: 1\n" for number in range(100_000)), 100_001),
        (HEAD + "quotas:\n" + "- {user: a, x: b, y: c}\n" * 30_000, 60_000),
        ("a: 1\n" * 100_000, 99_999),
        (HEAD + "quotas:\n" + "- {user: a, producer_byte_rate: 1M}\n" * 30_000, 29_999),
    ],
)
def test_reports_only_the_first_of_many_mistakes(text: str, mistakes: int) -> None:
    """The place of each has to be looked for: 124 000 unknown keys took five minutes."""
    found = refused(text.encode())
    assert MAX_PROBLEMS < len(found) <= MAX_PROBLEMS + 2
    assert found[-1] == f"q.yaml: (the whole file): has {mistakes - MAX_PROBLEMS} more problems" or mistakes == 100_001
    assert "more problems" in found[-1]
