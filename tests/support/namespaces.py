"""Network namespaces for tests: two machines in one, with an application on this side and brokers on that."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000
"""linux/sched.h"""
RUN_LIMIT_S = 30.0
PROGRAMS = {"ip": "iproute2", "nft": "nftables", "iptables-restore": "iptables"}

_libc = ctypes.CDLL(None, use_errno=True)


def _insist(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)} (tests with network namespaces need root)")


def _own() -> int:
    """A descriptor of the calling thread's namespace."""
    return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Namespace:
    """One network namespace, with its loopback interface up."""

    def __init__(self) -> None:
        for program, package in PROGRAMS.items():
            assert shutil.which(program), f"{program} is missing: apt-get install {package}"

        def make() -> int:
            _insist(_libc.unshare(CLONE_NEWNET), "unshare")
            return _own()

        with ThreadPoolExecutor(1) as pool:  # a thread of its own, which takes the unshared namespace to its grave
            self._fd = pool.submit(make).result()
        self.run("ip", "link", "set", "lo", "up")

    @classmethod
    def of_process(cls, pid: int) -> Namespace:
        joined = cls.__new__(cls)
        joined._fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        return joined

    @property
    def path(self) -> str:
        """A file that stands for it, for `ip link set … netns PATH`."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        home = _own()
        try:
            _insist(_libc.setns(self._fd, CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                _insist(_libc.setns(home, CLONE_NEWNET), "setns")
        finally:
            os.close(home)

    def run(self, *command: str, check: bool = True, given: str | None = None) -> subprocess.CompletedProcess[str]:
        with self.inside():
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_LIMIT_S)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done

    def add_address(self, address: str, device: str) -> None:
        """Give it an address ("10.0.0.1/24"), usable at once."""
        later = ["nodad"] if ":" in address else []
        self.run("ip", "address", "add", address, "dev", device, *later)

    def remove_address(self, address: str, device: str) -> None:
        self.run("ip", "address", "delete", address, "dev", device)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def machine_with(*addresses: str) -> Iterator[Namespace]:
    found = Namespace()
    try:
        for address in addresses:
            found.add_address(f"{address}/{128 if ':' in address else 32}", "lo")
        yield found
    finally:
        found.close()


@dataclass(frozen=True)
class Network:
    """An application's namespace and one for brokers, with a cable between them."""

    application: Namespace
    brokers: Namespace


APPLICATION = ("10.77.0.2/24", "fd77::2/64")
CABLE = "cable"


@contextmanager
def network(broker_addresses: Sequence[str]) -> Iterator[Network]:
    """Two namespaces that reach each other; the second one has these addresses, all of one network per family."""
    with machine_with() as application, machine_with() as brokers:
        application.run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", brokers.path)
        for side, addresses in ((application, APPLICATION), (brokers, broker_addresses)):
            for address in addresses:
                side.add_address(address, CABLE)
            side.run("ip", "link", "set", CABLE, "up")
        yield Network(application, brokers)
