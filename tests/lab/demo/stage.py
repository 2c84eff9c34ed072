"""The demo's run: starts broker, sidecars and clients, lets them work for a while, and always stops them."""

from __future__ import annotations

import importlib.util
import selectors
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.lab.demo.children import Client, stop_all
from tests.lab.demo.errors import DemoError
from tests.lab.demo.interrupts import Interrupts
from tests.lab.demo.meter import Track
from tests.lab.demo.phases import length
from tests.lab.demo.plan import PLANS, SIDECARS, DemoClient
from tests.lab.demo.sidecar import DemoSidecar
from tests.lab.kafka import DEFAULT_VERSION, KafkaCluster, cache_dir, find_java
from tests.lab.kafka.jars import read_lock

CLIENTS_LIMIT_S = 40.0
LOOK_EVERY_S = 0.5
DRAW_EVERY_S = 0.25
LIBRARIES = {"kafka": "kafka-python", "aiokafka": "aiokafka", "confluent_kafka": "confluent-kafka", "jgo": "jgo"}
# A long demo must not fill the disk: the topics keep the last 256 MB or so.
BROKER_OVERRIDES = {
    "log.segment.bytes": str(64 << 20),
    "log.retention.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}

Say = Callable[[str], None]


def check_libraries(find: Callable[[str], object | None] = importlib.util.find_spec) -> None:
    """Check that the demo's own packages are installed."""
    missing = [package for module, package in LIBRARIES.items() if find(module) is None]
    if missing:
        raise DemoError(
            f"the demo needs {', '.join(missing)}, and this Python has not got it. "
            "Install the demo's packages with: pip install 'kquota[demo]' (or run `make demo`, which does)"
        )


class Stage:
    """Broker, sidecars and clients, connected and waiting for the sign to start."""

    def __init__(self, cluster: KafkaCluster, sidecars: Sequence[DemoSidecar], clients: Sequence[Client]) -> None:
        self._sidecars = sidecars
        self._clients = clients
        self._selector = selectors.DefaultSelector()
        for client in clients:
            self._selector.register(client, selectors.EVENT_READ, client)
        self.versions: dict[str, str] = {}
        """Library version by the client's name, for those that are ready."""
        self.title = (
            f"{len(clients)} clients → {len(sidecars)} kquota sidecars "
            f"{', '.join(sidecar.bootstrap for sidecar in sidecars)} → Kafka {cluster.version} "
            f"{', '.join(cluster.bootstrap)}"
        )

    def wait_until_ready(self) -> None:
        """Wait until every client is connected."""
        deadline = time.monotonic() + CLIENTS_LIMIT_S
        while missing := [c.plan.name for c in self._clients if c.plan.name not in self.versions]:
            if time.monotonic() > deadline:
                raise DemoError(f"not connected after {CLIENTS_LIMIT_S:.0f} s: {', '.join(missing)}")
            for client, message in self._messages(0.2):
                if message["event"] == "ready":
                    self.versions[client.plan.name] = message["version"]

    def run(self, seconds: float, interrupts: Interrupts) -> Iterator[tuple[float, list[Track]]]:
        """Let the clients work, and yield (second, tracks) four times a second and at the very end, which is after
        `seconds` or, if the first window takes long, after `phases.length`.

        Raises:
            DemoError: a child ended.
            Interrupted: a signal came.
        """
        began = time.monotonic()
        tracks = {
            client.plan.name: Track(client.plan, began, self.versions.get(client.plan.name, ""))
            for client in self._clients
        }
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
                    for name, seen in sidecar.look().items():
                        tracks[name].note_sidecar(seen.throttles, seen.held_ms, seen.muted, seen.share)
            if over or now >= next_draw:
                next_draw = now + DRAW_EVERY_S
                yield min(now, end) - began, list(tracks.values())
            if over:
                return
            wait_s = max(0.0, min(next_look, next_draw, end) - time.monotonic())
            for client, message in self._messages(wait_s):
                if message["event"] == "tally":
                    _take(tracks[client.plan.name], message)
            interrupts.check()

    def close(self) -> None:
        """Forget the clients' output."""
        self._selector.close()

    def _messages(self, wait_s: float) -> Iterator[tuple[Client, dict[str, Any]]]:
        for key, _events in self._selector.select(wait_s):
            client: Client = key.data
            for message in client.messages():
                yield client, message


def _take(track: Track, message: dict[str, Any]) -> None:
    track.note(message["at"], message["moved"])
    track.failed, track.problem = message["failed"], message["problem"]
    track.client_throttle_max_ms = message["throttle_max_ms"]


@contextmanager
def staged(
    say: Say, interrupts: Interrupts, plans: Sequence[DemoClient] = PLANS, usage: Path | None = None
) -> Iterator[Stage]:
    """Start everything in the order of dependency; stop it in the opposite order."""
    check_libraries()
    find_java()
    jars = read_lock(DEFAULT_VERSION)
    if any(not (cache_dir() / "jars" / jar.path).is_file() for jar in jars):
        say(
            f"first start: Apache Kafka {DEFAULT_VERSION} itself (about 50 MB) is fetched now and kept in "
            f"{cache_dir()}; the next start needs no network"
        )
    with ExitStack() as stack:
        try:
            stage = _bring_up(stack, say, plans, usage)
        finally:
            interrupts.raising = False
            stack.callback(say, "stopping clients, sidecars and broker")
        interrupts.check()
        yield stage


def _bring_up(stack: ExitStack, say: Say, plans: Sequence[DemoClient], usage: Path | None) -> Stage:
    folder = Path(tempfile.mkdtemp(prefix="kquota-demo-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    say(f"starting a real broker: Apache Kafka {DEFAULT_VERSION}, one JVM")
    cluster = stack.enter_context(KafkaCluster.start(overrides=BROKER_OVERRIDES, progress=say))
    say("starting two sidecars: kquota run, rewrite mode; one limit is the fleet's, so they share it")
    sidecars: list[DemoSidecar] = []
    for number in range(SIDECARS):
        sidecars.append(DemoSidecar(number, plans, cluster.bootstrap, folder, usage))
        stack.callback(sidecars[-1].stop)
    for sidecar in sidecars:
        sidecar.wait_until_ready()
    ready = " and ".join(sidecar.bootstrap for sidecar in sidecars)
    say(f"sidecars ready on {ready}; starting {len(plans)} clients, a process each")
    say(f"meanwhile open {' or '.join(f'{sidecar.admin}/ui/' for sidecar in sidecars)}")
    say(f"or run: kquota explain --admin {sidecars[0].admin} --client-id orders")
    clients: list[Client] = []
    stack.callback(stop_all, clients)
    for plan in plans:
        clients.append(Client(plan, sidecars[plan.sidecar].bootstrap, folder))
    stage = Stage(cluster, sidecars, clients)
    stack.callback(stage.close)
    stage.wait_until_ready()
    libraries = dict.fromkeys(f"{plan.library} {stage.versions[plan.name]}" for plan in plans)
    say(f"connected: {', '.join(libraries)}")
    return stage
