"""Which port stands for which broker, under any churn; and the file that keeps it: what is written is read."""

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.known_ports import BadStateError, load_ports, parse_ports, ports_bytes
from proxy.core.errors import UpstreamError
from proxy.core.wire.frames import WireError
from proxy.core.wire.responses import NodeAddress
from proxy.net.listen.addresses import AddressBook, KnownPort, own_ports

GRACE_S = 600.0
FIRST = 19_092


def node(node_id: int, host: str | None = None) -> NodeAddress:
    return NodeAddress(node_id, host or f"broker-{node_id}", 9092)


class Machine:
    """An address book over `size` ports, `room` descriptors and the ports `taken` by others."""

    def __init__(self, size: int) -> None:
        self.ports = range(FIRST, FIRST + size)
        self.open: dict[int, int] = {}
        self.taken: set[int] = set()
        self.room = size
        self.book = AddressBook(self.ports, {}, GRACE_S, self.bind, self.open.__delitem__)
        self.now_s = 0.0
        self.advertised: dict[tuple[int, int], float] = {}
        """(port, node id): when it was advertised last."""

    def bind(self, node_id: int, port: int) -> bool:
        assert port in self.ports
        assert port not in self.open
        if len(self.open) >= self.room:
            raise OSError(errno.EMFILE, "no file descriptor")
        if port in self.taken:
            return False
        self.open[port] = node_id
        return True

    def see(self, *ids: int, complete: bool = True) -> dict[int, int | None]:
        self.book.learn([node(one) for one in ids], complete=complete, now_s=self.now_s)
        return self.by_id()

    def wait(self, seconds: float) -> dict[int, int | None]:
        self.now_s += seconds
        self.book.settle(self.now_s)
        return self.by_id()

    def by_id(self) -> dict[int, int | None]:
        found = {broker.node_id: port for broker, port in self.book.brokers()}
        for node_id, port in found.items():
            if port is not None:
                assert self.open[port] == node_id
                self.advertised[port, node_id] = self.now_s
        return found


ids = st.sets(st.integers(0, 40) | st.integers(0, 2**31 - 1), max_size=9)


@given(live=ids, size=st.integers(1, 8), seed=st.randoms(), fixed=st.dictionaries(st.integers(0, 9), st.integers(0, 7)))
def test_own_ports_follow_from_ids_alone(live: set[int], size: int, seed: random.Random, fixed: dict[int, int]) -> None:
    ports = range(FIRST, FIRST + size)
    mapped = {one: FIRST + index for index, one in {at: one for one, at in fixed.items() if at < size}.items()}
    mixed = list(live)
    seed.shuffle(mixed)
    found = own_ports(mixed, ports, mapped)
    assert found == own_ports(sorted(live), ports, mapped)
    assert len(set(found.values())) == len(found) == min(len(live), size)
    assert all(found[one] == port for one, port in mapped.items() if one in live)
    if not mapped:
        assert set(found) == set(sorted(live)[:size])
        newest = max(live, default=0) + 1
        assert own_ports({*live, newest}, ports, {}).items() >= found.items(), "a new, higher id moves no other broker"


@pytest.mark.parametrize(
    ("live", "fixed", "ports"),
    [
        ([1001, 1002, 1003], {}, {1001: 1, 1002: 2, 1003: 3}),
        ([5, 1, 9], {}, {1: 1, 5: 2, 9: 3}),
        ([3, 7, 11], {}, {3: 3, 7: 0, 11: 1}),
        ([1, 5], {7: 1}, {1: 2, 5: 3}),
        ([0, 1, 2, 3], {7: 1}, {0: 0, 1: 2, 2: 3, 3: 1}),
    ],
)
def test_own_ports_by_example(live: list[int], fixed: dict[int, int], ports: dict[int, int]) -> None:
    found = own_ports(live, range(FIRST, FIRST + 4), {one: FIRST + at for one, at in fixed.items()})
    assert found == {one: FIRST + at for one, at in ports.items()}


@given(
    size=st.integers(1, 6),
    events=st.lists(
        st.one_of(
            st.tuples(st.just("cluster"), st.sets(st.integers(0, 15), max_size=7)),
            st.tuples(st.just("named"), st.sets(st.integers(0, 15), max_size=2)),
            st.tuples(st.just("wait"), st.sampled_from([1.0, 200.0, 599.0, 601.0])),
        ),
        max_size=25,
    ),
)
def test_instances_agree_after_any_churn(size: int, events: list[tuple[str, set[int] | float]]) -> None:
    """At each moment an instance advertises what one that has just been started does. During the grace time of what
    clients got, a port stands for another broker only if that one is advertised with it."""
    machine = Machine(size)
    live: set[int] = set()
    for what, value in events:
        if isinstance(value, set):
            live = value if what == "cluster" else live | value
            found = machine.see(*value, complete=what == "cluster")
        else:
            found = machine.wait(value)
        assert found == Machine(size).see(*live) == dict.fromkeys(live) | own_ports(live, machine.ports, {})
        for (port, advertised), when_s in machine.advertised.items():
            stands_for = machine.open.get(port)
            if stands_for != advertised and machine.now_s < when_s + GRACE_S:
                assert stands_for is not None
                advertised_since = (port, stands_for) in machine.advertised
                assert found.get(stands_for) == port or advertised_since
                machine.advertised[port, advertised] = -GRACE_S
    machine.wait(GRACE_S + 1)
    assert len(machine.open) == min(len(live), size)


def test_the_address_of_a_broker_that_left_may_be_reused() -> None:
    machine = Machine(4)
    machine.see(1, 2)
    machine.see(2)
    assert machine.book.upstream(1) == ("broker-1", 9092), "it may be back before the cluster says so"
    machine.book.learn([node(2), node(4, "broker-1")], complete=True, now_s=1.0)
    with pytest.raises(UpstreamError, match="broker 1 left the cluster, and broker-1:9092 is broker 4 now"):
        machine.book.upstream(1)
    assert machine.book.upstream(4) == ("broker-1", 9092)
    with pytest.raises(UpstreamError, match="broker 7 left"):
        machine.book.upstream(7)
    assert machine.book.learn([node(4, "elsewhere")], complete=False, now_s=2.0)
    assert not machine.book.learn([node(4, "elsewhere")], complete=False, now_s=2.0)
    assert machine.book.upstream(4) == ("elsewhere", 9092)


def test_a_port_of_another_process_is_passed_over() -> None:
    machine = Machine(3)
    machine.taken = {FIRST + 1}
    assert machine.see(1, 2) == {1: FIRST, 2: FIRST + 2}
    assert machine.see(1, 2, 3) == {1: None, 2: FIRST + 2, 3: FIRST}
    machine.taken = set()
    assert machine.wait(1)[1] == FIRST + 1
    assert None not in machine.wait(1).values()
    machine = Machine(3)
    machine.room = 2  # so many descriptors
    assert machine.see(0, 1, 2) == {0: FIRST, 1: FIRST + 1, 2: None}
    machine.room = 3
    assert machine.wait(1)[2] == FIRST + 2


def test_a_restart_restores_what_the_ports_stood_for() -> None:
    before = Machine(4)
    before.see(1, 2)
    before.see(2, 4)
    before.now_s += 100
    known = before.book.known_ports(before.now_s)
    assert known == [
        KnownPort(FIRST, node(4), None),
        KnownPort(FIRST + 1, node(1), GRACE_S - 100),
        KnownPort(FIRST + 2, node(2), None),
    ]
    after = Machine(4)
    after.now_s = 7.0
    after.book.restore([*known, KnownPort(80, node(9), None)], after.now_s)
    assert after.open == before.open
    assert after.by_id() == before.by_id()
    assert after.see(2, 4) == {2: FIRST + 2, 4: FIRST}
    assert after.open == before.open
    after.wait(GRACE_S - 99)
    assert after.open == {FIRST: 4, FIRST + 2: 2}


@pytest.mark.parametrize(
    "bad",
    [NodeAddress(2, "", 9092), node(2, "a b"), node(2, "x" * 256), NodeAddress(2, "a", 0), NodeAddress(2, "a", 65_536)],
)
def test_addresses_that_cannot_be_are_refused(bad: NodeAddress) -> None:
    machine = Machine(3)
    machine.see(1)
    with pytest.raises(WireError):
        machine.book.learn([node(3), bad], complete=True, now_s=0.0)
    assert machine.by_id() == {1: FIRST + 1}


def test_brokers_at_each_others_ports_change_places() -> None:
    machine = Machine(4)
    machine.book.restore([KnownPort(FIRST, node(1), None), KnownPort(FIRST + 1, node(0), None)], 0.0)
    assert machine.by_id() == {0: FIRST + 1, 1: FIRST}
    machine.see(0, 1)
    assert machine.wait(1) == {0: FIRST, 1: FIRST + 1}


NOW_S = 1_800_000_000.0
ONE = {"port": 19_093, "broker": 1, "host": "kafka-1", "broker_port": 9092, "until": None}
NUMBERS = st.integers(1, 65_535)
HOSTS = st.from_regex(r"[a-zé0-9.:-]{1,80}", fullmatch=True)
NODES = st.builds(NodeAddress, st.integers(0, 2**31 - 1), HOSTS, NUMBERS)


@given(st.lists(st.builds(KnownPort, NUMBERS, NODES, st.none() | st.integers(1, 86_400).map(float))))
def test_what_is_written_is_read(ports: list[KnownPort]) -> None:
    assert parse_ports(ports_bytes(ports, NOW_S), NOW_S) == ports


def test_time_goes_on_while_the_process_is_down() -> None:
    ports = [KnownPort(port, NodeAddress(port, "a", 1), held_s) for port, held_s in ((1, 5.0), (2, 50.0), (3, None))]
    later = parse_ports(ports_bytes(ports, NOW_S), NOW_S + 10)
    assert [(one.port, one.held_s) for one in later] == [(2, 40.0), (3, None)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the whole file: Invalid JSON"),
        (b"[" * 100_000, "the whole file: Invalid JSON"),
        (b"[]", "the whole file: "),
        (b'{"version": 2, "ports": []}', "version: Input should be 1"),
        (b'{"version": 1}', "ports: Field required"),
        (b'{"version": 1, "ports": [], "more": 1}', "more: Extra inputs"),
        ({"port": "19093"}, "ports.0.port: Input should be a valid integer"),
        ({"broker": 2**31}, "ports.0.broker: "),
        ({"host": "a b"}, "ports.0: node 1 has an invalid address: host 'a b'"),
        ({"host": "x" * 256}, "ports.0.host: "),
        ({"broker_port": 65_536}, "ports.0.broker_port: "),
        ({"until": "soon"}, "ports.0.until: "),
        ({"until\u202e": 1}, r"ports.0.until\u202e: Extra inputs"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path: Path, content: Any, says: str) -> None:
    path = tmp_path / "ports.json"
    assert load_ports(path) == []
    if isinstance(content, dict):
        content = json.dumps({"version": 1, "ports": [ONE | content]}).encode()
    path.write_bytes(content)
    with pytest.raises(BadStateError) as error:
        load_ports(path)
    assert str(error.value).startswith(f"{path}: {says}")
