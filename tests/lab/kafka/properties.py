"""The configuration of a test broker: all on 127.0.0.1, quick to start and to rebalance, generous with sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lab.kafka.security import BrokerSecurity

# Room for the 20 MB messages of the transparency tests, with headers and batch overhead.
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
LOOPBACK = "127.0.0.1"


def address_text(host: str, port: int) -> str:
    """`host:port` as bootstrap.servers and listeners have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ExtraListener(NamedTuple):
    """A further listener of a broker, for clients that connect through something in between (a proxy, a tunnel)."""

    name: str
    """Letters, digits and underscores, in capitals as Kafka's own listener names are."""
    port: int
    advertised_port: int
    protocol: str = "PLAINTEXT"
    """Or SSL; then the broker needs the properties of its certificate."""


def broker_properties(
    *,
    version: str,
    node_id: int,
    host: str,
    port: int,
    voters: Mapping[int, int],
    data: Path,
    overrides: Mapping[str, str],
    extra_listeners: Sequence[ExtraListener],
    security: BrokerSecurity | None,
    secure_ports: Mapping[str, int],
) -> dict[str, str]:
    """`server.properties` of one node; a voter runs broker and controller in one JVM, any other node only a broker.
    `voters` has the controller's port of each voter, by id; `secure_ports` has one for each listener of `security`."""
    controller_port = voters.get(node_id)
    listeners = [f"PLAINTEXT://{address_text(host, port)}"]
    if controller_port is not None:
        listeners.append(f"CONTROLLER://127.0.0.1:{controller_port}")
    advertised = listeners[:1] + [f"{extra.name}://127.0.0.1:{extra.advertised_port}" for extra in extra_listeners]
    listeners += [f"{extra.name}://127.0.0.1:{extra.port}" for extra in extra_listeners]
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    protocols |= {extra.name: extra.protocol for extra in extra_listeners}
    if security is not None:
        secure = [f"{one.name}://{address_text(host, secure_ports[one.name])}" for one in security.listeners]
        advertised += secure
        listeners += secure
        protocols |= {one.name: one.protocol for one in security.listeners}
    replicas = str(len(voters))
    properties = {
        "process.roles": "broker" if controller_port is None else "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{at}" for voter, at in voters.items()),
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # Topics: created at first use, as many replicas as the cluster was planned with, never waiting for a second
        # one.
        "auto.create.topics.enable": "true",
        "num.partitions": "1",
        "default.replication.factor": replicas,
        "min.insync.replicas": "1",
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        # Kafka's own topics: few partitions, because each costs time when the topic is created at first use.
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": replicas,
        "offsets.commit.timeout.ms": "30000",  # on a busy machine 5 s are over before the broker has written
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        # Groups: no waiting for more members, heartbeats and session timeouts as short as a test wants.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.session.timeout.ms": "1000",
        # Three brokers: leaders are found and missed quickly, yet not so quickly that a busy two-core machine loses
        # them.
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.election.backoff.max.ms": "200",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000",
        # Clusters that are kept for later tests: an idle quorum writes something twice a second (default 500), which is
        # two fifths of the 2.4 % of a core that an idle broker uses.
        "metadata.max.idle.interval.ms": "10000",
        # Small JVMs: the cleaner alone would take 128 MB of the heap (default 134217728).
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
    if version.startswith("3."):
        # KIP-848's protocol exists, but is not enabled by default before 4.0.
        properties["group.coordinator.rebalance.protocols"] = "classic,consumer"
    else:
        properties |= {
            "share.coordinator.state.topic.num.partitions": "3",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            "group.share.min.heartbeat.interval.ms": "200",
            "group.share.heartbeat.interval.ms": "500",
            "group.share.min.session.timeout.ms": "1000",
        }
    if security is not None:
        properties |= security.properties()
    return properties | dict(overrides)


def format_features(version: str) -> list[str]:
    """Features to switch on when formatting: share groups (KIP-932) where the version has them for general use."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return ["share.version=1"] if (major, minor) >= (4, 2) else []


def to_text(properties: Mapping[str, str]) -> str:
    """Java's properties format; of our characters only backslashes would need escaping."""
    return "".join(f"{key}={value}\n" for key, value in properties.items()).replace("\\", "\\\\")
