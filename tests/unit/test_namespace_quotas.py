"""A namespace's own quotas over those of the chart: what comes out, and what a namespace may not do."""

import json
import re
from functools import partial
from itertools import product
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from config.load import load_bytes
from config.problems import ConfigError
from config.table import to_table
from deploy.kubernetes.own_quotas import combined
from quota.connections import ConnectionLimits, EntityType
from quota.entity import Kind, bounded_name
from quota.table import RATE_FIELD
from tests.support.examples import examples
from tests.support.turns import least

Json = dict[str, Any]

FILE = "ConfigMap kquota-quotas, quotas.yaml"
HEAD = 'upstream: {bootstrap: ["kafka:9092"]}\n'
BASE = f"""{HEAD}quotas:
  - {{client-id: <default>, producer_byte_rate: 2M, consumer_byte_rate: 4M}}
  - {{user: <default>, connection_creation_rate: 10, max_connections: 50}}
"""
DEFAULT_SCOPE = {"fleet": {"key_file": "/k", "default_scope": "fleet"}}


def merged(own: str, policy: str = "lower", base: str = BASE) -> list[dict[str, object]]:
    text = combined(base, f"quotas:\n{own}".encode(), policy, FILE)  # type: ignore[arg-type]
    return list(yaml.safe_load(text)["quotas"])


def test_other_settings_are_the_charts() -> None:
    base = BASE + "max_mute: 10s\nquota.window.num: 7\n"
    own = b"quotas: [{client-id: etl, producer_byte_rate: 1M}]"
    text = combined(base, own, "lower", FILE)
    before, after = yaml.safe_load(base), yaml.safe_load(text)
    assert before | {"quotas": 0} == after | {"quotas": 0}
    assert to_table(load_bytes("x", text.encode())).resolve(Kind.PRODUCE, "a", "etl").limit == 1e6
    base = HEAD + "quotas:\n  alter: forward\n  entries: [{client-id: <default>, producer_byte_rate: 2M}]\n"
    quotas = yaml.safe_load(combined(base, own, "lower", FILE))["quotas"]
    assert quotas["alter"] == "forward"
    assert [one["client-id"] for one in quotas["entries"]] == ["<default>", "etl"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("{client-id: <default>, producer_byte_rate: 3M}", "producer_byte_rate 3000000, the chart"),
        ("{client-id: etl, producer_byte_rate: 3M}", "for a user without an entry, client-id etl would get"),
        ("{user: alice, producer_byte_rate: 3M}", "for user alice, a client-id without an entry would get"),
        # a counter that fewer share
        ("{user: alice, client-id: <default>, producer_byte_rate: 2M}", "chart's quotas allow 2000000 for all of them"),
        ("{client-id: <default>, producer_byte_rate: 1M, mode: shadow}", "only measured (mode: shadow)"),
        ("{user: <default>, max_connections: 60}", "max_connections 60, the chart's quotas allow 50"),
        ("{user: <default>, max_connections: 5, mode: shadow}", "rate 10, only measured, the"),
        ("{user: bob, connection_creation_rate: 11}", "user bob would get connection_creation_rate 11"),
    ],
)
def test_lower_refuses_raised_limits(own: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        merged(f"  - {own}\n")
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{FILE}: ")
    assert str(refused.value).endswith("(webhook.namespaceQuotas: lower)")
    assert merged(f"  - {own}\n", "any"), "which is what any is for"


def test_limits_of_fleets_and_of_the_cluster_are_kept() -> None:
    base = HEAD + "fleet: {key_file: /k}\nquotas: [{client-id: <default>, producer_byte_rate: 2M, scope: fleet}]\n"
    with pytest.raises(ConfigError, match="1000000 for each pod, the chart's quotas allow 2000000 for all of them"):
        merged("  - {client-id: etl, producer_byte_rate: 1M}\n", base=base)
    assert merged("  - {client-id: etl, producer_byte_rate: 1M, scope: fleet}\n", base=base)
    with pytest.raises(ConfigError, match=r"quotas\.source: cluster"):
        merged("  - {client-id: a, producer_byte_rate: 1}\n", base=HEAD + "quotas: {source: cluster}\n")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("\tquotas: 1", "a tab"),
        ("quotas: [{client-id: a, producer_byte_rat: 1M}]", "quotas.yaml:1:25: quotas[0]"),
        ("quotas: []\nupstream: {bootstrap: ['mine:9092']}", "a namespace may set only quotas"),
        ("quotas: {source: cluster}", "quotas: expected a list of entries"),
        ("quotas: [{ip: 10.0.0.1, max_connections: 1}, {ip: 10.0.0.1, max_connections: 2}]", "expected each ip once"),
        ("", "the file is empty"),
    ],
)
def test_mistakes_name_their_place(own: str, said: str) -> None:
    for policy, expected in (("lower", said), ("any", said), ("none", "may not set quotas")):
        with pytest.raises(ConfigError) as refused:
            combined(BASE, own.encode(), policy, FILE)  # type: ignore[arg-type]
        assert expected in str(refused.value)


LONG = "l" * 300
FEW = ["<default>", "a", "?"]
MANY = [*FEW, "any other", LONG, bounded_name(LONG)]
WHO: list[Json] = [
    *({"user": user, "client-id": client} for user, client in product(FEW, FEW)),
    *({key: name} for key, name in product(("user", "client-id"), MANY)),
    *({"ip": address} for address in ("<default>", "10.0.0.1", "10.0.0.0/30", "10.0.0.0/8")),
]
CONNECTIONS = [{name: most} for name, most in product(("connection_creation_rate", "max_connections"), (1, 2, 3))]
RATES = [{name: limit} for name, limit in product(RATE_FIELD.values(), (1, 2, 3))]
RATES += [one | two for one, two in product(RATES[:3], RATES[3:6])]
BOTH = [one | two for one, two in product(RATES[:3], CONNECTIONS)]
HOW: list[Json] = [{}, {}, {"mode": "shadow"}, {"scope": "fleet"}, {"scope": "instance"}]


def about(who: Json) -> list[Json]:
    limits = CONNECTIONS if "ip" in who else RATES if "client-id" in who else [*RATES, *CONNECTIONS, *BOTH]
    return [who | one | how for one in limits for how in (HOW[:3] if "max_connections" in one else HOW)]


ENTRIES = [st.sampled_from(about(who)) for who in WHO]


@st.composite
def quotas(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    """Those of a chart and of a namespace, about few users, client-ids and addresses, so that they meet."""
    few = draw(st.sets(st.sampled_from(range(len(WHO))), min_size=1, max_size=3))
    chart, own = ([draw(ENTRIES[who]) for who in sorted(few) if draw(st.integers(0, 3))] for _ in ("chart", "own"))
    return chart, own


@given(quotas(), st.sampled_from([{}, DEFAULT_SCOPE, {"quota.producer.override": "b:1"}]))
@settings(max_examples=examples(300))
def test_after_lower_no_client_may_use_more(found: tuple[list[Json], list[Json]], more: Json) -> None:
    """And each limit is enforced, is the fleet's if it was, and no counter is shared by fewer."""
    chart, own = found
    upstream: Json = {"upstream": {"bootstrap": ["kafka:9092"]}, "fleet": {"key_file": "/k"}}
    base = json.dumps(upstream | more | {"quotas": chart})
    before = to_table(load_bytes("x", base.encode()))
    try:
        text = combined(base, json.dumps({"quotas": own}).encode(), "lower", FILE)
    except ConfigError:
        return
    after = to_table(load_bytes("x", text.encode()))
    names = ["a", "b", "c", "?", "any other", "\0another", LONG, bounded_name(LONG)]
    for kind, user, client in product(Kind, names, [*names, ""]):
        old, new = before.resolve(kind, user, client), after.resolve(kind, user, client)
        if old.limit is not None and old.entry is not None and old.entry.mode == "enforce":
            assert new.limit is not None
            assert new.limit <= old.limit
            assert new.entry is not None
            assert new.entry.mode == "enforce"
            assert after.of_fleet(new.entry) >= before.of_fleet(old.entry)
            assert {i for i in (0, 1) if new.key[i] is not None} <= {i for i in (0, 1) if old.key[i] is not None}
    for scope, limit in product(EntityType, ("connection_creation_rate", "max_connections")):
        for name in names if scope is EntityType.USER else ("10.0.0.1", "10.0.0.2", "10.0.0.9", "::1"):
            which = ConnectionLimits.cap if limit == "max_connections" else ConnectionLimits.rate
            had, has = (which(one.connections, scope, name) for one in (before, after))
            if had is not None and had.mode == "enforce":
                assert has is not None
                assert getattr(has, limit) <= getattr(had, limit)
                assert has.mode == "enforce"
                assert limit == "max_connections" or after.of_fleet(has) >= before.of_fleet(had)


MANY_KEYS = "quotas:\n- &a {" + ",".join(f"k{number}: 1" for number in range(200)) + "}\n"
PAIR = "- {{client-id: c{0}, producer_byte_rate: 1M}}\n- {{user: u{0}, request_percentage: 1}}\n"
COSTLY = {
    "a megabyte": ("quotas:\n" + "- {client-id: c, mode: shadow}\n" * 35_000, "at most 262144 bytes, it has 10"),
    "entries by aliases": ("quotas:\n- &a {client-id: c}\n" + "- *a\n" * 4000, "at most 4000 entries, there are 4001"),
    "values by merge keys": (MANY_KEYS + "- {<<: *a}\n" * 900, "quotas[0].k0: unknown key"),
    "pairs": (
        "quotas:\n" + "".join(PAIR.format(number) for number in range(210)),
        "211 users and 212 client-ids are more than can be compared (40000 pairs)",
    ),
}


def test_quotas_of_a_namespace_cost_little_time() -> None:
    """About as much as the largest that are taken."""
    largest = "".join(PAIR.format(number) for number in range(197))
    assert merged(largest)

    def refused(own: str, said: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(said)):
            combined(BASE, own.encode(), "lower", FILE)

    most_s = 4 * least(lambda: merged(largest))
    for case, costly in COSTLY.items():
        assert least(partial(refused, *costly)) < most_s, case
