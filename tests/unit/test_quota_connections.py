"""Connection limits: KIP-612's arithmetic as Kafka's own tests have it (2 samples of 1 s), caps, memory."""

from collections import Counter as CountOf
from ipaddress import ip_address, ip_network
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota import connections
from quota.connections import Cause, ConnectionEntry, ConnectionGate, ConnectionLimits, EntityType, Refusal, Ticket
from quota.entity import DEFAULT
from quota.rate import SampledRate, throttle_ms
from tests.support.examples import examples

IP, USER = EntityType.IP, EntityType.USER
A, B = "10.0.0.1", "10.0.0.2"
RANDOM = settings(max_examples=examples(200))
FEW_ADDRESSES = [f"{first}.0.0.{last}" for first in (10, 11) for last in range(4)] + ["::1", "::2", "::a00:1"]
ACTIONS = st.sampled_from(["admit", "admit unnamed", "identify", "leave"])
STEPS = st.tuples(ACTIONS, st.sampled_from([A, B]), st.sampled_from(["alice", "bob"]), st.integers(0, 400))


class Gate:
    """A gate with limits that tests change, and Kafka's test windows: 2 samples of 1 s."""

    def __init__(self, *entries: ConnectionEntry, num_samples: int = 2) -> None:
        self.limits = ConnectionLimits(entries)
        self.gate = ConnectionGate(lambda: self.limits, num_samples=num_samples, window_ms=1000)

    def attempts(self, count: int, now: float, address: str = A, user: str | None = None) -> list[Ticket | Refusal]:
        return [self.gate.admit(address, user, now) for _ in range(count)]

    def observed(self, scope: EntityType, name: str, now: float) -> float:
        return self.gate.standing(scope, name, now).observed


def admitted(decisions: list[Ticket | Refusal]) -> int:
    return sum(isinstance(one, Ticket) for one in decisions)


def test_i1_a_rate_limit_that_changes_while_the_clock_stands() -> None:
    gate = Gate(ConnectionEntry(IP, A, 20))
    first = gate.attempts(40, 0)
    assert [isinstance(one, Ticket) for one in first] == [True] * 20 + [False] * 20
    # the 21st: 21 in a window of (2 - 1) s: (21 - 20) / 20 * 1000 ms = 50 ms; taken back, so the 40th gets the same
    assert {one for one in first if isinstance(one, Refusal)} == {Refusal(Cause.IP_RATE, A, 20, 21.0, 50)}
    gate.limits = ConnectionLimits([ConnectionEntry(IP, A, 30)])
    assert admitted(gate.attempts(40, 0)) == 10  # 30 in all: history is kept
    gate.limits = ConnectionLimits()
    assert admitted(gate.attempts(40, 0)) == 40


def test_i4_a_refused_connection_leaves_no_trace_in_any_rate() -> None:
    gate = Gate(ConnectionEntry(IP, A, 0), ConnectionEntry(USER, "alice", 0), ConnectionEntry(IP, DEFAULT, 100))
    assert gate.attempts(1, 0, user="bob") == [Refusal(Cause.IP_RATE, A, 0, 1.0, 1000)]  # bounded to one sample
    assert admitted(gate.attempts(1, 0, B, user="bob")) == 1
    assert gate.attempts(1, 0, B, user="alice") == [Refusal(Cause.USER_RATE, "alice", 0, 1.0, 1000)]
    assert [gate.observed(IP, A, 0), gate.observed(USER, "alice", 0), gate.observed(IP, B, 0)] == [0.0, 0.0, 1.0]


def test_charges_late_user_once() -> None:
    gate = Gate(ConnectionEntry(USER, "alice", 1, 2), ConnectionEntry(IP, DEFAULT, 100))
    first, second, third = tickets = [one for one in gate.attempts(3, 0) if isinstance(one, Ticket)]
    assert not gate.gate.open(USER)
    assert gate.gate.identify(first, "alice", 0) is None
    assert gate.gate.identify(first, "alice", 0) is None  # re-authentication
    assert gate.gate.identify(second, "alice", 0) == Refusal(Cause.USER_RATE, "alice", 1, 2.0, 1000)
    assert gate.observed(IP, A, 0) == 3.0  # it was served until here
    assert gate.gate.identify(second, "alice", 2001) is None
    assert gate.gate.identify(third, "alice", 9999) == Refusal(Cause.USER_CAP, "alice", 2, 2, 0)
    for ticket in tickets:
        gate.gate.leave(ticket)
    assert (dict(gate.gate.open(USER)), dict(gate.gate.open(IP))) == ({}, {})


def test_refusals_are_remembered_by_name_and_bounded() -> None:
    gate = Gate(ConnectionEntry(IP, DEFAULT, None, 0), ConnectionEntry(IP, A, 1, 100))
    gate.attempts(3, 5)  # one admitted, two refused by the rate
    gate.attempts(1, 7, B)
    gate.attempts(1, 9)
    assert [(one.last.cause, one.last.name, one.count, one.at_ms) for one in gate.gate.refusals(9)] == [
        (Cause.IP_RATE, A, 3, 9),
        (Cause.IP_CAP, B, 1, 7),
    ]
    assert gate.gate.standing(IP, A, 9).refused == gate.gate.refusals(1)
    for number in range(connections.MAX_REMEMBERED):
        gate.attempts(1, 10, f"10.1.{number >> 8}.{number & 255}")
    assert len(gate.gate.refusals(10**6)) == connections.MAX_REMEMBERED
    assert gate.gate.standing(IP, A, 10).refused == []
    assert gate.gate.refused == {Cause.IP_RATE: 3, Cause.IP_CAP: 1 + connections.MAX_REMEMBERED}


SPELLINGS = {
    "::ffff:10.0.0.1": "10.0.0.1",
    "2001:DB8:0::1": "2001:db8::1",
    "fe80::1%eth0": "fe80::1",
    "10.0.0.0/8": "10.0.0.0/8",
    "10.0.0.1/32": "10.0.0.1",
    "2001:DB8:0::/32": "2001:db8::/32",
    "::1/128": "::1",
    "::ffff:10.0.0.0/104": "10.0.0.0/8",
    "::ffff:10.0.0.1/128": "10.0.0.1",
    "::/0": "::/0",
    "fe80::%eth0/64": "fe80::/64",
    "10.0.0.1/8": "has host bits set, the network is 10.0.0.0/8",
    **dict.fromkeys(["10.0.0.0/255.0.0.0", "10.0.0.0/", "10.0.0.0/8/9"], "the prefix length"),
    **dict.fromkeys(["kafka-0", "10.0.0", "", "010.0.0.1", "10.0.0/8", "10.0.0.0/33"], "does not appear to be"),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_addresses_and_networks_have_one_spelling(text: str) -> None:
    said = SPELLINGS[text]
    if " " in said:
        with pytest.raises(ValueError, match=said):
            ConnectionEntry(IP, text, 1)
        with pytest.raises(ValueError, match=said):
            connections.canonical_source(text)
    else:
        assert ConnectionEntry(IP, text, 1).name == said
        assert "/" in text or connections.canonical_address(text) == said


@RANDOM
@given(
    st.sets(st.tuples(st.sampled_from(FEW_ADDRESSES), st.sampled_from([0, 1, 7, 8, 29, 30, 31, 32, 126, 127, 128]))),
    st.sampled_from(FEW_ADDRESSES),
    st.booleans(),
)
def test_longest_prefix_wins(places: set[tuple[str, int]], address: str, default: bool) -> None:
    networks = {ip_network((host, min(length, 32) if "." in host else length), strict=False) for host, length in places}
    entries = {network: ConnectionEntry(IP, str(network), network.prefixlen) for network in networks}
    limits = ConnectionLimits([*entries.values(), *([ConnectionEntry(IP, DEFAULT, 1000)] if default else [])])
    containing = [entry for network, entry in entries.items() if ip_address(address) in network]
    expected = max(containing, key=lambda entry: entry.connection_creation_rate or 0, default=limits.get(IP, DEFAULT))
    assert limits.rate(IP, address) == expected


@pytest.mark.parametrize(
    ("name", "rate", "cap", "said"),
    [
        ("", 1, None, "non-empty"),
        *(("u", rate, None, "connection_creation_rate is") for rate in (-1.0, float("inf"), float("nan"))),
        ("u", None, -1, "max_connections is -1"),
    ],
)
def test_bad_limits_are_refused(name: str, rate: float | None, cap: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConnectionEntry(USER, name, rate, cap)
    with pytest.raises(ValueError, match="two connection limits"):
        ConnectionLimits([ConnectionEntry(IP, "::1", 1), ConnectionEntry(IP, "0::1", 2)])


@RANDOM
@given(
    st.lists(st.tuples(st.integers(0, 700), st.sampled_from([A, B])), max_size=120),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3, 11]),
)
def test_forgetting_changes_no_decision(steps: list[tuple[int, str]], limit: int, num_samples: int) -> None:
    gate = Gate(ConnectionEntry(IP, DEFAULT, limit), num_samples=num_samples)
    sensors = {address: SampledRate(num_samples, 1000) for address in (A, B)}
    now = 0
    for pause, address in steps:
        now += pause * num_samples // 2
        sensor = sensors[address]
        sensor.record(1.0, now)
        observed = sensor.measure(now)
        delay = 0 if observed <= limit else min(throttle_ms(observed, limit, sensor.window_ms), 1000)
        if delay:
            sensor.record(-1.0, now)
        decision = gate.gate.admit(address, None, now)
        answer = decision.delay_ms if isinstance(decision, Refusal) else 0
        assert answer == delay
        if isinstance(decision, Ticket):
            gate.gate.leave(decision)
    gate.gate.forget(now + 100_000, most=10)
    assert not gate.gate.tracked(IP)


@RANDOM
@given(st.lists(STEPS, max_size=80), st.integers(0, 4), st.integers(1, 6), st.sampled_from(["enforce", "shadow"]))
def test_counts_of_open_connections_are_right_and_caps_are_kept(
    steps: list[tuple[str, str, str, int]], cap: int, rate: int, mode: Literal["enforce", "shadow"]
) -> None:
    gate = Gate(ConnectionEntry(IP, A, rate, cap + 2, mode), ConnectionEntry(USER, DEFAULT, rate, cap, mode))
    tickets: list[Ticket] = []
    refused, now = 0, 0
    for what, address, user, pause in steps:
        now += pause
        if what.startswith("admit"):
            decision = gate.gate.admit(address, user if what == "admit" else None, now)
            if isinstance(decision, Ticket):
                tickets.append(decision)
            else:
                refused += 1
                assert (decision.delay_ms > 0) == (decision.cause in (Cause.IP_RATE, Cause.USER_RATE))
        elif tickets and what == "identify":
            refused += gate.gate.identify(tickets[0], user, now) is not None
        elif tickets:
            gate.gate.leave(tickets.pop(0))
        assert gate.gate.open(IP) == CountOf(one.address for one in tickets)
        assert gate.gate.open(USER) == CountOf(one.user for one in tickets if one.user)
        if mode == "enforce":
            assert max(gate.gate.open(USER).values(), default=0) <= cap
            assert gate.gate.open(IP).get(A, 0) <= cap + 2
    assert refused == gate.gate.refused.total()
    assert refused == 0 or mode == "enforce"
    assert sum(one.count for one in gate.gate.refusals(100)) == refused
    for ticket in tickets:
        gate.gate.leave(ticket)
    assert not gate.gate.open(IP)
    assert not gate.gate.open(USER)


def test_forgets_longest_idle_address_in_endless_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quota.connections.MAX_TRACKED", 3)
    gate = Gate(ConnectionEntry(IP, DEFAULT, 1), num_samples=10_000)
    for now, last in enumerate((1, 2, 3, 1, 4)):
        gate.attempts(1, now, f"10.0.0.{last}")
    assert gate.gate.tracked(IP) == 3
    observed = [gate.observed(IP, f"10.0.0.{last}", 9) > 0 for last in (1, 2, 3, 4)]
    assert observed == [True, False, True, True]
