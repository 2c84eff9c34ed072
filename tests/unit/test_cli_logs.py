"""Log lines: their form, their level, and that a stack trace never shows what was in the variables."""

from __future__ import annotations

import io
import json

import pytest
import structlog

from proxy.app.common import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail_with_secret() -> None:
    password = "planted-secret"
    token = {"password": password}
    raise RuntimeError(f"broken after {len(token)}")


@pytest.mark.parametrize("style", ["json", "console", "auto"])
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_traces_show_lines_but_no_values(style: str, stream: type[io.StringIO]) -> None:
    out = stream()
    logs.configure("info", style, out)
    try:
        fail_with_secret()
    except RuntimeError:
        structlog.get_logger("kquota.test").exception("failed", peer="1.2.3.4:5")
    text = out.getvalue()
    assert "fail_with_secret" in text
    assert "broken after 1" in text
    # the source line of the raise is shown, the one that holds the secret is not, nor any variable
    assert "planted-secret" not in text


def test_json_lines_start_with_time_and_level() -> None:
    out = io.StringIO()
    logs.configure("info", "auto", out)
    structlog.get_logger("kquota.test").info("hello", size=3, name="é\n")
    line = out.getvalue()
    assert line.count("\n") == 1
    entry = json.loads(line)
    assert list(entry) == ["timestamp", "level", "logger", "message", "size", "name"]
    assert entry["name"] == "é\n"
    assert entry["timestamp"].endswith("Z")


def test_environment_overrides_and_invalid_values_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.LEVEL_VARIABLE, raising=False)
    assert logs.effective_level("info") == ("info", None)
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "DEBUG")
    assert logs.effective_level("info") == ("debug", None)
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "loud")
    level, complaint = logs.effective_level("warning")
    assert level == "warning"
    assert complaint == "KQUOTA_LOG_LEVEL='loud' is none of debug, info, warning, error; using warning"
