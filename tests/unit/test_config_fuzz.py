"""Whatever is in the file: it loads, or the loader says what is wrong. Nothing else ever comes out."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config.model import Config, IdentitySection, Listen, Log, QuotaEntry, Upstream
from tests.fuzz.targets import TARGETS
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


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    TARGETS["configuration"].run(data)


@given(shaped)
@settings(max_examples=examples(300))
def test_any_values_in_any_place(value: Any) -> None:
    TARGETS["configuration"].run(yaml.safe_dump(value, allow_unicode=False).encode())
