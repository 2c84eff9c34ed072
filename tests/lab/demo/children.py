"""The demo's child processes: the sidecar and the clients, started from this checkout and always stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lab.demo.clients.reporter import Spec
from tests.lab.demo.errors import DemoError, tail
from tests.lab.demo.plan import DemoClient
from tests.lab.kafka import GuardedProcess

ROOT = Path(__file__).parents[3]
STOP_LIMIT_S = 3.0
READ_BYTES = 1 << 16


def start_python(module: str, *arguments: str, log: Path, talk: bool, orphan_dir: Path | None = None) -> GuardedProcess:
    """Run a module of this checkout in a process of its own; stderr (and stdout, unless `talk`) go to `log`."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as file:
        return GuardedProcess(
            # -P: never from the current folder
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            orphan_dir=orphan_dir,
        )


class Client:
    """A client's process and its JSON lines, read without ever blocking."""

    def __init__(self, plan: DemoClient, bootstrap: str, folder: Path) -> None:
        self.plan = plan
        self._log = folder / f"{plan.name}.log"
        spec = Spec(bootstrap, plan.client_id, plan.topic, plan.wanted)
        program = f"tests.lab.demo.clients.{plan.program}"
        self._process = start_python(program, spec.to_json(), log=self._log, talk=True)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._unfinished = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._output

    def go(self) -> None:
        """Start a client that is ready."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: messages() will report it
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it has written since the last call."""
        while True:
            try:
                received = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return
            if not received:
                code = self._process.wait()
                name = f"client {self.plan.name} ({self.plan.library})"
                raise DemoError(f"{name} ended with exit code {code}" + tail("the end of what it wrote", self._log))
            *lines, self._unfinished = (self._unfinished + received).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        self._process.terminate()

    def stop(self) -> None:
        """Stop it, by SIGKILL if need be."""
        self._process.stop(STOP_LIMIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def stop_all(clients: list[Client]) -> None:
    """Stop clients, all at once."""
    for client in clients:
        client.terminate()
    for client in clients:
        client.stop()


def until(deadline_s: float, done: Callable[[], bool], pause_s: float = 0.05) -> bool:
    """Poll `done` until it returns True (True) or the time is over (False)."""
    end = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(pause_s)
    return True
