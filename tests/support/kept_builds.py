"""What takes long to build and depends on nothing but its sources, kept in the cache for later runs and checkouts."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from deploy.kafka.jars import cache_dir

COPIES: Final = 4
"""Builds of a kind that are kept; of more, those go that were not used for longest."""


def key_of(sources: Iterable[Path], root: Path, *made_with: str) -> str:
    """SHA-256 over the names below `root` and the contents of all sources, and over what they are built with."""
    whole = hashlib.sha256()
    for path in sorted(sources):
        whole.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    whole.update("\0".join(made_with).encode())
    return whole.hexdigest()


def kept(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The directory that `build` has filled for this key: now, if the cache has none. It is not to be changed.

    Several processes may ask at the same time: a directory appears whole, and the first one stays.
    """
    place = cache_dir() / kind / key
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=place.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            build(made)
            with suppress(OSError):  # another process was quicker
                made.rename(place)
    os.utime(place)
    finished = [one for one in place.parent.iterdir() if not one.name.startswith(".building-")]
    for old in sorted(finished, key=lambda one: one.stat().st_mtime)[:-COPIES]:
        shutil.rmtree(old, ignore_errors=True)
    return place
