"""Unquoted text in YAML, sizes and durations: what is a number and what is not, the same in every file. And YAML that
is too deep, too full or too slow: refused with its place before anything recurses, in little time."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.errors import WrongUseError
from analysis.owners import Owner, Owners, PriceModel, load
from config.load import load_bytes
from config.overlay import parse_overlay
from config.problems import MAX_DEPTH, MAX_DIRECTIVES, MAX_FILE_BYTES, MAX_PROBLEMS, MAX_VALUES, ConfigError
from config.source import MAX_NUMBER_CHARS, dump, parse
from config.units import parse_duration_ms, parse_size, readable_bytes, readable_span, similar_size
from config.visible import visible
from proxy.app.cli.imports import strimzi_entries
from tests.support.turns import Watch, least

HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'

SURPRISES = [
    "190:20:30", "1:30.5", "0777", "-012", "0o17", "0x1F", "0b101", "1_000", "1_0.5", "yes", "No", "ON", "off", "y",
    "2024-01-01", "2024-01-01T10:00:00Z", "2024-13-45", "=", "<<", ".inf", "-.Inf", ".nan", "1e6", "1e999", "00.5",
    "1:2:3:4:5:6:7:8", "1.2.3", "+", ".", "-.", "nULL",
]  # fmt: skip
"""YAML 1.1 reads most of these as something else than text; YAML 1.2 some."""
VALUES: list[tuple[str, Any]] = [
    ("0", 0), ("-17", -17), ("+5", 5), ("4000000", 4_000_000), ("9" * 310, int("9" * 310)), ("1.5", 1.5), ("-.5", -0.5),
    ("2.", 2.0), ("1.0e+06", 1e6), ("1.0e+999", float("inf")), ("true", True), ("FALSE", False),
    ("null", None), ("", None),
]  # fmt: skip


def readings(written: str) -> list[Any]:
    """By the parser's events, by nodes (for an anchor elsewhere), and by rows without the parser."""
    plain = parse("q.yaml", f"a: {written}\n".encode())
    nodes = parse("q.yaml", f"a: {written}\nb: &x c\n".encode())
    rows = parse("q.yaml", ("quotas:\n" + f"- user: {written}\n" * 3).encode())
    assert (plain.problems, nodes.problems, rows.problems) == ([], [], [])
    return [plain.values["a"], nodes.values["a"], *(one["user"] for one in rows.values["quotas"])]


@pytest.mark.parametrize(("written", "value"), [*VALUES, *((one, one) for one in SURPRISES)])
def test_only_decimal_numbers_and_words_are_values(written: str, value: Any) -> None:
    assert [(type(one), one) for one in readings(written)] == [(type(value), value)] * 5


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("~", '1:4: a: got "~", expected a value, or quotes around it: YAML reads ~ as null: write null'),
        ("!!int 5", "1:4: a: expected a value without the tag !!int; quote it if it is text"),
        ("!!binary 'x'", "without the tag !!binary"),
        ("!!omap [a: b]", "without the tag !!omap"),
        ("!mine x", "without the tag !mine"),
        ("!!python/object/apply:os.system ['true']", "without the tag !!python/object/apply:os.system"),
        ("{!!int 5: x}", "1:5: a.5: expected a value without the tag !!int"),
    ],
)
def test_tags_and_tildes_are_refused_with_place(written: str, said: str) -> None:
    (problem,) = parse("q.yaml", f"a: {written}\n".encode()).problems
    assert said in str(problem)
    assert parse("q.yaml", b"a: !!str 5\nc: !!map {d: !!seq [1]}").values == {"a": "5", "c": {"d": [1]}}


NO_RATE = [
    "9" * 310, "-" + "9" * 310, "1e999", "1.0e+999", "-1", "-0.5", "NaN", ".nan", ".inf", "true", "no", "190:20:30",
    "0777", "0o17", "0x1F", "2024-01-01", "~", "!!int 5", "[]", "=", "'" + "9" * 310 + "'", "'" + "9" * 100_000 + "'",
]  # fmt: skip
NAMES = ("producer_byte_rate", "request_percentage", "connection_creation_rate", "max_connections")
SETTINGS = ("max_mute", "drain_timeout_s", "quota.window.num", "quota.producer.default", "connections_max_idle_ms")


@pytest.mark.parametrize("written", NO_RATE)
def test_refuses_invalid_numbers_with_place(written: str) -> None:
    for name in NAMES:
        for where in (f"- {{user: a, {name}: {written}}}\n", f"- user: a\n  {name}: {written}\n" * 3):
            refused(lambda where=where: load_bytes("q.yaml", f"{HEAD}quotas:\n{where}".encode()), f"quotas[0].{name}")  # type: ignore[misc]
    for setting in SETTINGS:
        refused(lambda setting=setting: load_bytes("q.yaml", f"{HEAD}{setting}: {written}\n".encode()), setting)  # type: ignore[misc]
    overlay = f"quotas:\n- {{user: a, producer_byte_rate: {written}}}\n"
    refused(lambda: parse_overlay("q.yaml", overlay.encode()), "q.yaml:2:33: quotas[0].producer_byte_rate")
    user = f"kind: KafkaUser\nmetadata: {{name: a}}\nspec: {{quotas: {{producerByteRate: {written}}}}}\n"
    refused(lambda: list(strimzi_entries("q.yaml", user.encode())), "q.yaml:3:35: spec.quotas.producerByteRate")


def refused(read: Callable[[], object], place: str) -> None:
    with pytest.raises(ConfigError) as error:
        read()
    said = [str(problem) for problem in error.value.problems]
    assert any(place in one and one.startswith("q.yaml:") for one in said), said


@pytest.mark.parametrize("written", ["190:20:30", "9" * 310, "1.0e+999", "~", "0777", "!!float 1"])
def test_reports_read_their_files_in_the_same_way(written: str, tmp_path: Path) -> None:
    (path := tmp_path / "p.yaml").write_text(f"currency: EUR\nprices: {{produce_gb: {written}}}\n")
    with pytest.raises(WrongUseError, match=r"p\.yaml.*prices\.produce_gb"):
        load(PriceModel, "--prices", path)
    path.write_text("owners: [{team: no, user: 0777}]")
    assert load(Owners, "--owners", path).entries == [Owner(team="no", user="0777")]


@pytest.mark.parametrize("name", [r"a\0b", r"\0another", r"a\nb", r"\e[2J", r"\x7F", r"a\x85"])
def test_control_characters_are_in_no_name(name: str) -> None:
    for key in ("user", "client-id"):
        with pytest.raises(ConfigError, match=rf"quotas\[0\]\.{key}: got .*, expected .* without control"):
            load_bytes("q.yaml", f'{HEAD}quotas: [{{{key}: "{name}", producer_byte_rate: 1}}]'.encode())
    with pytest.raises(ConfigError, match="expected client ids with sizes"):
        load_bytes("q.yaml", f'{HEAD}quota.producer.override: "a{name}b:4M"'.encode())


def test_other_documents_of_manifests_are_ignored() -> None:
    text = (
        "kind: Deployment\nspec: {defaultMode: 0644, a: ~, b: !!binary eA==, on: yes}\n---\n"
        "kind: List\nitems:\n- kind: KafkaUser\n  metadata: {name: a, created: 2024-01-01}\n"
        "  spec: {quotas: {producerByteRate: 5}}\n"
    )
    assert list(strimzi_entries("q.yaml", text.encode())) == [{"user": "a", "producer_byte_rate": 5}]


TEXTS = (
    st.text(max_size=12) | st.text("0123456789+-.:_eExXobNnullyYtTrueofF~=<", max_size=8) | st.sampled_from(SURPRISES)
)
VALUE = TEXTS | st.booleans() | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.dictionaries(TEXTS, VALUE, max_size=4), max_size=3))
@example([{"-.5": "-.0", ".5": "~"}])
@example([{"user": "a\u202eb", "client-id": "\u2028\u200b\U000e0001"}])
def test_dump_round_trips(values: list[dict[str, Any]]) -> None:
    """Also as a terminal gets it, with codes for invisible characters."""
    text = dump({"quotas": values})
    for shown in (text, visible(text, lines=True)):
        found = parse("q.yaml", shown.encode("utf-8", "surrogatepass"))
        assert found.problems == []
        assert repr(found.values) == repr({"quotas": values})


SIZES = [
    ("0", 0), ("1", 1), ("10_000", 10_000), ("4M", 4_000_000), ("4K", 4_000), ("4KiB", 4_096), ("4MB", 4_000_000),
    ("4MB/s", 4_000_000), ("4Mi", 4_194_304), ("4MiB", 4_194_304), ("2.5k", 2_500), ("0.5KiB", 512), ("1G", 10**9),
    ("1T", 10**12), (" 7 kB ", 7_000), ("100B", 100),
]  # fmt: skip
NO_SIZES = ["", "M", "4X", "-4M", "4MM", "4 M B", "1.5", "0.0001k", "1e6", "٤M", "4Mbit", "nan", "inf"]
AMBIGUOUS = [
    ("2m", "2M (megabytes) or 2Mi"),  # a thousandth in Kubernetes
    ("10Mb", "10M (megabytes) or 10Mi"),  # bits on a network
    ("10mb/s", "10M (megabytes) or 10Mi"),
    ("5g", "5G (gigabytes) or 5Gi"),
    ("4mib", "4Mi"),
    ("500b", "500 (bytes)"),
    ("02M", "2M"),
    ("00", "0"),
    ("4X", None),
    ("fast", None),
]
DURATIONS = [
    ("30s", None, 30_000), ("500ms", None, 500), ("1.5s", None, 1_500), ("2m", None, 120_000), ("2 min", None, 120_000),
    ("1h", None, 3_600_000), ("0", None, 0), ("250", "ms", 250), ("3", "s", 3_000), ("0.25", "s", 250),
]  # fmt: skip
NO_DURATIONS = [("30", None), ("s", "s"), ("-1s", "s"), ("1y", None), ("0.1ms", None), ("1 2s", "s")]
READABLE = [
    (0, "0 B"), (500, "500 B"), (2_000_000, "2 MB"), (1_500, "1.5 kB"), (4_194_304, "4 MiB"), (1_024, "1 KiB"),
    (10**9, "1 GB"), (123_456_789, "123.457 MB"), (2**63 - 1, "9.223 EB"), (1234.56, "1.235 kB"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [*SIZES, *((text, None) for text in NO_SIZES)])
def test_sizes(text: str, expected: int | None) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(("text", "meant"), AMBIGUOUS)
def test_refuses_ambiguous_units_with_a_proposal(text: str, meant: str | None) -> None:
    assert parse_size(text) is None
    assert similar_size(text) == meant


@pytest.mark.parametrize(("text", "bare_unit", "expected_ms"), [*DURATIONS, *((*each, None) for each in NO_DURATIONS)])
def test_durations(text: str, bare_unit: str | None, expected_ms: int | None) -> None:
    assert parse_duration_ms(text, bare_unit=bare_unit) == expected_ms


@pytest.mark.parametrize(("value", "expected"), READABLE)
def test_readable_bytes(value: float, expected: str) -> None:
    assert readable_bytes(value) == expected


def test_readable_span() -> None:
    found = [readable_span(value) for value in (0, 250, 1500, 250_000, 7_500_000, 200_000_000)]
    assert found == ["0 ms", "250 ms", "1.5 s", "4 min 10 s", "2 h 5 min", "2 d 7 h"]


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
        ("".join(f"k{number}: 1\n" for number in range(100_000)), MORE(100_001 - MAX_PROBLEMS)),  # and no brokers
        ("a: 1\n" * 100_000, MORE(100_000 - MAX_PROBLEMS)),
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
