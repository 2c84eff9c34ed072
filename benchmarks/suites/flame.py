"""A flame graph of the sidecar at work: `python -m benchmarks.suites.flame flame.svg`.

One real broker, `kquota run`, small produce requests as fast as they go over 32 connections; py-spy looks at it 200
times a second from outside. `--project` is a directory with another version of kquota, to compare. `--native` shows
functions of compiled code too, those of the data path among them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.rig.rawclient import closed_loop
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.ports import free_ports

TOPIC = "flame"
LIMIT_S = 60.0
CONNECTIONS = 32
RATE_PER_S = 200


def run(output: Path, project: Path, seconds: int, title: str, native: bool = False) -> float:
    """Write the graph; returns requests per second while it was taken."""
    ports = free_ports(3)
    with (
        tempfile.TemporaryDirectory(prefix="kquota-flame-") as name,
        KafkaCluster.start(1, directory=Path(name, "kafka")) as cluster,
    ):
        run_tool(
            "org.apache.kafka.tools.TopicCommand",
            ["--bootstrap-server", cluster.bootstrap[0], "--create", "--topic", TOPIC, "--partitions", "1"],
            cluster.version,
        )
        file = Path(name, "kquota.yaml")
        config = {
            "listen": {"port": ports[0], "broker_ports": f"{ports[1]}-{ports[1]}"},
            "upstream": {"bootstrap": cluster.bootstrap},
            "admin": {"host": "127.0.0.1", "port": ports[2]},
            "quotas": [{"client-id": "<default>", "producer_byte_rate": 10**12}],
        }
        file.write_text(json.dumps(config))  # JSON is YAML
        command = [sys.executable, "-m", "proxy.app.cli.main", "run", "--config", str(file)]
        with Path(name, "kquota.log").open("wb") as log:
            sidecar = subprocess.Popen(command, cwd=project, stdout=log, stderr=log)
        try:
            _wait_ready(ports[2])
            spy = ["--pid", str(sidecar.pid), "--output", str(output.absolute()), "--duration", str(seconds)]
            spy += ["--rate", str(RATE_PER_S), "--format", "flamegraph", "--native" if native else "--nonblocking"]
            with subprocess.Popen([Path(sys.executable).parent / "py-spy", "record", *spy]) as watcher:
                done = closed_loop(("127.0.0.1", ports[0]), TOPIC, seconds=seconds + 2.0, connections=CONNECTIONS)
                if watcher.wait(LIMIT_S):
                    raise RuntimeError("py-spy has failed")
        finally:
            sidecar.terminate()
            sidecar.wait(LIMIT_S)
    graph = output.read_text(encoding="utf-8")  # its title is the command, with the paths of this machine
    output.write_text(re.sub(r'(<text id="title"[^>]*>)[^<]*', lambda found: found[1] + title, graph), encoding="utf-8")
    return done.requests / done.seconds


def _wait_ready(admin: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.suites.flame", description=__doc__)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--project", type=Path, default=Path(__file__).parents[2])
    arguments.add_argument("--seconds", type=int, default=10)
    arguments.add_argument("--title", default="kquota, small produce requests over 32 connections")
    arguments.add_argument("--native", action="store_true")
    options = arguments.parse_args()
    rate = run(options.output, options.project, options.seconds, options.title, options.native)
    print(f"{options.output}: {rate:.0f} requests/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
