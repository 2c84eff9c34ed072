"""Keeps a node's namespaces and control groups, and removes them; a script of the standard library alone."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "kquota-node-"
REMOVAL_LIMIT_S = 20.0
WEIGHT = 10
"""Of all pods of a node together, in processes: as a group without a weight they would get the time of a single one,
and starve where anything else is busy on the machine."""
WEIGHTS = {"cpu.shares": 1024 * WEIGHT, "cpu.weight": 100 * WEIGHT}
"""In control groups of version 1 and of version 2; what one process has, times so many."""


def hierarchies() -> list[Path]:
    """Where control groups are: each controller of version 1 has a tree of its own, version 2 is one tree."""
    with open("/proc/self/mounts") as mounts:
        found = [line.split()[:3] for line in mounts]
    return [
        Path(where) for _, where, kind in found if kind in ("cgroup", "cgroup2") and Path(where).is_relative_to(CGROUPS)
    ]


def make_cgroups(name: str) -> None:
    for root in hierarchies():
        group = root / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / setting).exists():
                (group / setting).write_text((root / setting).read_text())
        if (root / "cgroup.subtree_control").exists():
            for controller in (root / "cgroup.controllers").read_text().split():
                (root / "cgroup.subtree_control").write_text(f"+{controller}")
        for setting, weight in WEIGHTS.items():
            if (group / setting).exists():
                (group / setting).write_text(str(weight))


def remove_cgroups(name: str) -> bool:
    """Remove the groups of this name with all below them; whether none is left."""
    left = False
    for root in hierarchies():
        for folder, _, _ in os.walk(root / name, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                left = True
    return not left


def groups() -> set[str]:
    return {path.name for root in hierarchies() for path in root.glob(f"{PREFIX}*")}


def remove_abandoned() -> None:
    """Groups of nodes whose keeper could not remove them (it was killed as well): their names have its process id."""
    for name in groups():
        if not os.path.exists(f"/proc/{name.removeprefix(PREFIX)}"):
            remove_cgroups(name)


def main(folder: Path) -> int:
    remove_abandoned()
    name = f"{PREFIX}{os.getpid()}"
    ending: list[int] = []
    command = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    signal.signal(signal.SIGTERM, lambda number, _frame: ending.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = (folder / "keeper").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        make_cgroups(name)
        log = (folder / "init.log").open("w")
        first = subprocess.Popen(
            [*command, sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        json.dump({"cgroup": name, "keeper": os.getpid()}, lock)
        lock.flush()
        while not ending and first.poll() is None:
            time.sleep(0.05)
        first.kill()
        first.wait()
    finally:
        deadline = time.monotonic() + REMOVAL_LIMIT_S
        while not remove_cgroups(name) and time.monotonic() < deadline:
            time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
