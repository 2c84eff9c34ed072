"""The demo's run: starts broker, sidecars and clients, lets them work for a while, and always stops them."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from quota.entity import Kind
from tests.lab.demo.meter import Track, length
from tests.lab.demo.plan import PLANS, SIDECARS, DemoClient
from tests.lab.kafka import DEFAULT_VERSION, GuardedProcess, KafkaCluster, cache_dir, find_java
from tests.lab.kafka.jars import read_lock
from tests.lab.kafka.ports import free_port_run, free_ports

ROOT = Path(__file__).parents[3]
READY_LIMIT_S, CLIENTS_LIMIT_S, ASK_LIMIT_S = 30.0, 40.0, 1.0
CLIENT_STOP_LIMIT_S = 3.0
SIDECAR_STOP_LIMIT_S = 20.0
"""It drains, and has several seconds for its usage records: if killed before, it would leave an open file."""
LOOK_EVERY_S, DRAW_EVERY_S = 0.5, 0.25
BROKER_PORTS = 8
USAGE_INTERVAL_S = 2
TAIL_LINES = 15
LIBRARIES = {"kafka": "kafka-python", "aiokafka": "aiokafka", "confluent_kafka": "confluent-kafka", "jgo": "jgo"}
# A long demo must not fill the disk: the topics keep the last 256 MB or so.
BROKER_OVERRIDES = {
    "log.segment.bytes": str(64 << 20),
    "log.retention.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}

Say = Callable[[str], None]


class DemoError(Exception):
    """Something the demo needs has failed; the message says what, and what to do if that is known."""


class Interrupted(BaseException):
    """A signal asked us to stop. Not an Exception, so that no handler swallows it by accident."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _on_signals(signal.SIG_IGN)
    raise Interrupted(number)


def _on_signals(handler: Any) -> None:
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, handler)


def _tail(title: str, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return f"\n--- {title}:\n" + ("\n".join(lines[-TAIL_LINES:]) if lines else "(it wrote nothing)")


def _start(module: str, *arguments: str, log: Path, **more: Any) -> GuardedProcess:
    """Run a module of this checkout; stderr (and stdout, unless `more` has it) go to `log`."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", "-m", module, *arguments]  # -P: never from the current folder
    with log.open("ab") as file:
        return GuardedProcess(command, env=env, **{"stdout": file, "stderr": file} | more)


class Client:
    """A client's process, and the JSON lines that it writes to a file."""

    def __init__(self, plan: DemoClient, bootstrap: str, folder: Path) -> None:
        self.plan = plan
        self._log = folder / f"{plan.name}.log"
        task = {"bootstrap": bootstrap, "client_id": plan.client_id, "topic": plan.topic, "wanted": plan.wanted}
        path = folder / f"{plan.name}.jsonl"
        with path.open("wb") as out:
            arguments = (plan.program, json.dumps(task))
            pipe = subprocess.PIPE
            self.process = _start("tests.lab.demo.clients", *arguments, log=self._log, stdin=pipe, stdout=out)
        self._lines = path.open("rb")
        self._unfinished = b""

    def go(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: messages() will report it
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Those that are new."""
        if (code := self.process.poll()) is not None:
            end = f"client {self.plan.name} ({self.plan.library}) ended with exit code {code}"
            raise DemoError(end + _tail("the end of what it wrote", self._log))
        *lines, self._unfinished = (self._unfinished + self._lines.read()).split(b"\n")
        yield from map(json.loads, lines)

    def stop(self) -> None:
        self.process.stop(CLIENT_STOP_LIMIT_S)
        self._lines.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def _stop_all(clients: list[Client]) -> None:
    for client in clients:
        client.process.terminate()
    for client in clients:
        client.stop()


def configuration(
    plans: Sequence[DemoClient], upstream: Sequence[str], listen: int, admin: int, key: Path, usage: Path | None = None
) -> dict[str, Any]:
    """The configuration file's content: rewrite mode on 127.0.0.1, and one entry for each client-id with a limit."""
    quotas: dict[str, dict[str, Any]] = {}
    for plan in plans:
        if plan.limit:
            scope = {"scope": "fleet"} if plan.shared else {}
            quotas[plan.client_id] = {"client-id": plan.client_id, plan.quota_name: int(plan.limit)} | scope
    export = {} if usage is None else {"export": {"directory": str(usage.absolute()), "interval_s": USAGE_INTERVAL_S}}
    return {
        "mode": "rewrite",
        "listen": {"host": "127.0.0.1", "port": listen, "broker_ports": f"{listen + 1}-{listen + BROKER_PORTS}"},
        "upstream": {"bootstrap": list(upstream)},
        "quotas": list(quotas.values()),
        "fleet": {"id": "demo", "key_file": str(key)},
        "admin": {"host": "127.0.0.1", "port": admin},
        "drain_timeout_s": 1,
        **export,
    }


class DemoSidecar:
    """`kquota run`; `bootstrap` is what clients connect to, `admin` the URL of its admin port."""

    def __init__(
        self, number: int, plans: Sequence[DemoClient], upstream: Sequence[str], folder: Path, usage: Path | None
    ) -> None:
        self._plans = [plan for plan in plans if plan.sidecar == number]
        key = folder / "fleet-key"
        if not key.exists():  # the first one makes it
            key.write_text(secrets.token_urlsafe(32))
        folder = folder / f"sidecar-{number + 1}"
        folder.mkdir()
        listen, (admin,) = free_port_run(1 + BROKER_PORTS), free_ports(1)
        self.admin, self.bootstrap = f"http://127.0.0.1:{admin}", f"127.0.0.1:{listen}"
        config = folder / "kquota.yaml"
        config.write_text(yaml.safe_dump(configuration(plans, upstream, listen, admin, key, usage), sort_keys=False))
        self._log = folder / "kquota.log"
        arguments = ("run", "--config", str(config))
        self.process = _start("proxy.app.cli.main", *arguments, log=self._log, orphan_dir=folder)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_LIMIT_S
        while self._ask("/readyz") is None:
            if time.monotonic() > end:
                late = f"the sidecar is not ready after {READY_LIMIT_S:.0f} s"
                raise DemoError(late + _tail("the end of its log", self._log))
            time.sleep(0.05)

    def look(self, tracks: dict[str, Track]) -> None:
        """Note what /quotas and /connections say; nothing when the sidecar is too busy to answer."""
        quotas, connections = self._ask("/quotas"), self._ask("/connections")
        if quotas is None or connections is None:
            return
        muted = {name for one in connections["connections"] if one["muted_for_ms"] > 0 for name in one["client_ids"]}
        groups = {(group["client_id"], group["kind"]): group for group in quotas["groups"]}
        for plan in self._plans:
            kind = Kind.PRODUCE.value if plan.role == "producer" else Kind.FETCH.value
            if (group := groups.get((plan.client_id, kind))) is not None:
                share, totals = (group["fleet"] or {}).get("share"), group["totals"]
                muted_now = plan.client_id in muted
                tracks[plan.name].note_sidecar(totals["throttled"], totals["throttle_ms"], muted_now, share)

    def _ask(self, path: str) -> Any:
        """The JSON answer of the admin port; None for no answer or another status than 200."""
        if (code := self.process.poll()) is not None:
            raise DemoError(f"the sidecar ended with exit code {code}" + _tail("the end of its log", self._log))
        try:
            with urllib.request.urlopen(self.admin + path, timeout=ASK_LIMIT_S) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException):
            return None


class Stage:
    """Broker, sidecars and clients, connected and waiting for the sign to start."""

    def __init__(self, cluster: KafkaCluster, sidecars: Sequence[DemoSidecar], clients: Sequence[Client]) -> None:
        self._sidecars = sidecars
        self._clients = clients
        self.versions: dict[str, str] = {}
        """Library version by the client's name, for those that are ready."""
        addresses = ", ".join(sidecar.bootstrap for sidecar in sidecars)
        kafka = f"Kafka {cluster.version} {', '.join(cluster.bootstrap)}"
        self.title = f"{len(clients)} clients → {len(sidecars)} kquota sidecars {addresses} → {kafka}"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + CLIENTS_LIMIT_S
        while missing := [c.plan.name for c in self._clients if c.plan.name not in self.versions]:
            if time.monotonic() > deadline:
                raise DemoError(f"not connected after {CLIENTS_LIMIT_S:.0f} s: {', '.join(missing)}")
            for client, message in self._messages(0.2):
                if message["event"] == "ready":
                    self.versions[client.plan.name] = message["version"]

    def run(self, seconds: float) -> Iterator[tuple[float, list[Track]]]:
        """Let the clients work, and yield (second, tracks) four times a second and at the very end: after `seconds`,
        or after `meter.length` if the first window takes long."""
        began = time.monotonic()
        tracks = {client.plan.name: Track(client.plan, began) for client in self._clients}
        for client in self._clients:
            client.go()
        next_look = next_draw = began
        while True:
            now = time.monotonic()
            end = began + length(list(tracks.values()), seconds) if now >= began + seconds else began + seconds
            over = now >= end
            if over or now >= next_look:
                next_look = now + LOOK_EVERY_S
                for sidecar in self._sidecars:
                    sidecar.look(tracks)
            if over or now >= next_draw:
                next_draw = now + DRAW_EVERY_S
                yield min(now, end) - began, list(tracks.values())
            if over:
                return
            wait_s = max(0.0, min(next_look, next_draw, end) - time.monotonic())
            for client, message in self._messages(wait_s):
                if message["event"] == "tally":
                    tracks[client.plan.name].note(message)

    def _messages(self, wait_s: float) -> Iterator[tuple[Client, dict[str, Any]]]:
        time.sleep(wait_s)
        for client in self._clients:
            for message in client.messages():
                yield client, message


@contextmanager
def staged(say: Say, usage: Path | None = None) -> Iterator[Stage]:
    """Start everything in the order of dependency; stop it in the opposite order. Meanwhile the first signal raises
    Interrupted; nothing interrupts the end."""
    if missing := [package for module, package in LIBRARIES.items() if importlib.util.find_spec(module) is None]:
        raise DemoError(
            f"the demo needs {', '.join(missing)}, and this Python has not got it. "
            "Install the demo's packages with: pip install 'kquota[demo]' (or run `make demo`, which does)"
        )
    find_java()
    if any(not (cache_dir() / "jars" / jar.path).is_file() for jar in read_lock(DEFAULT_VERSION)):
        say(
            f"first start: Apache Kafka {DEFAULT_VERSION} itself (about 50 MB) is fetched now and kept in "
            f"{cache_dir()}; the next start needs no network"
        )
    _on_signals(_interrupt)
    with ExitStack() as stack:
        try:
            yield _bring_up(stack, say, PLANS, usage)
        finally:
            _on_signals(signal.SIG_IGN)
            say("stopping clients, sidecars and broker")


def _bring_up(stack: ExitStack, say: Say, plans: Sequence[DemoClient], usage: Path | None) -> Stage:
    folder = Path(tempfile.mkdtemp(prefix="kquota-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    say(f"starting a real broker: Apache Kafka {DEFAULT_VERSION}, one JVM")
    cluster = stack.enter_context(KafkaCluster.start(overrides=BROKER_OVERRIDES, progress=say))
    say("starting two sidecars: kquota run, rewrite mode; one limit is the fleet's, so they share it")
    sidecars: list[DemoSidecar] = []
    for number in range(SIDECARS):
        sidecars.append(DemoSidecar(number, plans, cluster.bootstrap, folder, usage))
        stack.callback(sidecars[-1].process.stop, SIDECAR_STOP_LIMIT_S)
    for sidecar in sidecars:
        sidecar.wait_until_ready()
    ready = " and ".join(sidecar.bootstrap for sidecar in sidecars)
    say(f"sidecars ready on {ready}; starting {len(plans)} clients, a process each")
    say(f"meanwhile open {' or '.join(f'{sidecar.admin}/ui/' for sidecar in sidecars)}")
    say(f"or run: kquota explain --admin {sidecars[0].admin} --client-id orders")
    clients: list[Client] = []
    stack.callback(_stop_all, clients)
    for plan in plans:
        clients.append(Client(plan, sidecars[plan.sidecar].bootstrap, folder))
    stage = Stage(cluster, sidecars, clients)
    stage.wait_until_ready()
    libraries = dict.fromkeys(f"{plan.library} {stage.versions[plan.name]}" for plan in plans)
    say(f"connected: {', '.join(libraries)}")
    return stage
