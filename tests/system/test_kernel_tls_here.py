"""Where this machine's kernel has TLS, all that `make test-kernel-tls` shows in a virtual machine is shown here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quota import compiled

ROOT = Path(__file__).parents[2]
HAS_IT = "tls" in Path("/proc/sys/net/ipv4/tcp_available_ulp").read_text().split()


@pytest.mark.skipif(not HAS_IT, reason="this kernel has no TLS (module tls): make test-kernel-tls brings a kernel")
def test_all_checks_on_this_kernel() -> None:
    assert compiled.built("quota").exists(), "make compile"
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernel_tls.checks"],
        cwd=ROOT,
        env=os.environ | {"KQUOTA_PURE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"check"')]
    assert [one["error"] for one in found] == [""] * 6, run.stderr
    assert run.returncode == 0
