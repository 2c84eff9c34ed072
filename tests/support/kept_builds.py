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

from tests.lab.kafka.cache import cache_dir, oldest

ROOT: Final = Path(__file__).resolve().parents[2]
COPIES: Final = 4
"""Builds of a kind that are kept; of more, those go that were not used for longest."""


def key_of(sources: Iterable[Path], *made_with: str) -> str:
    """A name for a build: of the SHA-256 over all sources, their names (below the project, or alone) and contents, and
    over what they are built with."""
    whole = hashlib.sha256()
    for path in sorted(sources):
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
        whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    whole.update(repr(made_with).encode())
    return whole.hexdigest()[:16]


def kept(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The directory that `build` has filled for this key: now, if the cache has none. It is not to be changed."""
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
    for old in oldest(finished, but=COPIES):
        shutil.rmtree(old, ignore_errors=True)
    return place
