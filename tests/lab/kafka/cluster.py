"""A real Kafka cluster for the demo, the tests and the benchmarks: KRaft brokers in JVMs of our own, on 127.0.0.1.

Other addresses are for network namespaces, where a broker has one of its own; controllers stay on loopback.

Thread-safety: calls on one cluster may come from several threads; starting and stopping are serialised by a lock.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.lab.kafka.errors import BrokerStartError, EmbeddedKafkaError, ToolError
from tests.lab.kafka.jars import DEFAULT_VERSION, Progress, quiet, resolve
from tests.lab.kafka.javalog import broker_arguments
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.probe import AdvertisedBroker, ProbeError, brokers_seen_by
from tests.lab.kafka.process import GuardedProcess
from tests.lab.kafka.properties import (
    LOOPBACK,
    ExtraListener,
    address_text,
    broker_properties,
    format_features,
    to_text,
)
from tests.lab.kafka.security import BrokerSecurity
from tests.lab.kafka.tools import QUICK_JVM, java_command, run_tool

BROKER_HEAP = ("-Xms128m", "-Xmx512m")
START_LIMIT_S = 60.0
POLL_S = 0.05
# From SIGTERM to SIGKILL. A cluster that is thrown away need not hand over its partitions.
STOP_LIMIT_S = 10.0
DISCARD_LIMIT_S = 2.0
LOG_TAIL_LINES = 40
PORT_ATTEMPTS = 3

_formatted: dict[tuple[object, ...], tuple[str, Path, bytes]] = {}
"""StorageTool's output in this process (meta.properties, the bootstrap records), by its arguments except ids and ports,
and the overrides: the next cluster of the same kind starts without that JVM."""


@dataclass
class Node:
    node_id: int
    host: str
    port: int
    folder: Path
    secure_ports: dict[str, int]
    process: GuardedProcess | None = None

    def __post_init__(self) -> None:
        self.log, self.console, self.data = (self.folder / name for name in ("broker.log", "console.log", "data"))

    @property
    def pid(self) -> int:
        assert self.process is not None, f"broker {self.node_id} is stopped"
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


class KafkaCluster:
    """One to many real brokers; create with `start`, use as a context manager or call `stop`.

    Every JVM ends with this process at the latest, even after SIGKILL (see guard.py).
    """

    def __init__(
        self,
        version: str,
        directory: Path | None,
        overrides: Mapping[str, str],
        progress: Progress,
        jvm: Sequence[str],
        extra_listeners: Sequence[ExtraListener],
        security: BrokerSecurity | None,
        addresses: Sequence[tuple[str, int]],
    ) -> None:
        self.version, self.security = version, security
        self.directory = directory or Path(tempfile.mkdtemp(prefix="kquota-kafka-"))
        self._discard = directory is None
        self._overrides, self._progress, self._jvm = overrides, progress, jvm
        self._extra_listeners, self._addresses = extra_listeners, addresses
        self._cluster_id = _random_id()
        self._all: dict[int, Node] = {}
        self._voters: dict[int, int] = {}
        self._lock = threading.RLock()

    @classmethod
    def start(
        cls,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        directory: Path | None = None,
        overrides: Mapping[str, str] | None = None,
        progress: Progress = quiet,
        *,
        jvm: Sequence[str] = (*QUICK_JVM, *BROKER_HEAP),
        extra_listeners: Sequence[ExtraListener] = (),
        security: BrokerSecurity | None = None,
        addresses: Sequence[tuple[str, int]] = (),
        first_id: int = 1,
        start_limit_s: float = START_LIMIT_S,
    ) -> Self:
        """Bring up a cluster and wait until every broker answers and sees all the others."""
        if extra_listeners and brokers != 1:
            raise EmbeddedKafkaError("extra listeners name fixed ports, so only a cluster of one broker can have them")
        if addresses and len(addresses) != brokers:
            raise EmbeddedKafkaError(f"{len(addresses)} addresses for {brokers} brokers")
        resolve(version, progress=progress)
        for attempt in range(1, PORT_ATTEMPTS + 1):
            cluster = cls(version, directory, overrides or {}, progress, jvm, extra_listeners, security, addresses)
            try:
                cluster._start_first(range(first_id, first_id + brokers), start_limit_s)
            except BrokerStartError as error:
                cluster.stop()
                # Another program took one of our ports between probing and binding: probe again.
                if attempt == PORT_ATTEMPTS or "Address already in use" not in str(error) or directory is not None:
                    raise
                progress("a port was taken meanwhile, choosing others")
            except BaseException:
                cluster.stop()
                raise
            else:
                return cluster
        raise AssertionError("unreachable")

    @property
    def nodes(self) -> list[Node]:
        """Those that run."""
        return [node for _, node in sorted(self._all.items()) if node.runs]

    @property
    def bootstrap(self) -> list[str]:
        return [address_text(node.host, node.port) for node in self.nodes]

    def bootstrap_of(self, listener: str) -> list[str]:
        return [address_text(node.host, node.secure_ports[listener]) for node in self.nodes]

    def node(self, node_id: int) -> Node:
        """One of them, which may have been stopped."""
        try:
            return self._all[node_id]
        except KeyError:
            raise EmbeddedKafkaError(f"no broker {node_id}; there are {sorted(self._all)}") from None

    def ended(self) -> str:
        """Brokers that ended without having been stopped: which, how, and their last output; else empty."""
        return "\n".join(
            f"broker {node.node_id} ended with code {node.process.returncode}{_tail(node)}"
            for node in self._all.values()
            if node.process is not None and node.process.poll() is not None
        )

    def stop_broker(self, node_id: int, *, kill: bool = False) -> None:
        """Stop one broker, gracefully (SIGKILL only after STOP_LIMIT_S) or as in a crash; data and port are kept."""
        with self._lock:
            node = self.node(node_id)
            if node.process is None:
                return
            if kill:
                node.process.kill()
            node.process.stop(STOP_LIMIT_S)
            node.process = None
            self._progress(f"broker {node_id} stopped")

    def start_broker(self, node_id: int, *, move: bool = False, address: tuple[str, int] | None = None) -> Node:
        """Start a stopped broker again with its data, and wait until all see it: at its old address, or (`move`) on
        another port, or at `address`."""
        with self._lock:
            node = self.node(node_id)
            if not node.runs:
                if move:
                    node.port = free_ports(1, self._ports())[0]
                if address is not None:
                    node.host, node.port = address
                if move or address is not None:
                    self._write_properties(node)
                self._launch([node], START_LIMIT_S)
            return node

    def add_broker(self, node_id: int, *, address: tuple[str, int] | None = None) -> Node:
        """Add a new node (broker only, no voter) to the running cluster; waits until every running broker sees it."""
        with self._lock:
            if node_id in self._all:
                raise EmbeddedKafkaError(f"there is a broker {node_id} already")
            node = self._new_node(node_id, self._ports(), address)
            source = next(iter(self._all.values()))
            self._all[node_id] = node
            self._write_properties(node)
            self._write_storage(node, *_read_storage(source))
            self._launch([node], START_LIMIT_S)
            return node

    def stop(self) -> None:
        """Stop every broker, by SIGKILL if need be; a temporary folder is deleted. May be called again."""
        with self._lock:
            processes = [node.process for node in self._all.values() if node.process is not None]
            for process in processes:
                process.terminate()
            # All at once: the last of several controllers cannot stop gracefully, as it has no quorum any more.
            deadline = time.monotonic() + (DISCARD_LIMIT_S if self._discard else STOP_LIMIT_S)
            for process in processes:
                process.stop(max(0.0, deadline - time.monotonic()))
            for node in self._all.values():
                node.process = None
            if self._discard:
                shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ports(self) -> set[int]:
        return set(self._voters.values()).union(
            *({node.port, *node.secure_ports.values()} for node in self._all.values())
        )

    def _new_node(self, node_id: int, avoid: set[int], address: tuple[str, int] | None) -> Node:
        names = [] if self.security is None else [listener.name for listener in self.security.listeners]
        port, *secure = free_ports(1 + len(names), avoid)
        host, port = address or (LOOPBACK, port)
        return Node(node_id, host, port, self.directory / f"broker-{node_id}", dict(zip(names, secure, strict=True)))

    def _start_first(self, node_ids: Sequence[int], start_limit_s: float) -> None:
        began = time.monotonic()
        taken = {port for extra in self._extra_listeners for port in (extra.port, extra.advertised_port)}
        ports = free_ports(len(node_ids), taken)
        self._voters = dict(zip(node_ids, ports, strict=True))
        addresses: Sequence[tuple[str, int] | None] = self._addresses or [None] * len(node_ids)
        for node_id, address in zip(node_ids, addresses, strict=True):
            self._all[node_id] = self._new_node(node_id, taken | self._ports(), address)
        nodes = list(self._all.values())
        for node in nodes:
            self._write_properties(node)
        self._format(nodes[0])
        for node in nodes[1:]:
            self._write_storage(node, *_read_storage(nodes[0]))
        self._launch(nodes, start_limit_s, began)

    def _write_properties(self, node: Node) -> None:
        node.data.mkdir(parents=True, exist_ok=True)
        properties = broker_properties(
            version=self.version,
            node_id=node.node_id,
            host=node.host,
            port=node.port,
            voters=self._voters,
            data=node.data,
            overrides=self._overrides,
            extra_listeners=self._extra_listeners,
            security=self.security,
            secure_ports=node.secure_ports,
        )
        (node.folder / "server.properties").write_text(to_text(properties), encoding="utf-8")

    def _format(self, node: Node) -> None:
        """Run StorageTool for the first node: it writes the features (a bootstrap record) and the identity."""
        arguments = [word for feature in format_features(self.version) for word in ("--feature", feature)]
        if self.security is not None:
            arguments += self.security.format_arguments()
        kind = (self.version, *arguments, *sorted(self._overrides.items()))
        if kind in _formatted:
            self._write_storage(node, *_formatted[kind])
            return
        ids = ["--cluster-id", self._cluster_id, "--config", str(node.folder / "server.properties")]
        try:
            run_tool("kafka.tools.StorageTool", ["format", *ids, *arguments], self.version)
        except ToolError as error:
            raise BrokerStartError(f"broker {node.node_id}'s storage cannot be formatted: {error}") from None
        _formatted[kind] = _read_storage(node)

    def _write_storage(self, node: Node, identity: str, path: Path, checkpoint: bytes) -> None:
        """The bootstrap records name neither cluster nor node, only meta.properties does."""
        own = {"cluster.id": self._cluster_id, "node.id": str(node.node_id), "directory.id": _random_id()}
        pairs = [line.split("=", 1) for line in identity.splitlines() if "=" in line and not line.startswith("#")]
        text = "".join(f"{key}={own.get(key, value)}\n" for key, value in pairs)
        (node.data / "meta.properties").write_text(text, encoding="utf-8")
        (node.data / path).parent.mkdir(exist_ok=True)
        (node.data / path).write_bytes(checkpoint)

    def _launch(self, nodes: Sequence[Node], start_limit_s: float, began: float | None = None) -> None:
        began = time.monotonic() if began is None else began
        for node in nodes:
            arguments = (*self._jvm, *broker_arguments(self.version, node.log))
            command = java_command("kafka.Kafka", [str(node.folder / "server.properties")], self.version, arguments)
            with node.console.open("ab") as console:
                node.process = GuardedProcess(
                    command, stdout=console, stderr=console, orphan_dir=node.folder if self._discard else None
                )
        deadline = time.monotonic() + start_limit_s
        for node in nodes:
            self._wait_until_it_sees(node, deadline)
            where = address_text(node.host, node.port)
            self._progress(f"broker {node.node_id} answers after {time.monotonic() - began:.1f} s on {where}")
        for node in self._all.values():
            if node not in nodes and node.process is not None:
                self._wait_until_it_sees(node, deadline)

    def _wait_until_it_sees(self, node: Node, deadline: float) -> None:
        """Poll one broker until its Metadata lists every running broker of the cluster at its own address."""
        running = [one for one in self._all.values() if one.process is not None]
        expected = {AdvertisedBroker(one.node_id, one.host, one.port) for one in running}
        last = "no answer yet"
        while time.monotonic() < deadline:
            if ended := self.ended():
                raise BrokerStartError(ended)
            try:
                seen = set(brokers_seen_by(node.host, node.port, timeout_s=2.0))
            except ProbeError as error:
                last = str(error)
            else:
                if expected <= seen:
                    return
                last = f"it sees brokers {sorted(broker.node_id for broker in seen)}"
            time.sleep(POLL_S)
        raise BrokerStartError(f"broker {node.node_id} is not ready in time: {last}{_tail(node)}")


def _read_storage(node: Node) -> tuple[str, Path, bytes]:
    """Its identity, and the bootstrap records with their place: 4.4 has moved them into the metadata's folder."""
    identity = (node.data / "meta.properties").read_text(encoding="utf-8")
    (checkpoint,) = node.data.rglob("*.checkpoint")
    return identity, checkpoint.relative_to(node.data), checkpoint.read_bytes()


def _random_id() -> str:
    """A Kafka Uuid: 16 random bytes in URL-safe base 64 without padding; Kafka refuses some with a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _tail(node: Node) -> str:
    parts = []
    for file in filter(Path.is_file, (node.log, node.console)):
        if lines := file.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]:
            parts.append(f"\n--- last lines of {file}:\n" + "\n".join(lines))
    return "".join(parts) or "\n(its log is empty)"
