"""Admin ports of sidecars in pods, through kubectl: with the user's own kubeconfig and rights."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Final

from config.visible import visible

START_TIMEOUT_S: Final = 20.0
ADMIN_PORT: Final = 9404
_POD: Final = re.compile(
    r"(?:(?P<namespace>[a-z0-9][a-z0-9-]*)/)?(?P<name>[a-z0-9][a-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?"
)
_SERVING: Final = re.compile(r"(?:Forwarding from|Starting to serve on) 127\.0\.0\.1:([0-9]+)\b")


@contextmanager
def forwarded(pod: str) -> Iterator[str]:
    """The URL at which the admin port of `pod` (NAMESPACE/NAME, NAME, with :PORT unless it is 9404) answers meanwhile.
    Raises OSError with one readable sentence."""
    found = _POD.fullmatch(pod)
    if found is None:
        raise OSError(f"--pod {visible(pod)!r}: expected NAMESPACE/NAME or NAME, such as shop/orders-7c9d8f6b5-x2x7p")
    namespace = () if found["namespace"] is None else ("--namespace", found["namespace"])
    arguments = ["port-forward", *namespace, f"pod/{found['name']}", f":{found['port'] or ADMIN_PORT}"]
    with _kubectl("--pod", arguments) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def proxied(namespace: str) -> Iterator[str]:
    """The URL at which the API server answers meanwhile, to reading pods of `namespace` alone. Raises OSError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", namespace):
        raise OSError(f"--namespace {visible(namespace)!r}: expected a namespace's name, such as shop")
    paths = f"^/api/v1/namespaces/{namespace}/pods(/|$)"
    arguments = ["proxy", "--port=0", f"--accept-paths={paths}", "--reject-methods=^(POST|PUT|PATCH|DELETE)$"]
    with _kubectl("--namespace", arguments) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _kubectl(option: str, arguments: list[str]) -> Iterator[int]:
    program = shutil.which("kubectl")
    if program is None:
        raise OSError(
            f"{option} needs kubectl, which is not on the PATH; where it is, run `kubectl {' '.join(arguments)}` and "
            "give the port that it prints as --admin http://127.0.0.1:PORT"
        )
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield _port(process, " ".join(arguments))
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str], arguments: str) -> int:
    """The local port that kubectl has chosen, once it prints it. Its further output is read and ignored."""
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    said: list[str] = []
    while True:
        try:
            line = lines.get(timeout=START_TIMEOUT_S)
        except Empty:
            raise OSError(f"kubectl {arguments}: it serves no port within {START_TIMEOUT_S:.0f} s") from None
        if line is None:
            raise OSError(f"kubectl {arguments}: {visible(' '.join(said)) or 'it ended without a message'}")
        port = _SERVING.match(line)
        if port is not None:
            return int(port[1])
        said.append(line.strip())
