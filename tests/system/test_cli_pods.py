"""`--pod`: a sidecar's admin port by way of kubectl, which is a stand-in here: nothing on this machine runs pods."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import in_process, kquota
from tests.support.web_server import web_server

STAND_IN = """\
#!{python}
import json, os, socket, sys, threading
json.dump({{"arguments": sys.argv[1:], "pid": os.getpid()}}, open({said!r}, "w"))
if {fails!r}:
    sys.exit({fails!r})
server = socket.create_server(("127.0.0.1", 0))
print(f"Forwarding from 127.0.0.1:{{server.getsockname()[1]}} -> 9404", flush=True)
print("Forwarding from [::1]:1 -> 9404", flush=True)
def move(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
while True:
    near, _ = server.accept()
    far = socket.create_connection(("127.0.0.1", {port}))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=move, args=pair, daemon=True).start()
"""
KLOG = 'E1130 00:09:49.152855   30644 memcache.go:265] "Unhandled Error" err="connection refused"'
NO_POD = 'Error from server (NotFound): pods "gone" not found'
ANSWER = {"at": "2026-01-01T00:00:00.000Z", "throttled": [], "decisions": [], "refused": []}


@pytest.fixture
def port() -> Iterator[int]:
    """As much of an admin port as `explain` asks for."""
    with web_server(lambda path: (200, json.dumps(ANSWER).encode())) as found:
        yield found


def stand_in(folder: Path, port: int = 0, fails: str = "") -> str:
    """The folder, with a program named kubectl in it; its arguments are in `said.json` there."""
    made, said = folder / "kubectl", str(folder / "said.json")
    made.write_text(STAND_IN.format(python=sys.executable, said=said, fails=fails, port=port))
    made.chmod(0o755)
    return str(folder)


def test_the_sidecar_of_a_pod_is_asked_and_the_forwarding_ends(tmp_path: Path, port: int) -> None:
    done = kquota("explain", "--pod", "shop/orders-0:9500", PATH=stand_in(tmp_path, port))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no client is throttled at 2026-01-01")
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["arguments"] == ["port-forward", "--namespace", "shop", "pod/orders-0", ":9500"]
    assert not Path(f"/proc/{said['pid']}").exists()


def test_passes_on_kubectl_errors(tmp_path: Path) -> None:
    done = in_process("top", "--once", "--pod", "gone", PATH=stand_in(tmp_path, fails=f"{KLOG}\n{NO_POD}"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error: kubectl port-forward pod/gone :9404: {NO_POD}\n"


def test_missing_kubectl_shows_the_command(tmp_path: Path) -> None:
    done = in_process("top", "--once", "--pod", "shop/orders-0", PATH=str(tmp_path))
    assert done.exit_code == 1
    assert "run `kubectl port-forward --namespace shop pod/orders-0 :9404`" in done.stderr


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        ("shop", "run `kubectl proxy --port=0 --accept-paths=^/api/v1/namespaces/shop/pods($|/[^/]+:[0-9]+/proxy/) "),
        ("a/b", "--namespace 'a/b': expected a namespace's name, such as shop"),
    ],
)
def test_page_of_a_namespace_needs_kubectl(tmp_path: Path, namespace: str, said: str) -> None:
    done = in_process("ui", "--namespace", namespace, PATH=str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
    alone = in_process("ui", "--admin", "b:1", "--selector", "app=a", PATH="")
    assert (alone.exit_code, "--selector needs --namespace" in alone.stderr) == (2, True)
    assert in_process("ui", PATH="").exit_code == in_process("ui", "-n", "a", "--admin", "b:1", PATH="").exit_code == 2


@pytest.mark.parametrize("pod", ["a/b/c", "../x", "-n", "UPPER", "a b", ""])
def test_refuses_invalid_pod_names(tmp_path: Path, pod: str) -> None:
    done = in_process("top", "--once", f"--pod={pod}", PATH=str(tmp_path))
    assert done.exit_code == 1
    assert "expected NAMESPACE/NAME or NAME" in done.stderr
    assert in_process("top", "--pod", "a", "--admin", "http://127.0.0.1:1", PATH="").exit_code == 2
