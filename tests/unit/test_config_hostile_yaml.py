"""YAML that is too deep, too full or too slow: refused with its place before anything recurses, in little time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config.load import load_bytes
from config.model import Config, IdentitySection, Listen, Log, QuotaEntry, Upstream
from config.overlay import parse_overlay
from config.problems import MAX_DEPTH, MAX_DIRECTIVES, MAX_FILE_BYTES, MAX_PROBLEMS, MAX_VALUES, ConfigError
from config.source import MAX_NUMBER_CHARS, parse
from tests.fuzz.targets import TARGETS
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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[" * 100_000, "1:33"),
        ("{a: " * 50_000 + "1" + "}" * 50_000, "1:129"),
        ("- " * 100_000 + "x", "1:65"),
        ("? " * 100_000 + "x", "1:65"),
        ("".join(" " * level + "a:\n" for level in range(1000)) + " " * 1000 + "b", "33:33"),
        (HEAD + "quotas: " + "[" * 100_000, "2:40"),
        ("a: &a 1\nb: " + "[" * 100_000, "2:35"),
    ],
)
def test_depth_is_refused_where_it_begins(text: str, place: str) -> None:
    expected = f"q.yaml:{place}: (the whole file): expected at most {MAX_DEPTH} levels of nesting"
    assert refused(text.encode()) == [expected]
    with pytest.raises(ConfigError, match="levels of nesting"):
        parse_overlay("o.yaml", text.encode())


@pytest.mark.parametrize(
    ("start", "item", "end", "most", "said"),
    [
        ("", "[", "]", MAX_DEPTH, "levels of nesting"),
        ("&anchored ", "[", "]", MAX_DEPTH, "levels of nesting"),
        ("- a\n", "- a\n", "", MAX_VALUES - 2, "values in the file"),
        ("- &anchored a\n", "- a\n", "", MAX_VALUES - 2, "values in the file"),
        ("", "%TAG !a{} a\n", "--- 1\n", MAX_DIRECTIVES, "directives"),
    ],
)
def test_takes_as_much_as_the_bound(start: str, item: str, end: str, most: int, said: str) -> None:
    def written(count: int) -> bytes:
        items = "".join(item.replace("{}", f"{number}!") for number in range(count))
        return (start + items + (end * count if end == "]" else end)).encode()

    assert parse("q.yaml", written(most)).values
    with pytest.raises(ConfigError, match=said):
        parse("q.yaml", written(most + 1))


TOO_MANY = f"expected at most {MAX_VALUES} values in the file (keys, values, lists and mappings)"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[" + "a,\n" * MAX_VALUES + "]", MAX_VALUES),
        ("".join(f"k{number}: 1\n" for number in range(MAX_VALUES)), MAX_VALUES // 2),
        (HEAD + "quotas:\n" + "- {user: a, ip: b}\n" * MAX_VALUES, 50_001),
        ("- [" + "[],\n" * MAX_VALUES, MAX_VALUES - 1),
    ],
)
def test_too_many_values_are_refused(text: str, line: int) -> None:
    (found,) = refused(text.encode())
    assert found.endswith(f": (the whole file): {TOO_MANY}")
    assert abs(int(found.split(":")[1]) - line) <= 2


def test_a_file_of_too_many_bytes() -> None:
    (found,) = refused(b"#" * (MAX_FILE_BYTES + 1))
    assert found == f"q.yaml: (the whole file): expected a file of at most 16777216 bytes, it has {MAX_FILE_BYTES + 1}"


def lists_of_lists(item: str, reference: str) -> bytes:
    names = "abcdefghijklmnopqr"
    lines = [f"{name}: &{name} {reference % ','.join([f'*{of}'] * 10)}" for of, name in pairwise(names)]
    return "\n".join([f"a: &a {item}", *lines]).encode()


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


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        info.alias or name
        for model in (Config, Listen, Upstream, IdentitySection, QuotaEntry, Log)
        for name, info in model.model_fields.items()
    ]
)
shaped = st.recursive(
    values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6), max_leaves=20
)


@given(shaped)
@settings(max_examples=examples(300))
def test_any_values_in_any_place(value: Any) -> None:
    TARGETS["configuration"].run(yaml.safe_dump(value, allow_unicode=False).encode())
