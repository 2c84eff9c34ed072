"""What the command loads before it knows what it is for: asking for the version or for help takes no time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NEEDLESS = {
    "yaml", "kio", "trio", "starlette", "h11", "hypercorn", "prometheus_client", "structlog", "rich", "kafka",
    "config.model", "proxy.core.session.session", "proxy.app.metrics",
}  # fmt: skip
LIST = "import json, sys; print(json.dumps(sorted(name for name, one in sys.modules.items() if one is not None)))"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["redirect", "--help"], ["run", "--help"]], ids=" ".join
)
def test_imports_only_needed_modules(arguments: list[str]) -> None:
    program = (
        "import sys; from proxy.app.cli.main import main\n"
        f"sys.argv = ['kquota', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print(); {LIST}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "typer" in loaded
    assert loaded & NEEDLESS == set()
