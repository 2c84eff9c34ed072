"""The file that keeps which port stands for which broker: what is written is read, and nothing else harms."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.known_ports import MAX_BYTES, BadStateError, load_ports, parse_ports, ports_bytes
from proxy.core.wire.responses import NodeAddress
from proxy.net.listen.addresses import KnownPort

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
    if isinstance(content, dict):
        content = json.dumps({"version": 1, "ports": [ONE | content]}).encode()
    path.write_bytes(content)
    with pytest.raises(BadStateError) as error:
        load_ports(path)
    assert str(error.value).startswith(f"{path}: {says}")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert load_ports(tmp_path / "none") == []
    large = tmp_path / "large"
    large.write_bytes(b" " * (MAX_BYTES + 1))
    for path, says in ((large, f"it has {MAX_BYTES + 1} bytes"), (tmp_path, "Is a directory")):
        with pytest.raises(BadStateError, match=says):
            load_ports(path)
