"""The overlay file: what is written is read back, whatever the names; what is wrong is named with its place."""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.overlay import load_overlay, overlay_bytes, parse_overlay
from config.problems import ConfigError
from quota.admin import enforced, names_of
from quota.overlay import Overlay, altered, laid_over
from quota.table import Entry, QuotaTable

PRODUCE = "producer_byte_rate"

names = st.text(min_size=1).filter(lambda name: not any("\ud800" <= char <= "\udfff" for char in name))
name_or_default = names | st.none() | st.just("<default>")
entities = st.one_of(
    name_or_default.map(lambda name: (("user", name),)),
    name_or_default.map(lambda name: (("client-id", name),)),
    st.tuples(name_or_default, name_or_default).map(lambda both: (("client-id", both[0]), ("user", both[1]))),
)
values = st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
whole_values = st.none() | st.integers(1, 2**63).map(float)
optional = {PRODUCE: whole_values, "consumer_byte_rate": whole_values, "request_percentage": values}
limits = st.fixed_dictionaries({}, optional=optional).filter(bool)


@given(st.dictionaries(entities, limits, max_size=5))
@example({(("ip", None),): {"connection_creation_rate": None}, (("ip", "::1"),): {"connection_creation_rate": 5.0}})
@example({(("user", "<default>"),): {PRODUCE: 1.0}, (("user", None),): {PRODUCE: None}})
@example({(("user", "-.5"),): {PRODUCE: 1.0}})
@example({(("user", "12"),): {PRODUCE: 5e-7}, (("user", "null"),): {PRODUCE: 1000.0000005}})
@example({(("user", "\x00\n\x85\u2028\ufeff\ufffe ~ - : # {"),): {PRODUCE: float(2**63)}})
@example({(("user", "x" * 32_767),): {PRODUCE: 1.0}})
def test_overlay_round_trips(overlay: Overlay) -> None:
    assert parse_overlay("o.yaml", overlay_bytes(overlay)) == overlay


@given(st.dictionaries(entities, limits, min_size=1, max_size=5))
@example({(("user", "<default>"),): {PRODUCE: 1.0}, (("user", None),): {PRODUCE: None}})
def test_writes_as_many_values_as_can_be_read(overlay: Overlay) -> None:
    """Raised by one until the file is written: the reader takes just as many."""
    with pytest.MonkeyPatch.context() as patch:
        for most in count(3):
            patch.setattr("config.overlay.MAX_VALUES", most)
            with suppress(ValueError):
                data = overlay_bytes(overlay)
                break
        patch.setattr("config.source.MAX_VALUES", most)
        assert parse_overlay("o.yaml", data) == overlay
        patch.setattr("config.source.MAX_VALUES", most - 1)
        with pytest.raises(ConfigError, match="values in the file"):
            parse_overlay("o.yaml", data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("quotas: [{user: a}]", "o.yaml:1:10: quotas[0]: expected at least one limit"),
        ("quotas: [{producer_byte_rate: 1}]", "o.yaml:1:10: quotas[0]: expected a user, a client-id"),
        ("quotas: [{user: '', producer_byte_rate: 1}]", 'quotas[0].user: got "", expected a non-empty name'),
        ("quotas: [{user: {nam: a}, producer_byte_rate: 1}]", "quotas[0].user: got a mapping with nam, expected a"),
        ("quotas: [{user: a, producer_byte_rate: yes}]", 'producer_byte_rate: got "yes", expected a finite number, or'),
        ("quotas: [{user: a, producer_byte_rate: 0}]", "expected producer_byte_rate to be a finite number above 0"),
        ("quotas: [{user: a, producer_rate: 1}]", "quotas[0].producer_rate: unknown key, did you mean"),
        ("quotas:\n- &a {user: a, producer_byte_rate: 1}\n- *a", "quotas[1]: expected each entity once, user=a alr"),
        ("quotas: [{user: a, ip: 1.1.1.1, producer_byte_rate: 1}]", "quotas[0]: an ip cannot be combined with a user"),
        ("quotas: [{ip: host, connection_creation_rate: 1}]", "quotas[0]: expected an IPv4 or IPv6 address"),
        ("quota: []", "o.yaml:1:1: quota: unknown key, did you mean quotas?"),
        ("- a", "got a list of 1, expected a mapping"),
        ("quotas:", "quotas: got null, expected a list"),
        ("{", "expected YAML"),
        ("quotas: [{user: a, producer_byte_rate: 1, producer_byte_rate: 2}]", "expected each key once"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overlay("o.yaml", text.encode())
    assert expected in str(caught.value)


def test_no_file_is_no_overlay_and_neither_are_comments_alone(tmp_path: Path) -> None:
    assert load_overlay(tmp_path / "absent.yaml") == {}
    assert parse_overlay("o.yaml", b"# nothing\n") == {}
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_overlay(tmp_path)


@given(st.dictionaries(entities, limits, max_size=3), st.lists(st.tuples(entities, limits), max_size=8))
def test_alterations_apply_over_any_file(in_file: Overlay, alterations: Any) -> None:
    """Against a model that is obviously right: a table of limits in which keys are set and deleted."""
    model = {entity: {key: value for key, value in of.items() if value is not None} for entity, of in in_file.items()}
    model = {entity: of for entity, of in model.items() if of}
    file = QuotaTable(Entry(*names_of(entity), **of) for entity, of in model.items())
    overlay: Overlay = {}
    for entity, wanted in alterations:
        overlay = altered(overlay, file, {entity: wanted})
        overlay = parse_overlay("o.yaml", overlay_bytes(overlay))  # a restart after each
        of = model.setdefault(entity, {})
        for key, value in wanted.items():
            of.pop(key, None)
            if value is not None:
                of[key] = value
        if not of:
            del model[entity]
        assert dict(enforced(laid_over(file, overlay))) == model
