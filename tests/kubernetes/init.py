"""The first process of a node's namespaces; a script of the standard library alone."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

OWN = ("/run", "/var/lib", "/var/log", "/opt")
"""Where programs of a node write: each node has a folder of its own in their place."""
SETTINGS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""Of the whole machine. The kubelet wants to set them; it finds files that have them as it wants them."""
NETWORK = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}


def prepare(folder: Path) -> None:
    run("mount", "--make-rshared", "/")
    for place in OWN:
        if os.path.isdir(place):
            own = folder / "own" / place.lstrip("/")
            own.mkdir(parents=True)
            run("mount", "--bind", str(own), place)
    os.makedirs("/run/lock")
    for name, value in SETTINGS.items():
        if (Path("/proc/sys") / name).read_text().strip() != value:
            file = folder / "own" / name.replace("/", ".")
            file.write_text(value + "\n")
            run("mount", "--bind", str(file), f"/proc/sys/{name}")
    plan = json.loads((folder / "plan.json").read_text())
    socket.sethostname(plan["name"])
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "address", "add", f"{plan['address']}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    # There is nothing beyond; the kubelet looks for the interface of the default route.
    run("ip", "route", "add", "default", "via", plan["gateway"], "dev", "node0")
    for name, value in NETWORK.items():
        (Path("/proc/sys") / name).write_text(value)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, str] = {}
        self._ended: dict[str, int] = {}
        self._waiting: dict[int, tuple[socket.socket, Path]] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, wake = socket.socketpair()
        for one in (self._wake, wake):
            one.setblocking(False)
        self._kept = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._orders = 0

    def serve(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._folder / "control"))
        listener.listen(64)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    self._wake.recv(4096)
                else:
                    self._take(listener.accept()[0])
            self._reap()

    def _take(self, connection: socket.socket) -> None:
        order = json.loads(connection.makefile().readline())
        try:
            answer = getattr(self, f"do_{order.pop('do')}")(connection, **order)
        except Exception as error:
            answer = {"error": repr(error)}
        if answer is not None:
            self._answer(connection, answer)

    def _answer(self, connection: socket.socket, answer: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # gone meanwhile
            connection.sendall(json.dumps(answer).encode() + b"\n")
        connection.close()

    def do_start(self, _connection: socket.socket, name: str, argv: list[str]) -> dict[str, object]:
        with (self._folder / f"{name}.log").open("ab") as log:
            pid = _spawn(argv, log)
        self._running[pid] = name
        self._ended.pop(name, None)
        return {"pid": pid}

    def do_signal(self, _connection: socket.socket, name: str, number: int) -> dict[str, object]:
        for pid, one in self._running.items():
            if one == name:
                os.kill(pid, number)
                return {"pid": pid}
        return {"error": f"{name} does not run"}

    def do_state(self, _connection: socket.socket, name: str) -> dict[str, object]:
        return {"running": name in self._running.values(), "status": self._ended.get(name)}

    def do_run(self, connection: socket.socket, argv: list[str]) -> dict[str, object] | None:
        self._orders += 1
        output = self._folder / f"order-{self._orders}"
        with output.open("wb") as file:
            pid = _spawn(argv, file)
        self._waiting[pid] = (connection, output)
        return None

    def _reap(self) -> None:
        """Children, and what others have left to the first process of the namespace."""
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            status = os.waitstatus_to_exitcode(raw)
            if pid in self._waiting:
                connection, output = self._waiting.pop(pid)
                said = output.read_text(errors="replace")
                output.unlink()
                self._answer(connection, {"status": status, "output": said})
            elif (name := self._running.pop(pid, None)) is not None:
                self._ended[name] = status


def _spawn(argv: list[str], output: IO[bytes]) -> int:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    # _reap waits for it: nothing in subprocess shall.
    process.returncode = 0
    return process.pid


def main(folder: Path) -> None:
    prepare(folder)
    Supervisor(folder).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
