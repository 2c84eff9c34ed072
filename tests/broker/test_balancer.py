"""A gateway behind a real balancer: HAProxy, a real broker and real clients."""

import socket
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from benchmarks.suites.replicas import EVENTS, run
from tests.lab.kafka import KafkaCluster
from tests.support.certificates import Authority
from tests.support.haproxy import ADDRESS, haproxy
from tests.support.raw_client import API_VERSIONS_0
from tests.support.sidecars import sidecar
from tests.support.waiting import until

BEHIND = {"proxy_protocol_from": [f"{ADDRESS}/32"], "advertised": {"host": ADDRESS}}


@pytest.mark.parametrize(("header", "secure"), [("send-proxy", True), ("send-proxy-v2", False)])
def test_client_behind_haproxy_keeps_its_address(
    kafka: KafkaCluster, topic: str, authority: Authority, header: str, secure: bool
) -> None:
    from kafka import KafkaProducer

    tls, client_tls = None, {}
    if secure:
        host = authority.issue("gateway", ADDRESS, "127.0.0.1", common_name="gateway")
        tls = {"certificate_file": str(host.chain), "key_file": str(host.key)}
        client_tls = {"security_protocol": "SSL", "ssl_cafile": str(authority.certificate)}
    with sidecar(kafka.bootstrap, listen=BEHIND, listen_tls=tls) as running, haproxy(running, header) as bootstrap:
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="far", acks="all", **client_tls)
        try:
            assert producer.send(topic, b"x").get(timeout=30).offset == 0
            connections = running.get("/connections")["connections"]
            assert connections
            assert {one["peer"].rpartition(":")[0] for one in connections} == {"127.0.0.1"}
            assert running.metric("kquota_ip_connections", ip="127.0.0.1") == len(connections)
            assert running.metric("kquota_ip_connections", ip=ADDRESS) == 0
            assert {limit["name"] for limit in running.get("/explain?client_id=far")["connections"]} >= {"127.0.0.1"}
            clients = running.metric("kquota_proxy_headers_total", outcome="client")
            assert clients == running.metric("kquota_connections_opened_total") >= 2
            checks = running.metric("kquota_proxy_headers_total", outcome="health_check")
            until(lambda: running.metric("kquota_proxy_headers_total", outcome="health_check") > checks + 3)
            assert running.metric("kquota_connections_opened_total") == clients
            assert running.metric("kquota_proxy_headers_total", outcome="refused") == 0
        finally:
            producer.close()
        assert not running.logged("connection closed: internal error")


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("event", EVENTS)
def test_clients_go_on_without_their_replica(kafka: KafkaCluster, event: str) -> None:
    """One address before two replicas: producers and group members miss and repeat nothing, and hear of nothing."""
    outcomes = run(kafka, event, ["kafka-python 3.0", "aiokafka 0.14"], 10)
    assert len(outcomes) == 4
    for one in outcomes:
        assert one.gap_s is not None, one
        assert one.gap_s < 5, one
        assert not one.errors, one
        assert not one.anomalies.keys() - ({"duplicated", "went back"} if event == "killed" else set()), one


def test_ip_limits_hold_behind_haproxy(kafka: KafkaCluster) -> None:
    """Three of each address of a network, one of a narrower one, none of the balancer's."""
    quotas: list[dict[str, Any]] = [
        {"ip": "127.0.0.0/8", "max_connections": 3},
        {"ip": "127.0.0.4/30", "max_connections": 1},
        {"ip": ADDRESS, "max_connections": 0},
    ]
    with (
        sidecar(kafka.bootstrap, quotas, listen=BEHIND) as running,
        haproxy(running, "send-proxy-v2") as bootstrap,
        ExitStack() as stack,
    ):
        host, port = bootstrap.split(":")

        def answered(source: str, host: str = host) -> bool:
            client = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
            stack.enter_context(client)
            client.sendall(API_VERSIONS_0)
            with suppress(ConnectionError):
                return len(client.recv(4)) == 4
            return False

        for source, most in (("127.0.0.2", 3), ("127.0.0.3", 3), ("127.0.0.4", 1), ("127.0.0.5", 1)):
            assert [answered(source) for _ in range(4)] == [number < most for number in range(4)]
        (first, *_) = running.logged("connection refused")
        assert (first["name"], first["limit"]) == ("127.0.0.2", 3)
        standing = running.get("/explain?ip=127.0.0.5")["connections"]
        assert [one["cap_level"] for one in standing if one["name"] == "127.0.0.5"] == ["ip 127.0.0.4/30"]
        # Directly, without a header, a client is who it is.
        assert answered("127.0.0.6", "127.0.0.1")
        assert running.metric("kquota_ip_connections", ip="127.0.0.6") == 1
