"""What a node leaves behind: nothing, also when the test is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes import keeper, workloads
from tests.kubernetes.image_store import PAUSE
from tests.kubernetes.node import attached_node
from tests.support.chart_tools import ROOT
from tests.support.waiting import until


def test_a_killed_test_leaves_nothing_behind(tmp_path: Path) -> None:
    """A node with a running pod: the process that wanted it gets SIGKILL."""
    others = keeper.groups()
    log = (tmp_path / "log").open("w")
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.kubernetes.node", "--bare"], cwd=ROOT, stdout=log, stderr=log
    )
    try:
        until(lambda: "KQUOTA_NODE=" in (tmp_path / "log").read_text() or owner.poll() is not None, limit_s=240)
        said = (tmp_path / "log").read_text()
        assert "KQUOTA_NODE=" in said, said
        folder = Path(said.rpartition("KQUOTA_NODE=")[2].strip())
        with attached_node(folder) as node:
            node.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "still", "namespace": "default"},
                    "spec": {"containers": [{"name": "app", "image": PAUSE, "imagePullPolicy": "Never"}]},
                }
            )
            workloads.ready_pod(node, "default")
            assert "KUBE-SERVICES" in node.run("iptables-save")
        about = json.loads((folder / "keeper").read_text())
        network = os.readlink(f"/proc/{about['keeper']}/ns/net")
        assert len(inhabitants(network)) > 5
        assert about["cgroup"] in keeper.groups()
        began = time.monotonic()
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        log.close()
    until(lambda: not folder.exists(), "the node's folder", 30)
    until(lambda: not inhabitants(network), "processes", 30)
    until(lambda: keeper.groups() <= others, "control groups", 30)
    print(f"all gone after {time.monotonic() - began:.1f} s")
    # Mounts, addresses and packet rules were in namespaces that no process is in any more.
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    interfaces = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert "node0" not in interfaces
    assert "cni0" not in interfaces


def inhabitants(network: str) -> list[int]:
    """Processes in a network namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(path) == network:
                found.append(int(path.parts[2]))
        except OSError:
            continue  # gone meanwhile
    return found
