"""Admin ports that are of another program or version, or do not end: commands say so, names in them steer no terminal,
and the page of many sidecars shows the others."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest

from proxy.app.cli.admin_client import get_json
from tests.support.command import in_process, started
from tests.support.hostile_names import CLIENT, harmless
from tests.support.waiting import in_background
from tests.support.web_server import web_server

EMPTY: Final[dict[str, Any]] = {
    "at": "2026-01-01T00:00:00.000Z",
    "sidecar": {"version": "1", "config_loaded": "2026-01-01T00:00:00+00:00"},
    "not_ready": [],
    "quotas": {"groups": [], "total": 0},
    "throttled": {"throttled": [], "decisions": [], "refused": [], "total": 0},
    "connections": {"connections": [], "total": 0, "states": {"muted": 3}},
    "libraries": {"libraries": [], "total": 0},
}
SNAPSHOTS: Final = {
    "/good": EMPTY,
    "/rows": EMPTY | {"quotas": {"groups": [{"kind": "produce"}], "total": 1}},
    "/types": EMPTY | {"throttled": 7},
    "/halves": EMPTY | {"not_ready": ["\ud800"]},
    "/infinite": EMPTY | {"quotas": {"groups": [], "total": float("inf")}},
    "/texts": EMPTY | {"connections": {"connections": [], "total": 0, "states": {"muted": "many"}}},
}
DEEP: Final = b"[" * 200_000


@pytest.fixture(
    params=[b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX:", b"HTTP/1.1 200"], ids=["body", "header", "status"]
)
def dripping(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server whose answer does not end: a byte every 50 ms."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with suppress(OSError):
                client, _ = server.accept()
                with client:
                    client.sendall(request.param)
                    while not ended.wait(0.05):
                        client.sendall(b" ")

        dripped = in_background(drip)
        yield server.getsockname()[1]
        ended.set()
        dripped.result()


def test_an_answer_that_does_not_end_takes_the_timeout(dripping: int) -> None:
    began_s = time.monotonic()
    with pytest.raises(OSError, match=f"^http://127.0.0.1:{dripping}/x: no complete answer within 1 s$"):
        get_json(f"127.0.0.1:{dripping}", "/x", {}, timeout_s=1.0)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("command", [["top", "--once"], ["top", "--json"], ["explain"], ["explain", "--client-id=a"]])
@pytest.mark.parametrize("answer", ["rows", "types", "deep"])
def test_commands_name_the_address_of_a_wrong_answer(command: list[str], answer: str) -> None:
    row = [{"level": "user"}]
    lists = dict.fromkeys(("groups", "connections", "throttled", "decisions"), row if answer == "rows" else 7)
    if "--client-id=a" in command:
        del lists["throttled"]
    body = {"at": "", "user": "a", "client_id": "a", "kinds": row, "total": 1, "refused": [], **lists}
    with web_server(lambda path: (200, DEEP if answer == "deep" else json.dumps(body).encode())) as port:
        url = f"http://127.0.0.1:{port}"
        done = in_process(*command, "--admin", url)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {url}")
    assert "kquota" in line


def test_wrong_answer_of_a_sidecar_hides_no_other() -> None:
    def answer(path: str) -> tuple[int, bytes]:
        return 200, json.dumps(SNAPSHOTS[path.removesuffix("/snapshot")]).encode()

    with web_server(answer) as port:
        admins = [word for path in SNAPSHOTS for word in ("--admin", f"http://127.0.0.1:{port}{path}")]
        with started("ui", "--port", "0", *admins) as page:
            assert page.stdout is not None
            try:
                (url,) = re.findall(r"^6 sidecars: (\S+)ui/ ", page.stdout.readline())
                found = httpx.get(f"{url}snapshot").raise_for_status().json()
            finally:
                page.terminate()
    errors = {one["url"].rpartition("/")[2]: one["error"] for one in found["sidecars"]}
    assert (errors.pop("good"), errors.pop("halves"), found["connections"]["states"]) == (None, None, {"muted": 6})
    assert set(errors) == {"rows", "types", "infinite", "texts"}
    said = "unexpected answer (KeyError: 'limit'); does it run the same kquota version?"
    assert errors["rows"] == f"http://127.0.0.1:{port}/rows: {said}"
    assert all(": unexpected answer (" in text for text in errors.values())


@pytest.mark.parametrize("command", [["top", "--once"], ["explain"], ["explain", "--json"]], ids=" ".join)
def test_escapes_answers_of_other_programs(command: list[str]) -> None:
    row = {
        "kind": "produce", "user": CLIENT, "client_id": CLIENT, "limit": 1.0, "level": CLIENT, "mode": "enforce",
        "observed": 1.0, "utilisation": 1.0, "throttled_for_ms": 0, "owed_ms": 0, "totals": {"throttle_ms": 0},
    }  # fmt: skip
    answer = {
        "groups": [row], "connections": [], "total": 1, "states": {},
        "at": f"2026-01-01T{CLIENT}", "throttled": [], "decisions": [], "refused": [],
    }  # fmt: skip
    for status in (200, 500):
        said = status, json.dumps(answer).encode()
        with web_server(lambda path, said=said: said, reason="no \x9b31m\x1b]0;owned\x07") as port:  # type: ignore[misc]
            done = in_process(*command, "--admin", f"http://127.0.0.1:{port}")
        assert done.exit_code == (0 if status == 200 else 1)
        output = done.stdout + done.stderr
        assert harmless(output), output
        assert r"9b" in output
