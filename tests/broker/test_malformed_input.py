"""Bytes that are not Kafka's, sent to the real sidecar: only that connection ends, with a counted and logged reason."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import RawClient
from tests.support.session_tools import request
from tests.support.sidecars import Sidecar, sidecar

CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(192))
API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 99, -1)


@pytest.fixture(scope="module")
def running(kafka: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka.bootstrap) as one:
        yield one


def ended(raw: bytes, running: Sidecar) -> bytes:
    """Send bytes and wait until the sidecar ends the connection; what it said before."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
        client.sendall(raw)
        said = b""
        try:
            while chunk := client.recv(4096):
                said += chunk
        except ConnectionResetError:
            pass  # it had not read all that we sent
        return said


def parse_errors(running: Sidecar, kind: str) -> float:
    time.sleep(1.1)  # an exposition is given again for up to a second
    return running.metric("kquota_parse_errors_total", kind=kind)


CASES = {
    "frame_size_negative": struct.pack(">i", -1) + b"x" * 40,
    "frame_too_small": struct.pack(">i", 0) + b"x" * 40,
    "frame_too_large": struct.pack(">i", 2_000_000_000) + b"x" * 40,
    "header_malformed": struct.pack(">ihhih", 20, 3, 9, 1, 5000) + b"x" * 10,
    "tls_on_plain_port": CLIENT_HELLO,
    "http_on_kafka_port": b"GET /metrics HTTP/1.1\r\nHost: kafka\r\n\r\n",
}


@pytest.mark.parametrize("kind", CASES)
def test_malformed_request_ends_only_its_connection(running: Sidecar, kind: str) -> None:
    before = parse_errors(running, kind)
    with RawClient(running.bootstrap, "innocent") as innocent:
        innocent.send(API_VERSIONS_0)
        innocent.read_frame()
        assert ended(CASES[kind], running) == b""
        innocent.send(API_VERSIONS_0)  # the connection beside it goes on
        assert innocent.read_frame().correlation_id == 99
    assert parse_errors(running, kind) == before + 1
    assert running.metric("kquota_connections_closed_total", reason="client_malformed") >= 1
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    logged = [line for line in lines if line.get("kind") == kind]
    assert logged
    if kind == "tls_on_plain_port":
        assert "TLS" in logged[-1]["error"]
    if kind == "http_on_kafka_port":
        assert "HTTP" in logged[-1]["error"]


def test_an_unknown_api_is_for_the_broker_to_judge(running: Sidecar) -> None:
    """A broker closes the connection; so does it through the sidecar, and the reason says who did."""
    before = running.metric("kquota_connections_closed_total", reason="broker_closed")
    assert ended(request(32_000, 0, 1, b"hello"), running) == b""
    deadline = time.monotonic() + 5
    while running.metric("kquota_connections_closed_total", reason="broker_closed") == before:
        assert time.monotonic() < deadline
        time.sleep(0.2)
