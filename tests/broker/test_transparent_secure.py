"""Transparent mode before a real broker with TLS: taken and made again with a key, passed through without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.redirect.cli import app
from tests.lab.kafka import DEFAULT_LISTENERS, BrokerSecurity, KafkaCluster
from tests.support.certificates import Authority
from tests.support.clients import Load, consume_confluent, produce_confluent, produce_kafka_python
from tests.support.namespaces import Namespace, machine_with
from tests.support.secure_tools import PASSWORDS, login
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import LIMIT_S, in_background, until

LISTEN, MARK = 15001, 1337
HERE, BROKER = "10.77.0.2", "10.77.0.21"
RATE, LOAD_BYTES, RECORD_BYTES = 200_000, 1_000_000, 10_000


@pytest.fixture(scope="module")
def machine() -> Iterator[Namespace]:
    """A machine on which the broker's address is, too, and whose connections to there are redirected."""
    with machine_with(HERE, BROKER) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(machine: Namespace, authority: Authority) -> Iterator[KafkaCluster]:
    secured = BrokerSecurity(
        PASSWORDS,
        DEFAULT_LISTENERS,
        certificate=authority.issue("broker-of-its-own", BROKER).both,
        authority=authority.certificate,
        super_users=["alice"],
    )
    with machine.inside(), KafkaCluster.start(1, addresses=[(BROKER, 9092)], security=secured, progress=print) as found:
        arguments = f"install --to-port {LISTEN} --network {BROKER} --exclude-mark {MARK}"
        done = CliRunner().invoke(app, arguments.split())
        assert done.exit_code == 0, done.output
        yield found


@contextmanager
def intercepting(machine: Namespace, **settings: Any) -> Iterator[Sidecar]:
    quotas = [{"client-id": "<default>", "producer_byte_rate": RATE, "consumer_byte_rate": RATE}]
    settings |= {"mode": "transparent", "listen": {"host": "127.0.0.1", "port": LISTEN}, "transparent": {"mark": MARK}}
    settings["quota.window.num"] = 2  # else eleven seconds' worth pass at once
    with machine.inside(), sidecar([], quotas, **settings) as found:
        yield found


def load(
    cluster: KafkaCluster, listener: str, topic: str, client_id: str, size_bytes: int = LOAD_BYTES, **settings: Any
) -> Load:
    bootstrap = cluster.bootstrap if listener == "PLAINTEXT" else cluster.bootstrap_of(listener)
    return Load(bootstrap, topic, client_id, size_bytes // RECORD_BYTES, RECORD_BYTES, settings=settings)


def encrypting(authority: Authority) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate)}


def produce_one(each: Load) -> None:
    in_background(produce_confluent, each).result(LIMIT_S).assert_complete(each)


def wait_for_bytes(proxy: Sidecar, least: int, **labels: str) -> None:
    """Metrics follow within a second."""
    until(lambda: proxy.metric("kquota_bytes_total", **labels) >= least, f"{least} bytes of {labels}")


def test_terminates_tls_with_key_and_applies_all_quotas(
    machine: Namespace, cluster: KafkaCluster, authority: Authority, topic: str
) -> None:
    """One client is known by its certificate, one by its login inside; the broker's certificate is checked for the
    address that the clients asked for, and the cluster's description is the broker's own."""
    own, web = authority.issue("sidecar", BROKER), authority.issue("web", common_name="web")
    trusted = str(authority.certificate)
    by_certificate = encrypting(authority) | {
        "batch.size": 50_000,  # else it is all in two batches, and no third one has to wait
        "ssl.certificate.location": str(web.chain),
        "ssl.key.location": str(web.key),
    }
    by_login = login("kafka-python", "SCRAM-SHA-256", "alice", PASSWORDS["alice"], "SASL_SSL", authority.certificate)
    pair = {"certificate_file": str(own.chain), "key_file": str(own.key)}
    with intercepting(
        machine,
        identity={"sources": ["sasl", "tls"]},
        listen_tls=pair | {"ssl.client.auth": "requested", "client_ca_file": trusted},
        upstream_tls={"ca_file": trusted},
    ) as proxy:
        loads = [
            (produce_confluent, load(cluster, "SSL", f"{topic}-ssl", "web", **by_certificate)),
            (produce_kafka_python, load(cluster, "SASL_SSL", f"{topic}-sasl", "app", **by_login)),
        ]
        for each, future in [(each, in_background(work, each)) for work, each in loads]:
            timeline = future.result(2 * LIMIT_S)
            timeline.assert_complete(each)
            # The window of two samples lets 200 000 or 400 000 pass at once, and five batches of 50 000 are in flight
            # when the last one is announced: (1 000 000 - 400 000 - 250 000) / 200 000 = 1.75 s at least.
            assert timeline.duration_s > 1.2, each.client_id
            assert proxy.metric("kquota_throttled_requests_total", client_id=each.client_id) > 0
        wait_for_bytes(proxy, LOAD_BYTES, kind="produce", user="alice", client_id="app")
        subject = "CN=web,OU=tests,O=kquota"
        wait_for_bytes(proxy, LOAD_BYTES, kind="produce", user=subject, client_id="web")
        assert proxy.metric("kquota_addresses_rewritten_total") == 0
        assert proxy.metric("kquota_tls_handshakes_total", peer="client") > 1
        assert proxy.metric("kquota_tls_handshakes_total", peer="broker") > 1
        assert proxy.metric("kquota_passthrough_bytes_total") == 0
        assert proxy.metric("kquota_connections_closed_total", reason="loop") == 0
        before = proxy.metric("kquota_tls_handshakes_total")
        plain = load(cluster, "PLAINTEXT", f"{topic}-plain", "plain", RECORD_BYTES)
        produce_one(plain)
        wait_for_bytes(proxy, RECORD_BYTES, client_id="plain")
        assert proxy.metric("kquota_tls_handshakes_total") == before, "what comes in plain goes on in plain"


def test_upstream_tls_alone_encrypts_plain_connections(
    machine: Namespace, cluster: KafkaCluster, authority: Authority, topic: str
) -> None:
    with intercepting(machine, upstream_tls={"ca_file": str(authority.certificate)}) as proxy:
        plain = load(cluster, "SSL", topic, "plain", RECORD_BYTES)
        produce_one(plain)
        wait_for_bytes(proxy, RECORD_BYTES, client_id="plain")
        assert proxy.metric("kquota_passthrough_bytes_total") == 0
        handshakes = proxy.metric("kquota_tls_handshakes_total", peer="broker")
        encrypted = load(cluster, "SSL", topic, "unread", RECORD_BYTES, **encrypting(authority))
        produce_one(encrypted)
        until(lambda: proxy.metric("kquota_passthrough_bytes_total") > RECORD_BYTES)
        assert proxy.metric("kquota_tls_handshakes_total", peer="client") == 0
        assert proxy.metric("kquota_tls_handshakes_total", peer="broker") == handshakes


def test_without_a_key_tls_is_passed_through_under_byte_quotas(
    machine: Namespace, cluster: KafkaCluster, authority: Authority, topic: str
) -> None:
    """All such connections share the pod's counters: what one client sends and fetches, held at both rates."""
    with intercepting(machine, identity={"sources": ["static"], "static": "pod"}) as proxy:
        size_bytes = 600_000  # of which the window lets at most 400 000 pass at once
        there = load(cluster, "SSL", topic, "unread", size_bytes, **encrypting(authority))
        for work, kind in ((produce_confluent, "produce"), (consume_confluent, "fetch")):
            timeline = in_background(work, there).result(2 * LIMIT_S)
            timeline.assert_complete(there)
            assert timeline.duration_s > 0.9 * (size_bytes - 2 * RATE) / RATE, kind
            assert timeline.throttle == {}, "it cannot be announced"
            assert proxy.metric("kquota_throttled_requests_total", cause=kind, user="pod") > 0
            assert proxy.metric("kquota_passthrough_bytes_total", kind=kind) > size_bytes
            wait_for_bytes(proxy, size_bytes, kind=kind, user="pod", client_id="")
        assert proxy.metric("kquota_requests_total") == 0, "requests are not seen"
        assert proxy.metric("kquota_tls_handshakes_total") == 0
