"""Counts how often the data path's compiled code calls Python functions, in a sidecar started by `counted`.

That process imports this file as `sitecustomize`. `sys.setprofile` sees no compiled functions, so the caller of what
they call is the function that runs the event loop.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

FILE, PROJECT = "KQUOTA_TEST_CALLS", "KQUOTA_TEST_PROJECT"
BYTES = 8


def counted(folder: Path) -> tuple[list[str], Callable[[], int]]:
    """The words before a sidecar's command, and a function that reads the count of its calls."""
    shutil.copy(__file__, folder / "sitecustomize.py")
    file = folder / "calls"
    file.write_bytes(bytes(BYTES))
    project = Path(__file__).resolve().parents[2]
    variables = {"KQUOTA_PURE": "0", FILE: file, PROJECT: project, "PYTHONPATH": f"{folder}:{project}"}
    words = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())]
    return words, lambda: int.from_bytes(file.read_bytes(), sys.byteorder)


def _count(file: str, project: str) -> None:
    runs_loop = f"{project}/proxy/net/io/host.py"
    data_path = tuple(f"{project}/{folder}/" for folder in ("proxy/core", "proxy/net/io", "proxy/net/tls", "quota"))
    with open(file, "r+b") as opened:
        memory = mmap.mmap(opened.fileno(), BYTES)
    calls = 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        caller = frame.f_back
        if event != "call" or caller is None or caller.f_code.co_filename != runs_loop:
            return
        if frame.f_code.co_filename.startswith(data_path):
            calls += 1
            memory[:] = calls.to_bytes(BYTES, sys.byteorder)

    sys.setprofile(profile)


if FILE in os.environ:
    _count(os.environ[FILE], os.environ[PROJECT])
