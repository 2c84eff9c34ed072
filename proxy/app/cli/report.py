"""`kquota report`: runs the Spark jobs as a separate program, perhaps in another Python. Never imports them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHON_VARIABLE = "KQUOTA_ANALYSIS_PYTHON"


def run(arguments: Sequence[str]) -> int:
    """Start `python -m analysis` and wait for it; its exit code, 128 + n after signal n. Raises OSError."""
    # The package may be found by its location only (a checkout), and the other Python must find the same one.
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    try:
        child = subprocess.Popen([python, "-m", "analysis", *arguments], env=os.environ | {"PYTHONPATH": path})
    except OSError as error:
        raise OSError(f"{PYTHON_VARIABLE}: {error}") from error
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            continue  # the terminal has signalled the child as well, and it stops Spark in order
        return 128 - code if code < 0 else code
