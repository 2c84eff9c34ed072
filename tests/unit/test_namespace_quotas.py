"""A namespace's own quotas over those of the chart: what comes out, and what a namespace may not do."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config.load import load_bytes
from config.table import to_table
from deploy.kubernetes.own_quotas import POLICIES, RefusedError, combined
from quota.entity import Kind

FILE = "ConfigMap kquota-quotas, quotas.yaml"
HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'
BASE = HEAD + (
    "quotas:\n"
    "  - {client-id: <default>, producer_byte_rate: 2M, consumer_byte_rate: 4M}\n"
    "  - {user: <default>, connection_creation_rate: 10, max_connections: 50}\n"
)


def entries(text: str) -> list[dict[str, object]]:
    return list(yaml.safe_load(text)["quotas"])


def merged(own: str, policy: str = "lower", base: str = BASE) -> list[dict[str, object]]:
    return entries(combined(base, f"quotas:\n{own}".encode(), policy, FILE))  # type: ignore[arg-type]


def test_limits_that_are_named_are_set_and_others_stay() -> None:
    assert merged("  - {client-id: <default>, producer_byte_rate: 1M}\n") == [
        {"client-id": "<default>", "producer_byte_rate": "1M", "consumer_byte_rate": "4M"},
        {"user": "<default>", "connection_creation_rate": 10, "max_connections": 50},
    ]


def test_other_settings_are_the_charts() -> None:
    base = BASE + "max_mute: 10s\nquota.window.num: 7\n"
    text = combined(base, b"quotas: [{client-id: etl, producer_byte_rate: 1M}]", "lower", FILE)
    before, after = yaml.safe_load(base), yaml.safe_load(text)
    assert before | {"quotas": 0} == after | {"quotas": 0}
    assert to_table(load_bytes("x", text.encode())).resolve(Kind.PRODUCE, "a", "etl").limit == 1e6


def test_quotas_as_a_mapping_stay_one() -> None:
    base = HEAD + "quotas:\n  alter: forward\n  entries: [{client-id: <default>, producer_byte_rate: 2M}]\n"
    quotas = yaml.safe_load(combined(base, b"quotas: [{client-id: a, producer_byte_rate: 1}]", "lower", FILE))["quotas"]
    assert quotas["alter"] == "forward"
    assert [one["client-id"] for one in quotas["entries"]] == ["<default>", "a"]


RAISED = {
    "a higher limit": ("{client-id: <default>, producer_byte_rate: 3M}", "producer_byte_rate 3000000, the chart"),
    "a name of its own": ("{client-id: etl, producer_byte_rate: 3M}", "user any other, client-id etl would get"),
    "a user's level": ("{user: alice, producer_byte_rate: 3M}", "user alice, client-id any other"),
    "a counter that fewer share": (
        "{user: alice, client-id: <default>, producer_byte_rate: 2M}",
        "2000000 for each user by itself, the chart's quotas have 2000000 for all of them",
    ),
    "only measured": ("{client-id: <default>, producer_byte_rate: 1M, mode: shadow}", "only measured (mode: shadow)"),
    "more connections": ("{user: <default>, max_connections: 60}", "max_connections 60, the chart's quotas have 50"),
    "a user with more": ("{user: bob, connection_creation_rate: 11}", "user bob would get connection_creation_rate 11"),
}  # fmt: skip


@pytest.mark.parametrize("case", RAISED)
def test_lower_refuses_what_raises_a_limit(case: str) -> None:
    own, said = RAISED[case]
    with pytest.raises(RefusedError) as refused:
        merged(f"  - {own}\n")
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{FILE}: ")
    assert str(refused.value).endswith("(webhook.namespaceQuotas: lower)")
    assert merged(f"  - {own}\n", "any"), "which is what any is for"


LOWERED = [
    "{client-id: <default>, producer_byte_rate: 1M}",
    "{client-id: etl, producer_byte_rate: 2M}",
    "{client-id: etl, request_percentage: 500}",
    "{user: alice, request_percentage: 10}",
    "{user: bob, max_connections: 5}",
    "{ip: 10.0.0.7, max_connections: 5}",
    "{client-id: <default>, producer_byte_rate: 2M, candidate: {producer_byte_rate: 9M}}",
]


@pytest.mark.parametrize("own", LOWERED)
def test_lower_takes_what_limits_more(own: str) -> None:
    assert merged(f"  - {own}\n")


def test_a_fleets_limit_is_not_lowered_by_one_of_each_pod() -> None:
    base = HEAD + "fleet: {key_file: /k}\nquotas: [{client-id: <default>, producer_byte_rate: 2M, scope: fleet}]\n"
    with pytest.raises(RefusedError, match="1000000 for each pod, the chart's quotas have 2000000 for all of them"):
        merged("  - {client-id: etl, producer_byte_rate: 1M}\n", base=base)
    assert merged("  - {client-id: etl, producer_byte_rate: 1M, scope: fleet}\n", base=base)


def test_what_the_chart_only_measures_may_be_limited_anyhow() -> None:
    base = HEAD + "quotas: [{client-id: <default>, producer_byte_rate: 2M, mode: shadow}]\n"
    assert merged("  - {client-id: etl, producer_byte_rate: 9M}\n", base=base)


WRONG = {
    "no YAML": ("\tquotas: 1", "a tab"),
    "a typing mistake": ("quotas: [{client-id: a, producer_byte_rat: 1M}]", "quotas.yaml:1:25: quotas[0]"),
    "a unit": ("quotas: [{client-id: a, producer_byte_rate: 2m}]", "2M"),
    "another setting": ("quotas: []\nupstream: {bootstrap: ['mine:9092']}", "upstream: a namespace sets quotas"),
    "a mapping": ("quotas: {source: cluster}", "quotas: expected a list of entries"),
    "the same twice": (
        "quotas: [{client-id: a, producer_byte_rate: 1}, {client-id: a, consumer_byte_rate: 1}]",
        "expected each user and client-id once",
    ),
    "nothing": ("", "the file is empty"),
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_with_their_place(case: str, policy: str) -> None:
    own, said = WRONG[case]
    with pytest.raises(RefusedError) as refused:
        combined(BASE, own.encode(), policy, FILE)  # type: ignore[arg-type]
    assert ("may not set quotas" if policy == "none" else said) in str(refused.value)


def test_the_clusters_own_quotas_are_not_mixed_with_a_namespaces() -> None:
    with pytest.raises(RefusedError, match=r"quotas\.source: cluster"):
        merged("  - {client-id: a, producer_byte_rate: 1}\n", base=HEAD + "quotas: {source: cluster}\n")


NAMES = st.sampled_from([None, "<default>", "a", "b"])
ENTRY = st.tuples(NAMES, NAMES, st.sampled_from([1, 2, 3]), st.sampled_from(["enforce", "shadow"])).filter(
    lambda one: one[:2] != (None, None)
)
LISTS = st.lists(ENTRY, max_size=4, unique_by=lambda one: one[:2])


@given(LISTS, LISTS)
def test_after_lower_no_client_may_use_more(chart: list[tuple], own: list[tuple]) -> None:  # type: ignore[type-arg]
    """For each user and client-id, named anywhere or not: the limit is at most what it was, and no counter is shared by
    fewer."""

    def text(found: list[tuple]) -> str:  # type: ignore[type-arg]
        keys = "user", "client-id", "producer_byte_rate", "mode"
        quotas = [{k: v for k, v in zip(keys, one, strict=True) if v is not None} for one in found]
        return yaml.safe_dump({"quotas": quotas})

    base = HEAD + text(chart)
    try:
        after = to_table(load_bytes("x", combined(base, text(own).encode(), "lower", FILE).encode()))
    except RefusedError:
        return
    before = to_table(load_bytes("x", base.encode()))
    for user in ("a", "b", "c"):
        for client in ("a", "b", "c", ""):
            old, new = before.resolve(Kind.PRODUCE, user, client), after.resolve(Kind.PRODUCE, user, client)
            if old.limit is not None and old.entry is not None and old.entry.mode == "enforce":
                assert new.limit is not None
                assert new.limit <= old.limit
                assert new.entry is not None
                assert new.entry.mode == "enforce"
                assert {i for i in (0, 1) if new.key[i] is not None} <= {i for i in (0, 1) if old.key[i] is not None}
