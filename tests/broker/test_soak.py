"""The soak in two minutes; half an hour of it is `make soak`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

MINUTES = float(os.environ.get("KQUOTA_SOAK_MINUTES", "2"))


@pytest.mark.timeout(60 * MINUTES + 480)
def test_soak_leaves_nothing_behind() -> None:
    """In a process of its own: the client libraries leave sockets to the garbage collector when faults strike them."""
    command = [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * MINUTES + 420, check=False)
    print(done.stdout[-8000:], done.stderr[-8000:])
    assert done.returncode == 0
    assert "all is well" in done.stdout
