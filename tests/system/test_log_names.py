"""Names that steer terminals or pass for others: escaped in logs, in every command's output and in JSON for people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostile_names import CLIENT, CONFIGURED, harmless, write_config
from tests.support.web_server import web_server


@pytest.fixture
def hostile_config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "k.yaml")


def test_simulate_shows_names_as_codes(hostile_config: Path) -> None:
    events = [
        {"t_ms": 0, "kind": "produce", "user": "u", "client_id": CONFIGURED, "amount": 9000},
        {"t_ms": 0, "kind": CLIENT, "user": "u", "client_id": CLIENT, "amount": 9000},
    ]
    command = [sys.executable, "-m", "proxy.app.cli.main", "simulate", "--config", str(hostile_config)]
    text = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    assert done.returncode == 2
    assert harmless(done.stdout.decode()), done.stdout
    assert harmless(done.stderr.decode()), done.stderr
    assert CONFIGURED in json.loads(done.stdout)["group"]


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
