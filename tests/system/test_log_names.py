"""Names that steer terminals or pass for others: escaped in logs, in every command's output and in JSON for people."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.hostile_names import CLIENT, harmless
from tests.support.web_server import web_server


@pytest.mark.parametrize("command", [["top", "--once"], ["explain"], ["explain", "--json"]], ids=" ".join)
def test_escapes_answers_of_other_programs(command: list[str]) -> None:
    row = {
        "kind": "produce", "user": CLIENT, "client_id": CLIENT, "limit": 1.0, "level": CLIENT, "mode": "enforce",
        "observed": 1.0, "utilisation": 1.0, "throttled_for_ms": 0, "owed_ms": 0, "totals": {"throttle_ms": 0},
    }  # fmt: skip
    answer = {
        "groups": [row], "connections": [], "total": 1,
        "at": f"2026-01-01T{CLIENT}", "throttled": [], "decisions": [], "refused": [],
    }  # fmt: skip
    for status in (200, 500):
        said = status, json.dumps(answer).encode()
        with web_server(lambda path, said=said: said, reason="no \x9b31m\x1b]0;owned\x07") as port:  # type: ignore[misc]
            done = subprocess.run(
                [sys.executable, "-m", "proxy.app.cli.main", *command, "--admin", f"http://127.0.0.1:{port}"],
                capture_output=True,
                timeout=60,
            )
        assert done.returncode == (0 if status == 200 else 1)
        output = (done.stdout + done.stderr).decode()
        assert harmless(output), output
        assert r"9b" in output
