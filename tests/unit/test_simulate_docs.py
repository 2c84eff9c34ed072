"""The examples in docs/cli.md are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.app.cli.main import app

TEXT = Path(__file__, "../../../docs/cli.md").resolve().read_text()


SESSIONS = re.findall(
    r"```\n\$ cat \w+\.yaml\n(.*?)\$ cat \w+\.jsonl\n(.*?)\$ kquota (simulate[^\n]*) --config [^\n]*\n(.*?)```",
    TEXT,
    re.DOTALL,
)


@pytest.mark.parametrize(("quotas", "events", "command", "results"), SESSIONS)
def test_simulate_examples_match_the_output(
    tmp_path: Path, quotas: str, events: str, command: str, results: str
) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(quotas)
    done = CliRunner().invoke(app, [*command.split(), "--config", str(path)], input=events)
    assert (done.exit_code, done.stdout) == (0, results)
