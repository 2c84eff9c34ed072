"""Where the attacks take place: a real broker with plain, TLS and SASL listeners, a real `kquota run` per door."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from benchmarks.evasion import frames
from benchmarks.evasion.rows import KERBEROS_USER, Row
from benchmarks.evasion.wire import Address
from benchmarks.rig.frames import fetch_frame
from benchmarks.rig.runner import BROKER_SETTINGS, SHM
from benchmarks.rig.topics import create_topics
from tests.lab.kafka import DEFAULT_LISTENERS, BrokerSecurity, KafkaCluster, SecureListener, run_tool, start_tool
from tests.lab.kafka.jmx import JMX, _address
from tests.lab.kafka.tools import QUICK_JVM
from tests.support.certificates import Authority, Issued
from tests.support.kerberos import Realm, realm
from tests.support.raw_client import RawClient, alter_quotas
from tests.support.sidecars import Sidecar, sidecar

PASSWORD = "pw-evasion-7a10"
REAUTH_MS = 60_000
"""Lets clients of the SASL door log in again on a connection whenever they like."""
HEAP = ("-Xms256m", "-Xmx2g")
MAX_REQUEST_BYTES = 104_857_600
FILL_BYTES = 20_000
FILL_LIMIT_S = 30.0
FETCHED_BATCHES, SHARED_BATCHES = 64, 2000
DRAIN_S = 3
"""What attackers have left behind is not waited for."""
NEIGHBOUR = "neighbour"
OWN_USER = "kquota"
KERBEROS_SERVICE = "kafka/localhost"
LISTENERS = {"plain": None, "tls": "SSL", "certificate": "SSL", "sasl": "SASL_AGAIN", "kerberos": "SASL_KERBEROS"}


@dataclass
class Stage:
    """A broker with all its listeners; sidecars come and go."""

    cluster: KafkaCluster
    authority: Authority
    certificate: Issued
    folder: Path
    kerberos: Realm | None = None
    certificates: dict[str, Issued] = field(default_factory=dict)
    """Of clients, by row."""
    prepared: set[str] = field(default_factory=set)

    def broker(self, door: str) -> Address:
        """Where the broker itself listens. Raises KeyError where it has no such door (`ipv6`)."""
        listener = LISTENERS[door]
        (bootstrap,) = self.cluster.bootstrap if listener is None else self.cluster.bootstrap_of(listener)
        host, _, port = bootstrap.rpartition(":")
        return host, int(port)

    # ---- topics

    def prepare(self, rows: Sequence[Row], prefix: str) -> dict[str, str]:
        """Topics of the rows, filled where they are to be read; their ids by row."""
        wanted = {row.name: prefix + row.name for row in rows} | {"": NEIGHBOUR}
        fresh = {name: topic for name, topic in wanted.items() if topic not in self.prepared}
        produced = {"retention.ms": "-1", "retention.bytes": "50000000", "segment.bytes": "150000000"}
        by_name = {row.name: row for row in rows}
        topics = {}
        for name, topic in fresh.items():
            reads = name in by_name and by_name[name].attack in ("fetch", "share")
            topics[topic] = {"retention.ms": "-1"} if reads else produced
        if topics:
            create_topics(self.cluster.bootstrap, topics)
        self.prepared |= set(fresh.values())
        ids = {}
        with RawClient(self.cluster.bootstrap[0], "prepare") as client:
            for name, topic in wanted.items():
                ids[name] = client.topic(topic).id.hex
        for row in rows:
            if row.attack in ("fetch", "share") and row.name in fresh:
                self._fill(prefix + row.name, SHARED_BATCHES if row.attack == "share" else FETCHED_BATCHES)
                if row.attack == "share":
                    self._make_share_group(f"group-{prefix}{row.name}", prefix + row.name)
        if any(row.flavour == "transactional" for row in rows):
            self._make_coordinator()
        if any(row.member for row in rows):
            self._make_group_coordinator()
        return ids

    def _fill(self, topic: str, batches: int) -> None:
        frame, left = frames.produce(topic, FILL_BYTES, "prepare"), batches
        until = time.monotonic() + FILL_LIMIT_S
        with RawClient(self.cluster.bootstrap[0], "prepare") as client:
            while left:
                client.send(frame)
                error = frames.produce_error(topic, client.read_frame().payload)
                left -= not error
                if error:  # its leader is not there yet
                    assert time.monotonic() < until, f"{topic} cannot be filled: error {error}"
                    time.sleep(0.1)
            # The broker counts what leaves it by topic from the first fetch on.
            client.send(fetch_frame(4, topic, uuid.UUID(int=0), 1, "prepare"))
            client.read_frame()

    def _make_share_group(self, group: str, topic: str) -> None:
        """From the topic's beginning; a first member of it lets the broker keep its state."""
        bootstrap = ["--bootstrap-server", self.cluster.bootstrap[0]]
        arguments = [*bootstrap, "--alter", "--entity-type", "groups", "--entity-name", group]
        arguments += ["--add-config", "share.auto.offset.reset=earliest"]
        run_tool("kafka.admin.ConfigCommand", arguments, self.cluster.version)
        arguments = [*bootstrap, "--group", group, "--topic", topic, "--max-messages", "1", "--timeout-ms", "15000"]
        run_tool("org.apache.kafka.tools.consumer.ConsoleShareConsumer", arguments, self.cluster.version)

    def _make_coordinator(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap, transactional_id="prepare")
        producer.init_transactions()
        producer.close()

    def _make_group_coordinator(self) -> None:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(NEIGHBOUR, bootstrap_servers=self.cluster.bootstrap, group_id="prepare")
        until = time.monotonic() + FILL_LIMIT_S
        while not consumer.assignment():
            assert time.monotonic() < until, "no group can be joined"
            consumer.poll(100)
        consumer.close()

    def token_of(self, user: str) -> tuple[str, str]:
        """(id, HMAC) of a new delegation token."""
        properties = self.folder / f"{user}.properties"
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required "
        login += f'username="{user}" password="{PASSWORD}";'
        properties.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n"
        )
        (bootstrap,) = self.cluster.bootstrap_of("SASL_AGAIN")
        arguments = ["--bootstrap-server", bootstrap, "--command-config", str(properties), "--create"]
        arguments += ["--max-life-time-period", "-1"]
        done = run_tool("org.apache.kafka.tools.DelegationTokenCommand", arguments, self.cluster.version)
        ((token, secret, *_),) = (line.split() for line in done.stdout.splitlines() if f"User:{user}" in line)
        return token, secret

    # ---- quotas of the broker itself

    def limit_at_the_broker(self, rows: Sequence[Row], prefix: str) -> None:
        """The rows' quotas as the broker's own."""
        entries = []
        for quota in (quota for row in rows for quota in row.quotas(prefix)):
            (*entity, (key, value)) = quota.items()
            names = [(kind, None if name == "<default>" else str(name)) for kind, name in entity]
            entries.append((names, [(key, float(value))]))
        with RawClient(self.cluster.bootstrap[0], "prepare") as client:
            answers = alter_quotas(client, entries)
        assert not any(error for error, *_ in answers), answers

    # ---- what the broker says of itself

    @contextmanager
    def bytes_out(self, file: Path) -> Iterator[None]:
        """Kafka's JmxTool writes what the broker has sent by topic into `file`, a line per second."""
        (node,) = self.cluster.nodes
        arguments = ["--jmx-url", _address(node), "--reporting-interval", "1000", "--attributes", "Count"]
        arguments += ["--object-name", "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic=*"]
        with (
            file.open("w") as out,
            start_tool(
                "org.apache.kafka.tools.JmxTool", arguments, self.cluster.version, stdout=out, stderr=subprocess.DEVNULL
            ) as process,
        ):
            try:
                yield
            finally:
                process.terminate()
                process.wait(10)


def topic_counts(file: Path, topics: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Bytes sent since the first line, by topic; (seconds since the epoch, bytes)."""
    lines = file.read_text().splitlines()
    if len(lines) < 2:
        return {}
    names = [cell.strip('"') for cell in re.findall(r'"[^"]*"', lines[0])]
    columns = {}
    for index, name in enumerate(names):
        found = re.search(r"topic=([^,:]+)", name)
        if found and found[1] in topics:
            columns[found[1]] = index
    table = [[float(cell) for cell in line.split(",")] for line in lines[1:] if line.count(",") == len(names) - 1]
    return {topic: [(row[0] / 1000, row[index] - table[0][index]) for row in table] for topic, index in columns.items()}


@contextmanager
def stage(rows: Sequence[Row]) -> Iterator[Stage]:
    """The broker, ready for all of these rows."""
    users = [row.user for row in rows if row.door == "sasl"]
    certified = [row for row in rows if row.door == "certificate"]
    with ExitStack() as stack:
        place = SHM if SHM.is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kquota-evasion-", dir=place)))
        authority = Authority(folder)
        certificate = authority.issue("broker", "127.0.0.1", "localhost", common_name="broker")
        reauth = {"connections.max.reauth.ms": str(REAUTH_MS)}
        listeners = [*DEFAULT_LISTENERS, SecureListener("SASL_AGAIN", "SASL_PLAINTEXT", reauth)]
        kerberos = None
        if any(row.door == "kerberos" for row in rows):
            kerberos = stack.enter_context(realm(folder, KERBEROS_USER, KERBEROS_SERVICE))
            listeners.append(
                SecureListener(
                    "SASL_KERBEROS",
                    "SASL_PLAINTEXT",
                    {
                        **reauth,
                        "sasl.enabled.mechanisms": "GSSAPI",
                        "sasl.kerberos.service.name": "kafka",
                        "gssapi.sasl.jaas.config": kerberos.jaas(KERBEROS_SERVICE),
                    },
                )
            )
        every = dict.fromkeys((*users, *(f"other-{user[2:]}" for user in users), OWN_USER), PASSWORD)
        security = BrokerSecurity(
            every,
            listeners,
            certificate=certificate.both,
            authority=authority.certificate,
            super_users=[*every, KERBEROS_USER, *(row.user for row in certified)],
            token_secret="secret-of-delegation-tokens",
        )
        cluster = stack.enter_context(
            KafkaCluster.start(
                1,
                directory=folder / "kafka",
                overrides=BROKER_SETTINGS | {"message.max.bytes": str(MAX_REQUEST_BYTES)},
                security=security,
                jvm=(*QUICK_JVM, *HEAP, *JMX, *(() if kerberos is None else kerberos.jvm)),
            )
        )
        issued = {row.name: authority.issue_subject(row.name, _subject(row.user)) for row in certified}
        yield Stage(cluster, authority, certificate, folder, kerberos, issued)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name.removeprefix("CN="))])


@contextmanager
def sidecars(
    on: Stage,
    rows: Mapping[str, Sequence[Row]],
    *,
    owners: dict[str, str],
    window_num: int,
    settings: dict[str, Any] | None = None,
) -> Iterator[dict[str, Sidecar]]:
    """A sidecar for each door that the rows come through, and the plain one in any case; counters are new. `rows`: by
    their prefix."""
    common: dict[str, Any] = {
        "log": {"level": "warning", "format": "json"},
        "metrics": {"max_groups": 5000},
        "drain_timeout_s": DRAIN_S,
        "quota.window.num": window_num,
        "controller.quota.window.num": window_num,
    } | (settings or {})
    with ExitStack() as stack:
        running = {}
        for door in sorted({"plain"} | {row.door for some in rows.values() for row in some}):
            by_prefix = ((prefix, row) for prefix, some in rows.items() for row in some if row.door == door)
            quotas = [quota for prefix, row in by_prefix for quota in row.quotas(prefix)]
            host, port = on.broker(door if door in ("sasl", "kerberos") else "plain")
            more: dict[str, Any] = {}
            if door in ("tls", "certificate"):
                more["listen_tls"] = {
                    "certificate_file": str(on.certificate.chain),
                    "key_file": str(on.certificate.key),
                }
            match door:
                case "certificate":
                    more["listen_tls"] |= {
                        "ssl.client.auth": "required",
                        "client_ca_file": str(on.authority.certificate),
                    }
                    more["identity"] = {"sources": ["tls"]}
                case "sasl":
                    more["identity"] = {"sources": ["sasl"], "sasl": {"token_owners": owners}}
                case "kerberos":
                    more["identity"] = {"sources": ["sasl"], "sasl": {"unknown_user": KERBEROS_USER}}
                case "ipv6":
                    more["listen"] = {"host": "::"}
            running[door] = stack.enter_context(sidecar([f"{host}:{port}"], quotas, **common, **more))
        yield running


def charged(running: dict[str, Sidecar], rows: Sequence[Row], prefix: str) -> dict[str, float]:
    """What the sidecars say was charged to each row: bytes, percent-seconds, partitions."""
    pattern = re.compile(r"^(kquota_\w+_total)\{(.*)\} (\S+)$", re.MULTILINE)
    texts = {door: pattern.findall(one.metrics()) for door, one in running.items()}
    found = {}
    for row in rows:
        name, kind = {
            "produce": ("kquota_bytes_total", 'kind="produce"'),
            "fetch": ("kquota_bytes_total", 'kind="fetch"'),
            "share": ("kquota_bytes_total", 'kind="fetch"'),
            "requests": ("kquota_request_seconds_total", ""),
            "mutations": ("kquota_mutations_total", ""),
        }[row.attack]
        by_user = row.user and row.door != "kerberos"
        whose = f'user="{row.user}"' if by_user else f'client_id="{prefix}{row.name}'
        if row.flavour != "names" and not by_user:
            whose += '"'
        total = sum(
            float(value)
            for metric, labels, value in texts[row.door]
            if metric == name and kind in labels and whose in labels
        )
        found[row.name] = total * (100.0 if row.attack == "requests" else 1.0)
    return found
