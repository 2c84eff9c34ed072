"""The command `kquota` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

from proxy.app.cli.main import app

KQUOTA: Final = (sys.executable, "-m", "proxy.app.cli.main")
LIMIT_S: Final = 280.0


def kquota(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*KQUOTA, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | environment,
    )


def in_process(*arguments: str | Path, stdin: str = "", **environment: str) -> Result:
    """The same in this process: nothing but a start of Python is left out."""
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=environment)


def started(*arguments: str | Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start it; both streams are pipes unless `more` says otherwise."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*KQUOTA, *map(str, arguments)], text=True, env=os.environ | (env or {}), **(pipes | more))
