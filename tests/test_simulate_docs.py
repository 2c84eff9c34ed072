"""The examples in docs/cli.md are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from deploy.cli import app

TEXT = Path(__file__, "../../docs/cli.md").resolve().read_text()


def test_the_simulate_example_is_what_comes_out(tmp_path: Path) -> None:
    (session,) = re.findall(r"```\n(\$ cat quotas.yaml\n.*?)```", TEXT, re.DOTALL)
    quotas, events, results = re.fullmatch(
        r"\$ cat quotas.yaml\n(.*)\$ cat events.jsonl\n(.*)\$ kquota simulate [^\n]*\n(.*)", session, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    path = tmp_path / "quotas.yaml"
    path.write_text(quotas)
    done = CliRunner().invoke(app, ["simulate", "--config", str(path)], input=events)
    assert (done.exit_code, done.stdout) == (0, results)


def test_every_command_is_listed() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {name for name in commands if f"| `kquota {name}" not in TEXT} == set()
