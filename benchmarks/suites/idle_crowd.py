"""20 000 idle connections next to 500 busy ones: memory, latency, and how long all take to come back after a restart.

Each idle connection has asked ApiVersions, so the proxy has its connection to the peer (`benchmarks.rig.answerer`). The
busy ones send 2 000 small Produce requests per second in all. `python -m benchmarks.suites.idle_crowd`, as root.
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
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.report.stats import percentile
from benchmarks.rig import variants
from benchmarks.rig.answerer import TOPIC
from benchmarks.rig.procstat import describe_machine, settled_resident_bytes
from benchmarks.rig.rawclient import Address, api_versions_frame, open_loop
from benchmarks.rig.variants import Ports, Running, Variant
from tests.lab.kafka.ports import free_ports

IDLE, BUSY = 20_000, 500
"""By default. A proxy needs two descriptors for each (`ulimit -Hn`)."""
PER_S = 2_000.0
AT_ONCE = 256
"""Connections that are not answered yet."""
LIMIT_S: Final = 120.0


class Crowd:
    """The idle connections."""

    def __init__(self, address: Address, count: int) -> None:
        self._address, self._count = address, count
        self._sockets: list[socket.socket] = []

    def come(self) -> float:
        """Connect, and ask ApiVersions. Returns how long that took until the last answer, in seconds."""
        began = time.perf_counter()
        waiting: dict[int, socket.socket] = {}
        with select.epoll() as poller:
            while len(self._sockets) < self._count or waiting:
                if time.perf_counter() - began > LIMIT_S:
                    raise TimeoutError(f"{len(waiting)} connections are not answered after {LIMIT_S:g} s")
                while len(self._sockets) < self._count and len(waiting) < AT_ONCE:
                    one = socket.create_connection(self._address, timeout=LIMIT_S)
                    one.sendall(api_versions_frame(1))
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


def latencies(address: Address, seconds: float) -> dict[str, float]:
    """Of the busy connections' requests, in ms."""
    found = open_loop(address, TOPIC, rate_per_s=PER_S, seconds=seconds, connections=BUSY)
    return {f"p{share}_ms": percentile(found.latencies_s, share) * 1000 for share in (50, 99)}


def measure(
    one: Variant, ports: Ports, peer: Running, folder: Path, pool: ProcessPoolExecutor, idle: int
) -> dict[str, float]:
    """One way, begun and ended here."""
    way = variants.start(one, ports, peer.address, folder)
    crowd = Crowd(way.address, idle)
    try:
        assert way.pid is not None
        before = settled_resident_bytes(way.pid)
        alone = pool.submit(latencies, way.address, 8.0).result()
        values = {f"alone_{name}": value for name, value in alone.items()}
        values["come_s"] = crowd.come()
        values["memory_mb"] = settled_resident_bytes(way.pid) / 1e6
        values["kb_per_connection"] = (values["memory_mb"] * 1e6 - before) / idle / 1000
        values |= pool.submit(latencies, way.address, 8.0).result()
        way.stop()
        crowd.go()
        way = variants.start(one, ports, peer.address, folder)
        values["come_again_s"] = crowd.come()
        return values
    finally:
        crowd.go()
        way.stop()


def run(chosen: Sequence[Variant], rounds: int, idle: int) -> list[dict[str, Any]]:
    """All ways in turn; every second round begins with the last."""
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kquota-crowd-")))
        pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        numbers = iter(free_ports(1 + 3 * len(chosen)))
        peer = variants.start(variants.answerer(1000), Ports(next(numbers), 0, 0), ("", 0), folder)
        stack.callback(peer.stop)
        ports = {one: Ports(next(numbers), next(numbers), next(numbers)) for one in chosen}
        ports |= {one: replace(ports[one], broker=peer.address[1]) for one in chosen if one.own_listener}
        for number in range(rounds):
            for one in chosen if number % 2 == 0 else reversed(chosen):
                values = measure(one, ports[one], peer, folder, pool, idle)
                rows.append({"round": number, "way": one.title, "values": values})
                print(one.title, json.dumps(values), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command. 0: measured; 2: it cannot be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.idle_crowd", description=__doc__)
    parser.add_argument("--variants", default="02-haproxy,05-kquota-quotas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help="the file to write")
    parser.add_argument("--idle", type=int, default=IDLE, help="how many connections are idle (%(default)s)")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < (needed := 2 * (options.idle + BUSY) + 200):
        print(f"a process may have {most} open files, {needed} are needed: raise the hard limit, or lower --idle")
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    head = {"what": "idle crowd", "started": began, "project": describe_project(), "machine": describe_machine()}
    result = head | {"idle": options.idle, "busy": BUSY, "per_s": PER_S}
    result["rows"] = run(variants.find(options.variants.split(",")), options.rounds, options.idle)
    if options.store:
        options.store.write_text(stored.text(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
