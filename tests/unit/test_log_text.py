"""Names that steer terminals or pass for others: escaped in logs, in tables and in JSON for people. Lines about
throttling: one when it begins, one when it has ended, and never a flood."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from config.visible import visible
from proxy.app.cli.main import app
from proxy.app.common import logs
from proxy.app.common.log_output import LogOutput
from proxy.app.common.text import json_text, readable_name, safe
from proxy.app.throttle_log import MAX_EPISODES, MAX_LINES, QUIET_MS, ThrottleLog
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable
from tests.support.hostile_names import CLIENT, CLIENT_SHOWN, CONFIGURED, CONFIGURED_SHOWN, harmless, write_config

HARMFUL = (
    "\x00\x07\b\t\n\r\x1b\x7f\x80\x85\x9b\x9f\xad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"
    "\ud800\U000e0041"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(style: str, event: str = "client", *, out: io.StringIO | None = None, **values: Any) -> str:
    out = io.StringIO() if out is None else out
    logs.configure("info", style, out)
    structlog.get_logger("kquota.test").info(event, **values)
    return out.getvalue()


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[(0|1|2|3[0-7])m", "", text)


def test_every_harmful_character_is_shown_as_its_code() -> None:
    for character in HARMFUL:
        name, shown = f"a{character}b", f"a{character.encode('unicode_escape').decode()}b"
        assert visible(name) == shown
        assert safe(name) == readable_name(name) == f'"{shown}"'
    assert visible("one\ntwo\r", lines=True) == "one\ntwo\\r"


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_harmful_is_left_of_any_text(text: str) -> None:
    assert harmless(visible(text))
    assert "\n" not in visible(text)
    assert json.loads(json_text(text)) == text
    assert harmless(json_text([text]))


@given(st.text(st.sampled_from('ab"\\x1\x1b\n '), max_size=6), st.text(st.sampled_from('ab"\\x1\x1b\n '), max_size=6))
def test_two_names_are_never_shown_alike(one: str, other: str) -> None:
    assert (safe(one) == safe(other)) is (one == other)


def test_letters_of_all_languages_stay_letters() -> None:
    for name in ("Zoë", "Ольга", "花子", "עדה", "ليلى", "a b", "🎣", "C:\\dir"):
        assert visible(name) == safe(name) == name
        assert json_text(name) == json.dumps(name, ensure_ascii=False)


@pytest.mark.parametrize("out", [io.StringIO, Terminal])
def test_console_logs_show_names_as_top_does(out: type[io.StringIO]) -> None:
    stream = out()
    more: dict[str, Any] = {f"key{CLIENT}": 1, "names": [CLIENT, {"user": CLIENT}]}
    line = logged("console", f"what {CLIENT}", out=stream, **more, client_id=CLIENT, user=HARMFUL, reason="no")
    assert line.count("\n") == 1
    plain = without_colours(line)
    assert harmless(plain)
    assert ("\x1b[" in line) is stream.isatty()
    assert f"client_id={CLIENT_SHOWN}" in plain
    assert f"user={safe(HARMFUL)}" in plain
    assert plain.count(CLIENT_SHOWN[1:-1]) == 5


def test_a_name_cannot_add_a_key_to_a_console_line() -> None:
    assert "client_id='a user=admin'" in logged("console", client_id="a user=admin")
    assert 'client_id="a user=\\"x\\"\\x1b"' in logged("console", client_id='a user="x"\x1b')


@pytest.mark.parametrize("style", ["json", "console", "auto"])
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_tracebacks_show_escaped_lines_and_no_values(style: str, stream: type[io.StringIO]) -> None:
    out = stream()
    logs.configure("info", style, out)
    password = "planted-secret"
    try:
        raise ValueError(f"{HARMFUL}\n12:00:00 [error    ] forged {len(password)}")
    except ValueError:
        structlog.get_logger("kquota.test").exception("failed", stack_info=True)
    text = without_colours(out.getvalue())
    assert harmless(text)
    first, *others = text.splitlines()
    assert "failed" in first
    assert all(line.startswith("  ") or set(line) <= {"="} for line in others), text
    assert r"\x9b" in text or r"\u009b" in text
    assert "in test_tracebacks_show" in text
    assert "planted-secret" not in text


def shown(command: list[str], exit_code: int) -> list[str]:
    """What a command prints as text and as JSON."""
    found = [CliRunner().invoke(app, [*command, *options]) for options in ([], ["--json"])]
    assert [done.exit_code for done in found] == [exit_code, exit_code]
    assert harmless("".join(done.output for done in found))
    return [done.output for done in found]


def test_problems_of_a_file_are_one_harmless_line_each(tmp_path: Path) -> None:
    config = tmp_path / "k.yaml"
    config.write_text(
        'upstream: {bootstrap: ["k:9092"]}\nquotas:\n'
        '  - {"client-id\\u202e\\x9b": 1, client-id: "x\\x9b", producer_byte_rate: "\\x9b\\u202e\\n"}\n'
    )
    text, answer = shown(["check", "--config", str(config)], 2)
    assert all(line.startswith("error: ") for line in text.splitlines())
    assert r"\u202e" in text
    assert json.loads(answer)["ok"] is False


@pytest.mark.parametrize("command", [["check"], ["explain", "--client-id", CONFIGURED]], ids=["check", "explain"])
def test_check_and_explain_show_names_as_top_does(command: list[str], tmp_path: Path) -> None:
    text, answer = shown([*command, "--config", str(write_config(tmp_path / "k.yaml"))], 0)
    assert CONFIGURED_SHOWN in text
    assert r"\u202egnol" in answer
    found = json.loads(answer)
    assert CONFIGURED in (found["quotas"][0].values() if command == ["check"] else found.values())


def test_json_lines_start_with_time_and_level() -> None:
    line = logged("auto", "hello", user=HARMFUL, client_id=CLIENT)
    assert line.count("\n") == 1
    assert line.isascii()
    entry = json.loads(line)
    assert list(entry) == ["timestamp", "level", "logger", "message", "user", "client_id"]
    assert (entry["user"], entry["client_id"]) == (HARMFUL, CLIENT)
    assert entry["timestamp"].endswith("Z")


def test_environment_overrides_and_invalid_values_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(configured: str) -> list[str]:
        logs.configure(configured, "json", out := io.StringIO())
        for level in logs.LEVELS:
            structlog.get_logger("kquota.test").log(logs.LEVELS[level], level)
        return [json.loads(line)["message"] for line in out.getvalue().splitlines()]

    monkeypatch.delenv(logs.LEVEL_VARIABLE, raising=False)
    assert written("info") == ["info", "warning", "error"]
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "DEBUG")
    assert written("info") == ["debug", "info", "warning", "error"]
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "loud")
    complaint = "KQUOTA_LOG_LEVEL='loud' is not one of debug, info, warning, error; using warning"
    assert written("warning") == [complaint, "warning", "error"]


def test_a_line_longer_than_a_pipe_stays_one_line() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as read, open(writer, "w") as write:
        os.set_blocking(reader, False)
        output = LogOutput(write)
        long = "x" * 1_000_000 + "\n"
        output.write(long)
        output.write("dropped\n")
        assert output.lost == 1
        found = b""
        while len(found) < len(long):
            found += read.read() or b""
            output.write("next\n")
        assert output.lost == 0
        found += read.read() or b""
    lines = found.decode().splitlines(keepends=True)
    assert lines[0] == long
    assert set(lines[1:]) == {"next\n"}


class Books:
    """Counters of 500 B/s, and the lines about them."""

    def __init__(self) -> None:
        self.ledger = Ledger(QuotaTable([Entry(client_id=DEFAULT, producer_byte_rate=500)]), smooth=False)
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.log = ThrottleLog(self.ledger, self)

    def info(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def look(self, now_ms: float) -> list[tuple[str, dict[str, Any]]]:
        self.lines = []
        self.log.look(now_ms)
        return self.lines

    def throttle(self, client_id: str, now_ms: float, delay_ms: int = 2000, user: str = "u", **more: bool) -> None:
        account = self.ledger.account(user, client_id)
        self.ledger.charge(account, Kind.PRODUCE, 6000, now_ms)
        self.ledger.note_throttle(account, Kind.PRODUCE, delay_ms, at_ms=now_ms, api_key=0, amount=6000, **more)


def test_logs_throttle_begin_and_end() -> None:
    books = Books()
    assert books.look(900) == []
    books.throttle("etl", 1000)  # 6 000 B in 10 s: 600 B/s against 500
    names = {"quota": "produce", "user": None, "client_id": "etl"}
    more = {"by": "u/etl", "why": "over", "delay_ms": 2000, "limit": 500.0, "observed": 600.0}
    assert books.look(1100) == [("throttling begins", names | more)]
    books.throttle("etl", 3000, delay_ms=500, user="v")  # the same counter
    assert books.look(3100) == books.look(3500 + QUIET_MS - 1) == []
    end = {"lasted_s": 2.5, "throttles_at_least": 2, "held_s_at_least": 2.5}
    assert books.look(3500 + QUIET_MS) == [("throttling has ended", names | end)]
    assert books.look(1e6) == []
    books.throttle("etl", 2e6)
    books.throttle("waits", 2e6, queued=True)  # which ended then
    begun = {(event, values["client_id"], values["why"]) for event, values in books.look(2e6)}
    assert begun == {("throttling begins", "etl", "over"), ("throttling begins", "waits", "held")}
    ended = books.look(2e6 + 2000 + QUIET_MS)
    assert {values["client_id"]: values["lasted_s"] for _, values in ended} == {"etl": 2.0, "waits": 2.0}


def test_invented_names_cannot_flood_the_log_nor_memory() -> None:
    books, written = Books(), 0
    for number in range(3 * MAX_EPISODES):
        books.throttle(f"c{number}", number / 10)
        if number % 100 == 0:
            written += len(books.look(number / 10))
    assert written + len(books.look(400)) == MAX_LINES
    assert len(books.log._episodes) <= MAX_EPISODES
    event, values = books.look(60_500)[0]
    assert event == "messages about throttled counters omitted"
    assert values["left_out"] > 2 * MAX_EPISODES
