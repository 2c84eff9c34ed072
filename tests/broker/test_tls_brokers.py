"""TLS with a real broker and real clients: who is charged, what is refused and how, large records, throttling."""

import socket
import ssl
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID as Oid

from proxy.core.wire.messages import framed, request_header
from proxy.net.tls import channel
from proxy.net.tls.certificates import in_pem, subject
from proxy.net.tls.contexts import ClientTls
from proxy.net.tls.principal import NoRuleError, PrincipalRules
from proxy.net.upstream.cluster import Access, ClusterError, ask_brokers
from tests.lab.kafka import KafkaCluster
from tests.support.certificates import Authority, Issued
from tests.support.clients import CONSUMERS, LIBRARIES, PRODUCERS, Load
from tests.support.raw_client import API_VERSIONS_0
from tests.support.records import produce, subscribed
from tests.support.secure_tools import RULES
from tests.support.session_tools import decode, encode, kio_message
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import LIMIT_S, until

CREATE_TOKEN = 38
Pair = tuple[x509.ObjectIdentifier, str]


def _name(*parts: Pair | list[Pair]) -> x509.Name:
    """Of these attributes; those in a list stand at one place."""
    places = [[x509.NameAttribute(*pair) for pair in (part if isinstance(part, list) else [part])] for part in parts]
    return x509.Name([x509.RelativeDistinguishedName(place) for place in places])


AS_BYTES = x509.NameAttribute(Oid.COMMON_NAME, "zwei", _ASN1Type.BMPString)
SUBJECTS = {
    "usual": _name(
        (Oid.COUNTRY_NAME, "DE"),
        (Oid.STATE_OR_PROVINCE_NAME, "Bayern"),
        (Oid.LOCALITY_NAME, "München"),
        (Oid.ORGANIZATION_NAME, "Acme, Inc."),
        (Oid.ORGANIZATIONAL_UNIT_NAME, "eng"),
        (Oid.COMMON_NAME, "alice"),
    ),
    "no-name-of-its-own": _name(
        (Oid.COMMON_NAME, "web.shop"),
        (Oid.EMAIL_ADDRESS, "web@example.com"),
        (Oid.SERIAL_NUMBER, "42"),
        (Oid.TITLE, "größte"),
    ),
    "escapes": _name(
        (Oid.COMMON_NAME, ' #a,b+c"d\\e<f>g;h=i/ü '),
        (Oid.ORGANIZATIONAL_UNIT_NAME, "#1"),
        (Oid.ORGANIZATION_NAME, "   "),
    ),
    "several-at-once": _name(
        [(Oid.COMMON_NAME, "bob"), (Oid.USER_ID, "b1"), (Oid.ORGANIZATIONAL_UNIT_NAME, "z")],
        (Oid.DOMAIN_COMPONENT, "example"),
        (Oid.STREET_ADDRESS, "Main St. 1"),
    ),
    "shop-dots": _name((Oid.ORGANIZATION_NAME, "o"), (Oid.COMMON_NAME, "Web.Shop")),
    "uid": _name((Oid.USER_ID, "carol")),
    "two-bytes": x509.Name([AS_BYTES]),
}

OF_NEWER_JAVA = {"two-bytes": "CN=zwei"}
"""Where Java changed its mind: 17.0.21.1 reads a BMPString as text, older Javas and `subject` as bytes."""


@pytest.fixture(scope="module")
def own(authority: Authority) -> Issued:
    """The sidecar's certificate, for both sides."""
    return authority.issue("kquota", "127.0.0.1", "localhost", common_name="kquota")


def listen_tls(own: Issued, authority: Authority) -> dict[str, Any]:
    asks = {"ssl.client.auth": "required", "client_ca_file": str(authority.certificate)}
    return {"certificate_file": str(own.chain), "key_file": str(own.key)} | asks


def upstream_tls(authority: Authority, own: Issued | None = None) -> dict[str, Any]:
    pair = {} if own is None else {"certificate_file": str(own.chain), "key_file": str(own.key)}
    return {"ca_file": str(authority.certificate)} | pair


def through_tls(
    cluster: KafkaCluster, listener: str, *, listen: dict[str, Any] | None, upstream: dict[str, Any] | None, **more: Any
) -> Any:
    """A sidecar in front of one listener; TLS on either side, or not."""
    quotas = [{"user": "<default>", "producer_byte_rate": 100_000_000}]
    return sidecar(bootstrap(cluster, listener), quotas, listen_tls=listen, upstream_tls=upstream, **more)


def bootstrap(cluster: KafkaCluster, listener: str) -> list[str]:
    return list(cluster.bootstrap if listener == "PLAINTEXT" else cluster.bootstrap_of(listener))


def whoami(address: str, authority: Authority, issued: Issued) -> str:
    """The principal's name as the broker has it: the owner of a delegation token that it is asked for."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(issued.chain, issued.key)
    kio = kio_message("create_delegation_token", 2, "request")
    body = encode(kio.CreateDelegationTokenRequest(renewers=(), max_lifetime=timedelta(hours=1)))
    with (
        socket.create_connection((host, int(port)), timeout=LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
        secured.makefile("rb") as file,
    ):
        secured.sendall(framed(request_header(CREATE_TOKEN, 2, 1, "who") + body))
        frame = file.read(int.from_bytes(file.read(4), "big"))
    assert frame, "the connection was closed"
    answer = decode(kio_message("create_delegation_token", 2, "response").CreateDelegationTokenResponse, frame[5:])
    assert int(answer.error_code) == 0, answer
    return str(answer.principal_name)


def test_names_are_the_brokers_own(kafka_secure: KafkaCluster, authority: Authority) -> None:
    """Subjects of all kinds: the same text here and at the broker, with mapping rules too; some are refused."""
    rules = PrincipalRules(RULES)
    (direct,), (mapped,) = kafka_secure.bootstrap_of("SSL"), kafka_secure.bootstrap_of("MAPPED")
    refused = 0
    for name, subject_name in SUBJECTS.items():
        issued = authority.issue_subject(name, subject_name)
        here = subject(in_pem(issued.chain.read_text())[0])
        there = whoami(direct, authority, issued)
        assert there in (here, OF_NEWER_JAVA.get(name)), name
        try:
            user = rules.user(there)
        except NoRuleError:
            refused += 1
            with pytest.raises((OSError, AssertionError)):
                whoami(mapped, authority, issued)
        else:
            assert user == whoami(mapped, authority, issued), name
    assert 0 < refused < len(SUBJECTS) - 2


def settings_of(client: str, authority: Authority, web: Issued) -> dict[str, Any]:
    ca, chain, key = str(authority.certificate), str(web.chain), str(web.key)
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(chain, key)
    found: dict[str, dict[str, Any]] = {
        "kafka-python": {"security_protocol": "SSL", "ssl_cafile": ca, "ssl_certfile": chain, "ssl_keyfile": key},
        "aiokafka": {"security_protocol": "SSL", "ssl_context": context},
        "confluent-kafka": {
            "security.protocol": "ssl", "ssl.ca.location": ca, "ssl.certificate.location": chain,
            "ssl.key.location": key,
        },
        "java-console": {
            "security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": ca,
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(web.both),
        },
    }  # fmt: skip
    return found[client]


@pytest.fixture(scope="module")
def web(authority: Authority) -> Issued:
    return authority.issue_subject("web", SUBJECTS["shop-dots"])


USER = r"CN=Web.Shop,O=o"


def there_and_back(
    running: Sidecar, cluster: KafkaCluster, client: str, topic: str, settings: dict[str, Any], user: str
) -> None:
    """Records of many times what TLS records and buffers hold, charged to this user both ways."""
    before = running.metric("kquota_bytes_total", user=user)
    load = Load([running.bootstrap], f"{topic}-{client}", client, 4, 900_000, LIMIT_S, settings, cluster.bootstrap)
    for work in (PRODUCERS[client], CONSUMERS[client]):
        work(load).assert_complete(load)
    moved = 2 * load.total_bytes
    until(lambda: running.metric("kquota_bytes_total", user=user) - before > moved)


def test_clients_by_tls_to_a_broker_by_tls(
    kafka_secure: KafkaCluster, authority: Authority, own: Issued, web: Issued, topic: str
) -> None:
    """Every library; each is charged to the user of its certificate, and to no other. The broker sees the sidecar's."""
    listen, upstream = listen_tls(own, authority), upstream_tls(authority, own)
    with through_tls(kafka_secure, "SSL", listen=listen, upstream=upstream) as running:
        for client in LIBRARIES:
            there_and_back(running, kafka_secure, client, topic, settings_of(client, authority, web), USER)
        assert running.metric("kquota_bytes_total", user="ANONYMOUS") == 0
        assert running.metric("kquota_parse_errors_total") == 0
        assert whoami(running.bootstrap, authority, web).startswith("CN=kquota,")
        assert running.metric("kquota_tls_certificate_expiry_timestamp_seconds", setting="listen.tls") > time.time()
        with pytest.raises((OSError, AssertionError)):
            whoami(running.bootstrap, authority, authority.issue("late", common_name="late", expired=True))
        failures = {"peer": "client", "reason": "certificate"}
        until(lambda: running.metric("kquota_tls_handshake_failures_total", **failures) == 1)


def test_each_side_may_be_plain(
    kafka_secure: KafkaCluster, authority: Authority, own: Issued, web: Issued, topic: str
) -> None:
    with through_tls(kafka_secure, "PLAINTEXT", listen=listen_tls(own, authority), upstream=None) as running:
        settings = settings_of("confluent-kafka", authority, web)
        there_and_back(running, kafka_secure, "confluent-kafka", topic, settings, USER)
        assert channel.DESCRIPTION in running.log.read_text().replace("\\'", "'")
    identity = {"sources": ["tls", "static"], "static": "pod"}
    with through_tls(
        kafka_secure, "SSL", listen=None, upstream=upstream_tls(authority, own), identity=identity
    ) as running:
        there_and_back(running, kafka_secure, "kafka-python", topic, {}, "pod")


def test_a_broker_that_is_not_believed_or_does_not_believe_us(
    kafka_secure: KafkaCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The error that readiness shows and the log has, in the words of the one who refuses."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    expired = authority.issue("expired", common_name="kquota", expired=True)
    pair = expired.pair
    cases = [
        ("SSL", ClientTls(authorities=stranger.certificate), "is its authority in upstream.tls.ca_file?"),
        ("SSL", ClientTls(authorities=authority.certificate, server_name="elsewhere.example"), "server_name can name"),
        ("MAPPED", ClientTls(authorities=authority.certificate), "the broker refused the TLS handshake"),
        ("MAPPED", ClientTls(authorities=authority.certificate, pair=pair), "the broker refused the TLS handshake"),
        ("PLAINTEXT", ClientTls(authorities=authority.certificate), "the broker"),
        ("SSL", None, "the broker speaks TLS here, but upstream.tls is not set"),
    ]
    for listener, tls, reason in cases:
        (address,) = bootstrap(kafka_secure, listener)
        host, _, port = address.rpartition(":")
        with pytest.raises(ClusterError) as refused:
            trio.run(ask_brokers, host, int(port), Access(LIMIT_S, tls))
        assert reason in str(refused.value), (listener, refused.value)


def test_logs_a_brokers_alert_after_the_handshake(kafka_secure: KafkaCluster, authority: Authority) -> None:
    text = "broker connection failed: the broker sent the TLS alert certificate required (see upstream.tls)"
    with sidecar(
        kafka_secure.bootstrap_of("MAPPED"), upstream_tls=upstream_tls(authority), not_ready="certificate required"
    ) as running:

        def logged() -> bool:
            with socket.create_connection(("127.0.0.1", running.port), timeout=LIMIT_S) as client:
                client.sendall(API_VERSIONS_0)
                with suppress(ConnectionError):
                    assert client.recv(1) == b""
            return any(line["error"] == text for line in running.logged("connection closed"))

        until(logged)


def test_usage_records_reach_their_topic_by_tls(
    kafka_secure: KafkaCluster, authority: Authority, own: Issued, topic: str
) -> None:
    """The exporter's producer shows the sidecar's certificate."""
    more = {"export": {"kafka_topic": topic, "interval_s": 1}, "identity": {"sources": ["static"], "static": "pod"}}
    with through_tls(kafka_secure, "SSL", listen=None, upstream=upstream_tls(authority, own), **more) as running:
        produce(running.bootstrap, f"{topic}-data", [b"x"])
        with subscribed(kafka_secure.bootstrap, topic, consumer_timeout_ms=int(LIMIT_S * 1000)) as consumer:
            assert b'"pod"' in next(consumer).value
