"""Before the login with a real broker: it closes, and the sidecar charges no client (test_before_login.py)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import ClosedByPeerError, RawClient
from tests.support.secure_tools import PASSWORDS
from tests.support.session_tools import API_VERSIONS, METADATA, produce, request
from tests.support.sidecars import Sidecar, sidecar

# ---- a real broker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wanted(kafka_secure: KafkaCluster) -> Iterator[Sidecar]:
    """Before a listener that wants a login; who has none would be held to 100 kB/s."""
    quotas = [{"user": "<default>", "producer_byte_rate": 100_000, "request_percentage": 1}]
    with sidecar(kafka_secure.bootstrap_of("SASL_PLAINTEXT"), quotas, identity={"static": {"user": "web"}}) as running:
        yield running


def end_of(address: str, frames: list[bytes]) -> bytes:
    """What came on a connection after these frames were sent, until it was closed."""
    came = b""
    with RawClient(address) as client:
        try:
            for frame in frames:
                client.send(frame)
            while True:
                came += client.read_frame().payload
        except (ClosedByPeerError, OSError):
            return came


def test_a_broker_closes_and_the_sidecar_charges_no_client(wanted: Sidecar, kafka_secure: KafkaCluster) -> None:
    """20 connections with 100 kB each and no login. The broker closes at the first request, with and without us."""
    (direct,) = kafka_secure.bootstrap_of("SASL_PLAINTEXT")
    for frame in (produce(1, 100_000), request(METADATA, 1, 1, struct.pack(">i", 0))):
        assert end_of(direct, [frame]) == end_of(wanted.bootstrap, [frame]) == b""
    for _ in range(20):
        assert end_of(wanted.bootstrap, [request(API_VERSIONS, 0, 1, b""), produce(2, 100_000)])[:4] == b"\0\0\0\1"
    wait_for(
        "the connections that ended for want of a login",
        lambda: wanted.metric("kquota_connections_closed_total", reason="login_missing") == 22,
        10.0,
    )
    assert wanted.metric("kquota_bytes_total") == 0
    assert wanted.metric("kquota_throttle_seconds_total") == 0
    assert wanted.metric("kquota_requests_total", api="Produce") == 0
    assert '"reason": "login_missing"' in wanted.log.read_text()


def test_listener_without_login_goes_on_where_one_was_expected(
    kafka_secure: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The sidecar has a login of its own, so it expects one of clients; the listener behind it takes none."""
    from kafka import KafkaProducer

    password = tmp_path / "password"
    password.write_text(PASSWORDS["kquota"])
    own = {"mechanism": "PLAIN", "username": "kquota", "password_file": str(password)}
    upstream = {"bootstrap": kafka_secure.bootstrap, "sasl": own}
    quotas = [{"user": "<default>", "producer_byte_rate": 50_000_000}]
    with sidecar(kafka_secure.bootstrap, quotas, not_ready="cluster", upstream=upstream) as running:
        for acks in (1, 0):
            settings = {"bootstrap_servers": running.bootstrap, "client_id": f"acks-{acks}", "acks": acks}
            producer = KafkaProducer(**settings)
            producer.send(topic, b"x" * 1000)
            producer.flush(30)
            producer.close()
        for acks in (1, 0):
            of_client = {"user": "ANONYMOUS", "client_id": f"acks-{acks}", "kind": "produce"}
            wait_for(
                f"what was sent with acks={acks}",
                lambda of=of_client: running.metric("kquota_bytes_total", **of) > 1000,
                10.0,
            )
        assert running.metric("kquota_connections_closed_total", reason="login_missing") == 0
