"""20 000 idle connections next to 500 busy ones: memory, latency, and how long all take to come back after a restart.

Each idle connection has asked ApiVersions, so the proxy has its connection to the peer (`benchmarks.rig.answerer`). The
busy ones send 2 000 small Produce requests per second in all. Several instances share them equally, as a gateway's
pods do, where one process may not open so many files. `python -m benchmarks.suites.idle_crowd`, as root.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import resource
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.report.stats import percentile
from benchmarks.rig import variants
from benchmarks.rig.answerer import TOPIC
from benchmarks.rig.frames import CLIENT_ID
from benchmarks.rig.procstat import describe_machine, settled_resident_bytes
from benchmarks.rig.rawclient import Address, open_loop
from benchmarks.rig.variants import Ports, Running, Variant
from proxy.core.wire.messages import api_versions_request
from proxy.net.listen.spare_fd import raise_limit
from tests.lab.kafka.ports import free_ports

IDLE, BUSY = 20_000, 500
"""By default. A proxy needs two descriptors for each (`ulimit -Hn`)."""
PER_S = 2_000.0
AT_ONCE = 256
"""Connections that are not answered yet."""
LIMIT_S: Final = 120.0


class Crowd:
    """The idle connections of one process."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def come(self, address: Address, count: int) -> float:
        """Connect, and ask ApiVersions. Returns how long that took until the last answer, in seconds."""
        began = time.perf_counter()
        waiting: dict[int, socket.socket] = {}
        with select.epoll() as poller:
            while len(self._sockets) < count or waiting:
                if time.perf_counter() - began > LIMIT_S:
                    raise TimeoutError(f"{len(waiting)} connections are not answered after {LIMIT_S:g} s")
                while len(self._sockets) < count and len(waiting) < AT_ONCE:
                    one = socket.create_connection(address, timeout=LIMIT_S)
                    one.sendall(api_versions_request(0, 1, CLIENT_ID))
                    one.setblocking(False)
                    poller.register(one.fileno(), select.EPOLLIN)
                    waiting[one.fileno()] = one
                    self._sockets.append(one)
                for number, _ in poller.poll(1.0):
                    size = struct.unpack(">i", waiting[number].recv(65_536)[:4])[0]
                    if size < 6:
                        raise ConnectionError(f"an answer of {size} bytes to ApiVersions")
                    poller.unregister(number)
                    del waiting[number]
        return time.perf_counter() - began

    def go(self) -> None:
        """Close all."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


_crowd: Final = Crowd()


def _come(address: Address, count: int) -> float:
    return _crowd.come(address, count)


def _go() -> None:
    _crowd.go()


def _latencies_s(address: Address, connections: int, rate_per_s: float) -> Sequence[float]:
    return open_loop(address, TOPIC, rate_per_s=rate_per_s, seconds=8.0, connections=connections).latencies_s


class Instance:
    """One of the proxies that carry the connections: its peer, and a process for its idle clients and one for its busy
    ones, as each process may open so many files."""

    def __init__(self, folder: Path, ways: int, stack: ExitStack) -> None:
        self._folder = folder
        self._ports = iter(free_ports(1 + 3 * ways))
        self._of: dict[str, Ports] = {}
        self.peer = variants.start(variants.answerer(1000), Ports(next(self._ports), 0, 0), ("", 0), folder)
        stack.callback(self.peer.stop)
        spawn = multiprocessing.get_context("spawn")
        self.idle, self.busy = (stack.enter_context(ProcessPoolExecutor(1, spawn, raise_limit)) for _ in range(2))

    def start(self, one: Variant) -> Running:
        """Start the proxy before the peer; each time at the same address."""
        ports = self._of.get(one.key)
        if ports is None:
            front, broker, spare = (next(self._ports) for _ in range(3))
            ports = self._of[one.key] = Ports(front, self.peer.address[1] if one.own_listener else broker, spare)
        return variants.start(one, ports, self.peer.address, self._folder)


def _busy(instances: Sequence[Instance], ways: Sequence[Running]) -> dict[str, float]:
    """What the busy connections see, through all instances at once."""
    connections, rate_per_s = BUSY // len(ways), PER_S / len(ways)
    futures = [
        instance.busy.submit(_latencies_s, way.address, connections, rate_per_s)
        for instance, way in zip(instances, ways, strict=True)
    ]
    found = [one for future in futures for one in future.result()]
    return {f"p{share}_ms": percentile(found, share) * 1000 for share in (50, 99)}


def _all_come(instances: Sequence[Instance], ways: Sequence[Running], idle: int) -> float:
    futures = [
        instance.idle.submit(_come, way.address, idle // len(ways))
        for instance, way in zip(instances, ways, strict=True)
    ]
    return max(future.result() for future in futures)


def measure(one: Variant, instances: Sequence[Instance], idle: int) -> dict[str, float]:
    """One way, begun and ended here. Memory is that of all instances."""
    with ExitStack() as stack:

        def start() -> list[Running]:
            found: list[Running] = []
            for instance in instances:
                found.append(instance.start(one))
                stack.callback(found[-1].stop)
            return found

        def go() -> None:
            for instance in instances:
                instance.idle.submit(_go).result()

        def memory_bytes() -> float:
            return sum(settled_resident_bytes(way.pid) for way in ways if way.pid is not None)

        stack.callback(go)
        ways = start()
        before = memory_bytes()
        values = {f"alone_{name}": value for name, value in _busy(instances, ways).items()}
        values["come_s"] = _all_come(instances, ways, idle)
        values["memory_mb"] = memory_bytes() / 1e6
        values["kb_per_connection"] = (values["memory_mb"] * 1e6 - before) / idle / 1000
        values |= _busy(instances, ways)
        for way in ways:
            way.stop()
        go()
        ways = start()
        values["come_again_s"] = _all_come(instances, ways, idle)
        return values


def run(chosen: Sequence[Variant], rounds: int, idle: int, count: int) -> list[dict[str, Any]]:
    """All ways in turn; every second round begins with the last."""
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kquota-crowd-")))
        instances = [Instance(folder / str(number), len(chosen), stack) for number in range(count)]
        for number in range(rounds):
            for one in chosen if number % 2 == 0 else reversed(chosen):
                values = measure(one, instances, idle)
                rows.append({"round": number, "way": one.title, "values": values})
                print(one.title, json.dumps(values), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: measured; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.idle_crowd", description=__doc__)
    parser.add_argument("--variants", default="02-haproxy,05-kquota-quotas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help="the file to write")
    parser.add_argument("--instances", type=int, default=1, help="how many proxies share them (%(default)s)")
    parser.add_argument("--idle", type=int, default=IDLE, help="how many connections are idle (%(default)s)")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < (needed := 2 * (options.idle + BUSY) // options.instances + 200):
        print(f"a process may have {most} open files, {needed} are needed: raise the hard limit, or --instances")
        return 2
    raise_limit()
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = {"what": "idle crowd", "started": began, "project": describe_project(), "machine": describe_machine()}
    result = head | {"idle": options.idle, "busy": BUSY, "per_s": PER_S, "instances": options.instances}
    chosen = variants.find(options.variants.split(","))
    result["rows"] = run(chosen, options.rounds, options.idle, options.instances)
    if options.store:
        options.store.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
