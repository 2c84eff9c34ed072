"""Kafka's classes in the JVM's in-memory form (an AppCDS archive): JVMs start with half of the work.

`tests/lab/kafka/prepare.py` creates it, once for each version of Kafka, Java and the jars, next to them in the cache.
JVMs use it if it exists, and ignore one that does not fit (`-Xshare:auto`, the default).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.lab.kafka.cache import cache_dir, locked, oldest

CONTENTS = "2"
"""Another one where other programs are run to learn what is in an archive (prepare.py)."""
KEY_LENGTH = 16
COPIES = 5
"""Archives of a name that are kept. Spark's take 160 MB each, and each checkout has one of its own, as a JVM insists on
the paths of the jars."""


def archive_path(name: str, java: Path, jars: Sequence[Path], contents: str = "") -> Path:
    """A JVM ignores, without a word, an archive that was made when a jar had another time or size: such a one has
    another path. `contents` distinguishes what was run to learn the classes."""
    stats = [(path, path.stat()) for path in (java.resolve(), *jars)]
    text = "\n".join([contents, *(f"{path} {found.st_mtime_ns} {found.st_size}" for path, found in stats)])
    return cache_dir() / "classes" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]}.jsa"


def archive_of(version: str, java: Path, classpath: Sequence[Path]) -> Path:
    return archive_path(f"kafka-{version}", java, classpath, CONTENTS)


def make_once(archive: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write the archive, if it does not exist yet, into a directory that is deleted afterwards; other
    processes wait, and then find it. COPIES are kept: JVMs that run from one that is deleted have it until they end."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with locked(archive.parent / ".lock"):
        if archive.is_file():
            os.utime(archive)
            return
        with tempfile.TemporaryDirectory(prefix=".learning-", dir=archive.parent) as folder:
            make(scratch := Path(folder, archive.name))
            if scratch.is_file():
                os.replace(scratch, archive)
        name = archive.stem.rpartition("-")[0]
        for old in oldest(archive.parent.glob(f"{name}-{'?' * KEY_LENGTH}.jsa"), but=COPIES):
            old.unlink()


def archive_arguments(version: str, java: Path, classpath: Sequence[Path]) -> list[str]:
    archive = archive_of(version, java, classpath)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []
