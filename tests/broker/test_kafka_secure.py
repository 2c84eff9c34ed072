"""The secured test cluster itself, without a sidecar: logins and ACLs are in force at each of its listeners."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from deploy.kafka import KafkaCluster
from tests.support.certificates import Authority
from tests.support.secure_tools import CLOSED, PASSWORDS


def send(cluster: KafkaCluster, listener: str, topic: str, **settings: Any) -> None:
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap_of(listener), security_protocol=listener, max_block_ms=10_000, **settings
    )
    try:
        producer.send(topic, b"x").get(timeout=20)
    finally:
        producer.close(timeout=5)


def test_logins_and_acls_are_in_force(kafka_secure: KafkaCluster, authority: Authority, topic: str) -> None:
    web = authority.issue("web", common_name="web")
    tls = {"ssl_cafile": str(authority.certificate)}
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "alice"}
    right = {**login, "sasl_plain_password": PASSWORDS["alice"]}
    ways: dict[str, dict[str, Any]] = {
        "SASL_PLAINTEXT": right,
        "SASL_SSL": tls | right,
        "SSL": {**tls, "ssl_certfile": str(web.chain), "ssl_keyfile": str(web.key)},
    }
    for listener, settings in ways.items():
        send(kafka_secure, listener, topic, **settings)
        with pytest.raises(TopicAuthorizationFailedError):
            send(kafka_secure, listener, CLOSED + topic, **settings)
    with pytest.raises(KafkaError):
        send(kafka_secure, "SASL_PLAINTEXT", topic, **login, sasl_plain_password="wrong", bootstrap_timeout_ms=4000)
