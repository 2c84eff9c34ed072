"""The checks, and the suites of TLS connections, on a kernel that has TLS. Started by `make test-kernel-tls`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.kernel_tls import checks, machine

SUITES: Final = ("tests/loopback/test_tls_channel.py", "tests/loopback/test_tls_shell.py")
COMMAND: Final = (
    "export PYTHONDONTWRITEBYTECODE=1 KQUOTA_PURE=0; {python} -m tests.kernel_tls.checks; "
    "{python} -m pytest -q -p no:cacheprovider --timeout 300 {suites}"
)


@pytest.fixture(scope="session", params=["bookworm", "bookworm-backports"])
def printed(request: pytest.FixtureRequest) -> list[str]:
    """The lines that the machine printed; it runs once for all tests of a kernel."""
    if not machine.starts(request.param):
        pytest.skip("this machine's QEMU cannot start this kernel")
    command = COMMAND.format(python=sys.executable, suites=" ".join(SUITES))
    started = [sys.executable, "-m", "tests.kernel_tls.machine", request.param, "sh", "-c", command]
    lines: list[str] = []
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, errors="replace") as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    return lines


@pytest.mark.parametrize("name", [check.__name__ for check in checks.CHECKS])
def test_with_the_kernels_tls(printed: list[str], name: str) -> None:
    found = [json.loads(line[line.index("{") :]) for line in printed if f'"check": "{name}"' in line]
    assert len(found) == 1
    assert found[0]["error"] == ""
    if name == checks.a_cipher_that_the_kernel_may_lack_works.__name__:
        assert found[0]["shown"]["kernel_sends"] is False  # the machine does not load its module


def test_connections_pass_their_own_suites(printed: list[str]) -> None:
    closing: Any = [line for line in printed if " passed" in line]
    assert len(closing) == 1
    assert "failed" not in closing[0]
    assert "error" not in closing[0]
