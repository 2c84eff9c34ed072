"""Which code a result is of: two results of different code, or of different data paths, are not to be compared."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.rig.variants import PROJECT
from quota import compiled

GIT_LIMIT_S = 20.0


def describe_project() -> dict[str, Any]:
    """The commit (None where git does not tell), whether it is all of it, and kquota's data path."""

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=GIT_LIMIT_S)
        return done.stdout.strip()

    known: dict[str, Any] = {"commit": None, "uncommitted_changes": None, "data_path": compiled.description()}
    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return known | {"commit": git("rev-parse", "--short=12", "HEAD") or None, "uncommitted_changes": bool(changed)}
    except OSError:
        return known


def in_words(project: Mapping[str, Any]) -> str:
    """As a report says it; results from before it was stored have an empty `project`, or none of the data path."""
    if not project:
        return "commit not stored"
    data_path = project.get("data_path", "not stored")  # as Python everything costs about 1.6 times as much
    changed = " with uncommitted changes" if project["uncommitted_changes"] else ""
    return f"commit {project['commit']}{changed}; kquota's data path: {data_path}"
