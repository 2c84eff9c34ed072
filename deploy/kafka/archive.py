"""Kafka's classes in the JVM's in-memory form (an AppCDS archive): JVMs start with half of the work.

`deploy/kafka/prepare.py` creates it, once for each version of Kafka, Java and the jars, beside them in the cache. JVMs
use it if it exists, and ignore one that does not fit (`-Xshare:auto`, the default).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from deploy.kafka.jars import cache_dir

CONTENTS = "2"
"""Another one where other programs are run to learn what is in an archive (prepare.py)."""


def archive_of(version: str, java: Path, classpath: Sequence[Path]) -> Path:
    """Where the archive for these jars and this Java is, or would be."""
    real = java.resolve()
    text = "\n".join([CONTENTS, str(real), str(real.stat().st_mtime_ns), *map(str, classpath)])
    return cache_dir() / "classes" / f"kafka-{version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsa"


def archive_arguments(version: str, java: Path, classpath: Sequence[Path]) -> list[str]:
    """JVM arguments that use the archive, if there is one."""
    archive = archive_of(version, java, classpath)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() else []
