"""GSSAPI through the sidecar: a Kerberos server, a broker that takes nothing else, and Kafka's Java clients."""

from __future__ import annotations

from pathlib import Path

from deploy.kafka import KafkaCluster, SecureListener, Security, run_tool
from deploy.kafka.cluster import BROKER_HEAP
from deploy.kafka.tools import QUICK_JVM, TOOL_HEAP
from tests.corpus.job import wait_for
from tests.support.kerberos import realm
from tests.support.sidecars import sidecar

SERVICE, CLIENT, FALLBACK = "kafka/localhost", "alice", "kerberos-users"
RECORDS = [f"record {number}" for number in range(20)]


def test_gssapi_passes_and_is_charged_to_the_stated_user(tmp_path: Path, topic: str) -> None:
    """The broker knows the client as alice, its only super user but the operator; the wire does not show that name."""
    with realm(tmp_path, SERVICE, CLIENT) as kerberos:
        properties = {"gssapi.sasl.jaas.config": kerberos.jaas(SERVICE), "sasl.kerberos.service.name": "kafka"}
        listener = SecureListener("SASL_GSSAPI", "SASL_PLAINTEXT", properties)
        security = Security({}, (listener,), super_users=[CLIENT], mechanisms=("GSSAPI",))
        jvm = (*QUICK_JVM, *BROKER_HEAP, *kerberos.jvm)
        with (
            KafkaCluster.start(1, progress=print, security=security, jvm=jvm) as cluster,
            sidecar(
                cluster.bootstrap_of("SASL_GSSAPI"),
                [{"user": FALLBACK, "producer_byte_rate": 50_000_000}],
                listen={"advertised_host": "localhost"},  # Kerberos' service is kafka/localhost
                identity={"sasl": {"unknown_user": FALLBACK}},
            ) as running,
        ):
            settings = {
                "client.id": "java",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": kerberos.jaas(CLIENT),
            }
            arguments = ["--bootstrap-server", f"localhost:{running.port}", "--topic", topic]
            for name, value in settings.items():
                arguments += ["--command-property", f"{name}={value}"]
            tools = (*QUICK_JVM, *TOOL_HEAP, *kerberos.jvm)
            produce = ["--request-timeout-ms", "30000", *arguments]
            lines = "".join(line + "\n" for line in RECORDS)
            made = run_tool("org.apache.kafka.tools.ConsoleProducer", produce, stdin=lines, jvm=tools)
            consume = [*arguments, "--from-beginning", "--max-messages", str(len(RECORDS)), "--timeout-ms", "60000"]
            read = run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", consume, timeout_s=90.0, jvm=tools)
            assert sorted(read.stdout.split("\n")[:-1]) == sorted(RECORDS), made.stderr
            for kind in ("produce", "fetch"):
                wait_for(
                    f"what was charged for {kind}",  # metrics follow within a second
                    lambda kind=kind: (
                        running.metric("kquota_bytes_total", kind=kind, user=FALLBACK) > len("".join(RECORDS))
                    ),
                    10.0,
                )
                charged = running.metric("kquota_bytes_total", kind=kind, user=FALLBACK)
                assert charged == running.metric("kquota_bytes_total", kind=kind), "charged to others"
            assert CLIENT not in running.metrics(), "whoever reads GSSAPI's messages"
