"""The directory, outside the repository, of what is downloaded or made once and used by all checkouts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """$KQUOTA_CACHE, else ${XDG_CACHE_HOME:-~/.cache}/kquota."""
    if own := os.environ.get("KQUOTA_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kquota"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def oldest(paths: Iterable[Path], *, but: int) -> list[Path]:
    """All but the `but` (one or more) that were used last: whoever uses one sets its modification time to now."""
    return sorted(paths, key=lambda path: path.stat().st_mtime)[:-but]
