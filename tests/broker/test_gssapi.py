"""GSSAPI through the sidecar: a Kerberos server, a broker that takes nothing else, and Kafka's Java clients."""

import itertools
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from benchmarks.evasion import gssapi
from benchmarks.evasion.frames import authenticate, authenticated, handshake, handshake_error, produce, produce_error
from benchmarks.evasion.gssapi import environment
from proxy.core.wire.messages import metadata_request
from proxy.core.wire.sasl import ILLEGAL_SASL_STATE
from tests.lab.kafka import BrokerSecurity, KafkaCluster, SecureListener, run_tool
from tests.lab.kafka.cluster import BROKER_HEAP
from tests.lab.kafka.tools import QUICK_JVM, TOOL_HEAP
from tests.support.kerberos import Realm, realm
from tests.support.raw_client import ClosedByPeerError, RawClient
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

pytestmark = pytest.mark.long

SERVICE, CLIENT, FALLBACK = "kafka/localhost", "alice", "kerberos-users"
RECORDS = [f"record {number}" for number in range(20)]


@dataclass(frozen=True)
class Kerberos:
    """A realm, a broker in it that takes no other login, and a sidecar before that."""

    realm: Realm
    cluster: KafkaCluster
    sidecar: Sidecar

    @property
    def direct(self) -> str:
        (bootstrap,) = self.cluster.bootstrap_of("SASL_GSSAPI")
        return bootstrap


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberos]:
    """The broker knows the client as alice, its only super user but the operator; the wire does not show that name."""
    with realm(tmp_path_factory.mktemp("realm"), CLIENT, SERVICE) as made:
        properties = {"gssapi.sasl.jaas.config": made.jaas(SERVICE), "sasl.kerberos.service.name": "kafka"}
        listener = SecureListener("SASL_GSSAPI", "SASL_PLAINTEXT", properties)
        security = BrokerSecurity({}, (listener,), super_users=[CLIENT], mechanisms=("GSSAPI",))
        jvm = (*QUICK_JVM, *BROKER_HEAP, *made.jvm)
        with (
            KafkaCluster.start(1, progress=print, security=security, jvm=jvm) as cluster,
            sidecar(
                cluster.bootstrap_of("SASL_GSSAPI"),
                [{"user": FALLBACK, "producer_byte_rate": 50_000_000}],
                listen={"advertised": {"host": "localhost"}},  # Kerberos' service is kafka/localhost
                identity={"sasl": {"unknown_user": FALLBACK}},
            ) as running,
        ):
            yield Kerberos(made, cluster, running)


def logging_in(client: RawClient, client_id: str) -> Generator[bytes, None, None]:
    """A login with GSSAPI, message by message: the broker's answers."""
    steps, answer = gssapi.login("kafka@localhost"), None
    try:
        client.send(handshake("GSSAPI", client_id))
        assert handshake_error(client.read_frame().payload) == 0
        while answer != b"":
            client.send(authenticate(next(steps) if answer is None else steps.send(answer), client_id))
            error, answer = authenticated(client.read_frame().payload)
            assert error == 0
            yield answer
    finally:
        steps.close()


def test_request_within_login_charges_no_client(kerberos: Kerberos, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has accepted the ticket and then the empty message, and takes no request before the last message: with
    and without us it closes the connection. Nothing is charged to the user that stands for Kerberos' clients."""
    for name, value in environment(kerberos.realm.config, kerberos.realm.keytab).items():
        monkeypatch.setenv(name, value)
    running = kerberos.sidecar
    for address, rounds in itertools.product((kerberos.direct, running.bootstrap), (1, 2)):
        with RawClient(address) as client:
            login = logging_in(client, "early")
            assert all(next(login) for _ in range(rounds)), "only the last answer is empty"
            client.send(produce("any", 100_000, "early"))
            with suppress(OSError, ClosedByPeerError):
                assert produce_error("any", client.read_frame().payload) == ILLEGAL_SASL_STATE, "then it closes"
                client.read_frame()
                pytest.fail("a second answer")
            login.close()
    until(lambda: running.metric("kquota_connections_closed_total", reason="login_missing") == 2)
    assert running.metric("kquota_bytes_total", kind="produce") == 0
    # A whole one counts.
    with RawClient(running.bootstrap) as client:
        assert list(logging_in(client, "whole"))[-1] == b""
        client.send(metadata_request(1, 1, "whole"))
        client.read_frame()
        assert [one["user"] for one in running.get("/connections")["connections"]] == [FALLBACK]


def test_gssapi_passes_and_is_charged_to_the_stated_user(kerberos: Kerberos, topic: str) -> None:
    """Kafka's Java clients with a keytab."""
    running = kerberos.sidecar
    settings = {"client.id": "java", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    settings |= {"sasl.kerberos.service.name": "kafka", "sasl.jaas.config": kerberos.realm.jaas(CLIENT)}
    arguments = ["--bootstrap-server", f"localhost:{running.port}", "--topic", topic]
    for name, value in settings.items():
        arguments += ["--command-property", f"{name}={value}"]
    tools = (*QUICK_JVM, *TOOL_HEAP, *kerberos.realm.jvm)
    produce = ["--request-timeout-ms", "30000", *arguments]
    lines = "".join(line + "\n" for line in RECORDS)
    made = run_tool("org.apache.kafka.tools.ConsoleProducer", produce, stdin=lines, jvm=tools)
    consume = [*arguments, "--from-beginning", "--max-messages", str(len(RECORDS)), "--timeout-ms", "60000"]
    read = run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", consume, timeout_s=90.0, jvm=tools)
    assert sorted(read.stdout.split("\n")[:-1]) == sorted(RECORDS), made.stderr

    def charged(**labels: str) -> float:
        return running.metric("kquota_bytes_total", **labels)

    for kind in ("produce", "fetch"):
        until(lambda kind=kind: charged(kind=kind, user=FALLBACK) > len("".join(RECORDS)))  # metrics follow
        assert charged(kind=kind, user=FALLBACK) == charged(kind=kind), "charged to others"
    assert CLIENT not in running.metrics(), "a client that sends GSSAPI's messages"
