"""What a broker makes of odd login messages, and the sidecar in front of it (test_sasl_odd_tokens.py)."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from tests.corpus.job import wait_for
from tests.lab.kafka import KafkaCluster
from tests.support.raw_client import ClosedByPeerError, RawClient
from tests.support.sasl_tools import authenticate, bearer, handshake, jws
from tests.support.secure_tools import token as good_token
from tests.support.session_tools import request
from tests.support.sidecars import Sidecar, sidecar

# ---- a real broker --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(kafka_secure: KafkaCluster) -> Iterator[Sidecar]:
    with sidecar(kafka_secure.bootstrap_of("SASL_PLAINTEXT")) as running:
        yield running


def accepted(address: str, message: bytes) -> bool:
    """Whether a login by OAUTHBEARER with this first message is answered as one that has succeeded."""
    with RawClient(address) as client:
        client.send(handshake("OAUTHBEARER"))
        client.read_frame()
        client.send(authenticate(message, 1))
        try:
            (error, _, size) = struct.unpack_from(">hhi", client.read_frame().payload, 4)
            if error or size > 0:
                return False
            client.send(request(3, 1, 9, struct.pack(">i", 0)))
            return client.read_frame().correlation_id == 9
        except ClosedByPeerError:
            return False


def test_what_a_broker_accepts_and_the_sidecar_does_not(secured: Sidecar, kafka_secure: KafkaCluster) -> None:
    """Kafka's reader of unsecured tokens (Jackson) forgives byte order marks, UTF-16, trailing bytes, and takes null
    and true for their names. Through the sidecar such a token is no login."""
    (direct,) = kafka_secure.bootstrap_of("SASL_PLAINTEXT")
    exp = b',"exp":%d}' % (time.time() + 1800)

    def is_in(address: str, claims: bytes) -> bool:
        """By a token in either alphabet: versions of Kafka differ in which one they read."""
        return any(accepted(address, bearer(jws(claims, standard=standard))) for standard in (False, True))

    good = b'{"sub":"mallory"' + exp
    odd = {
        "byte order mark": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
        "trailing": good + b'{"sub":"bob"}',
        "null": b'{"sub":null' + exp,
        "true": b'{"sub":true' + exp,
        "number": b'{"sub":7' + exp,
        "list": b'{"sub":["mallory"]' + exp,
        "object": b'{"sub":{}' + exp,
        "blank": b'{"sub":" "' + exp,
        "Latin-1": '{"sub":"jos\u00e9"'.encode("latin-1") + exp,
    }
    there = {case: is_in(direct, claims) for case, claims in odd.items()}
    here = {case: is_in(secured.bootstrap, claims) for case, claims in odd.items()}
    assert {case for case, taken in there.items() if taken} == {"byte order mark", "UTF-16", "trailing", "null", "true"}
    assert set(here.values()) == {False}
    assert is_in(direct, good)
    assert is_in(secured.bootstrap, good)
    assert accepted(secured.bootstrap, bearer(good_token("mallory")))
    twice = b'{"sub":"bob","sub":"carol"' + exp  # of two the last one
    with RawClient(secured.bootstrap) as client:
        client.send(handshake("OAUTHBEARER"))
        client.read_frame()
        client.send(authenticate(bearer(jws(twice)), 1))
        client.read_frame()
        users = {one["user"] for one in secured.get("/connections")["connections"]}
    assert users & {"bob", "carol"} == {"carol"}
    wait_for(
        "the logins that name no user", lambda: secured.metric("kquota_parse_errors_total", kind="sasl_name") >= 5, 10.0
    )
    log = secured.log.read_text()
    assert "names no user" in log
    assert "mallory" not in "".join(line for line in log.splitlines() if "names no user" in line)
