"""Whatever is in the file: it loads, or the loader says what is wrong. Nothing else ever comes out."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from config.load import load_bytes, warnings_of
from config.model import Config, IdentitySection, Listen, Log, QuotaEntry, Upstream
from config.problems import ConfigError
from config.table import to_table
from quota.entity import Kind
from tests.support.examples import examples

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


def try_to_load(data: bytes) -> None:
    problems = None
    try:
        config = load_bytes("q.yaml", data)
    except ConfigError as error:
        problems = error.problems
    if problems is not None:
        assert problems
        for problem in problems:
            assert problem.file == "q.yaml"
            assert problem.expected
            assert problem.line is None or problem.line >= 1
            assert len(str(problem)) < 2000
        return
    for warning in warnings_of(config):
        str(warning)
    to_table(config).resolve(Kind.PRODUCE, "u", "c")


@given(st.binary(max_size=200))
@example(b"\x00")
@example(b"!!python/object/apply:os.system ['true']")
@example(b"a: !!binary 'x'\n")
@example(b"!!set {a, b}")
@example(b"? !!timestamp 1-1-1\n: 1")
@example(b"- !!int x")
@example(b"&a : *a")
@example(b"--- a\n--- b\n")
@example(b"%YAML 9.9\n---\na: 1")
@example(b"\xff\xfea\x00")
@example(b"quotas: 1:30:30\n")
@example(b"a: !!float '.'")
@example(b"a: 0x_")
@example(b"a: 9" + b"9" * 5000)
@example(b"[" * 5000)
def test_any_bytes(data: bytes) -> None:
    try_to_load(data)


@given(shaped)
@settings(max_examples=examples(300))
def test_any_values_in_any_place(value: Any) -> None:
    try_to_load(yaml.safe_dump(value, allow_unicode=False).encode())
