"""What a fleet costs the data path: CPU per request with 100 groups of a fleet in use, beside sidecars without one.

    python -m benchmarks.suites.fleet_cost [--out FILE]

Four sidecars at the same requests at the same time: two without a fleet, whose ratio is the spread, and two of one
fleet, which share the limits of 100 client-ids. Each request goes by another sidecar than the one before.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from benchmarks.rig.procstat import cpu_s
from benchmarks.rig.rawclient import Wire, _drive, produce_frame
from benchmarks.suites.fleet_live import Sidecar
from deploy.kafka import KafkaCluster

GROUPS: Final = 100
RATE_PER_S: Final = 2000.0
"""Of all sidecars together."""
ROUND_S: Final = 10.0
ROUNDS: Final = 5
NAMES: Final = ("plain", "plain too", "fleet", "fleet too")


def run() -> dict[str, Any]:
    """CPU per request, in µs, of each sidecar and round."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster.start(1, "4.2.0", progress=print))
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics([NewTopic("cost", 1, 1)])
        admin.close()
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kquota-fleet-")))
        sidecars = []
        for number, name in enumerate(NAMES):
            one = Sidecar(number, kafka.bootstrap, folder)
            path = folder / f"{number}.yaml"
            config = yaml.safe_load(path.read_text())
            config["quotas"] = [{"client-id": "<default>", "producer_byte_rate": 100_000_000}]
            if name.startswith("plain"):
                del config["fleet"]
            path.write_text(yaml.safe_dump(config))
            stack.callback(one.end, signal.SIGKILL)
            one.start()
            sidecars.append(one)
        while not all(one.ready() for one in sidecars):
            time.sleep(0.5)
        ways = []
        for one in sidecars:
            host, port = one.bootstrap.split(":")
            way = []
            for group in range(GROUPS):
                wire = Wire((host, int(port)), "cost")
                stack.callback(wire.close)
                wire._frame = produce_frame("cost", client_id=b"client-%03d" % group)
                way.append(wire)
            ways.append(way)
        wires = [way[number] for number in range(GROUPS) for way in ways]
        _drive(wires, RATE_PER_S / 4, 6.0, 5.0)  # the topic is made, shares are found
        rounds = []
        for _ in range(ROUNDS):
            pids = [one.process.pid for one in sidecars if one.process is not None]
            before = [cpu_s(pid) for pid in pids]
            _drive(wires, RATE_PER_S, ROUND_S, 5.0)
            requests = RATE_PER_S * ROUND_S / len(ways)
            rounds.append(
                [round((cpu_s(pid) - was) / requests * 1e6, 2) for pid, was in zip(pids, before, strict=True)]
            )
            print(rounds[-1], flush=True)
        groups = sidecars[2].groups()
        idle = [cpu_s(pid) for pid in pids]
        time.sleep(10)
        idle = [round((cpu_s(pid) - was) * 10, 2) for pid, was in zip(pids, idle, strict=True)]
        return {
            "groups": groups,
            "microseconds_per_request": dict(zip(NAMES, zip(*rounds, strict=True), strict=True)),
            "spread": round(statistics.median(one[1] / one[0] for one in rounds), 3),
            "ratio": round(statistics.median((one[2] + one[3]) / (one[0] + one[1]) for one in rounds), 3),
            "cpu_percent_without_requests": dict(zip(NAMES, idle, strict=True)),
        }


def main() -> None:
    """Run it and print it."""
    parser = argparse.ArgumentParser(description="CPU per request with a fleet's limits.")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    result = run()
    print(json.dumps(result))
    if wanted.out is not None:
        wanted.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
