"""YAML that is too deep, too full or too slow: refused with its place before anything recurses, in little time."""

from functools import cache
from itertools import pairwise

import pytest

from config.load import load_bytes
from config.overlay import parse_overlay
from config.problems import MAX_DEPTH, MAX_DIRECTIVES, MAX_FILE_BYTES, MAX_PROBLEMS, MAX_VALUES, ConfigError
from config.source import MAX_NUMBER_CHARS, parse
from tests.support.turns import Watch, least

HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'
GOOD = HEAD + "quotas:\n" + "".join(f"- {{client-id: c{number}, producer_byte_rate: 1M}}\n" for number in range(1000))


@cache
def good_s() -> float:
    return least(lambda: load_bytes("q.yaml", GOOD.encode()))


def lists_of_lists(item: str, reference: str) -> str:
    names = "abcdefghijklmnopqr"
    lines = [f"{name}: &{name} {reference % ','.join([f'*{of}'] * 10)}" for of, name in pairwise(names)]
    return "\n".join([f"a: &a {item}", *lines])


DEEP = f"expected at most {MAX_DEPTH} levels of nesting"
FULL = f"expected at most {MAX_VALUES} values in the file (keys, values, lists and mappings)"
ALIASES = "the file nests too deeply or expands to too many values (aliases?)"
LONG = f"characters, at most {MAX_NUMBER_CHARS} are accepted"
MORE = "q.yaml: has {} more problems".format


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, f"q.yaml:1:33: {DEEP}"),
        ("{a: " * 50_000 + "1" + "}" * 50_000, f"q.yaml:1:129: {DEEP}"),
        ("- " * 100_000 + "x", f"q.yaml:1:65: {DEEP}"),
        ("? " * 100_000 + "x", f"q.yaml:1:65: {DEEP}"),
        ("".join(" " * level + "a:\n" for level in range(1000)) + " " * 1000 + "b", f"q.yaml:33:33: {DEEP}"),
        (HEAD + "quotas: " + "[" * 100_000, f"q.yaml:2:40: {DEEP}"),
        ("a: &a 1\nb: " + "[" * 100_000, f"q.yaml:2:35: {DEEP}"),
        ("[" + "a,\n" * MAX_VALUES + "]", f"q.yaml:{MAX_VALUES}:1: {FULL}"),
        ("".join(f"k{number}: 1\n" for number in range(MAX_VALUES)), f"q.yaml:{MAX_VALUES // 2}:10: {FULL}"),
        (HEAD + "quotas:\n" + "- {user: a, ip: b}\n" * MAX_VALUES, f"q.yaml:50001:10: {FULL}"),
        ("- [" + "[],\n" * MAX_VALUES, f"q.yaml:{MAX_VALUES - 1}:1: {FULL}"),
        ("#" * (MAX_FILE_BYTES + 1), f"expected a file of at most 16777216 bytes, it has {MAX_FILE_BYTES + 1}"),
        (lists_of_lists("[x,x,x,x,x,x,x,x,x,x]", "[%s]"), ALIASES),
        (lists_of_lists("{x: 1}", "{<<: [%s]}"), ALIASES),
        *((f"a: &a {itself}\n", ALIASES) for itself in ("[*a]", "{b: *a}", "{<<: *a}")),
        *((f"a: {number}\n", LONG) for number in ("9" * 5000, "-" + "9" * 1_000_000, "0." + "1" * 1000)),
        ("".join(f"k{number}: 1\n" for number in range(100_000)), MORE(100_000 - MAX_PROBLEMS)),
        ("a: 1\n" * 100_000, MORE(99_999 - MAX_PROBLEMS)),
        (HEAD + "quotas:\n" + "- {user: a, producer_byte_rate: 1M}\n" * 30_000, MORE(29_999 - MAX_PROBLEMS)),
    ],
    ids=lambda value: value[:20],
)
def test_hostile_files_are_refused_in_little_time(text: str, said: str) -> None:
    """Each took minutes, gigabytes or the process before."""
    watch = Watch()
    with pytest.raises(ConfigError) as error:
        watch(lambda: load_bytes("q.yaml", text.encode()))
    assert sum(watch.took_s) < 20 * good_s() * max(len(text) / len(GOOD), 10)
    assert said in str(error.value.problems[-1])
    assert len(error.value.problems) <= MAX_PROBLEMS + 2
    if DEEP in said:
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
