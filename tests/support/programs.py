"""Programs that no Python package brings."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Where a program of a Debian package is; where it is missing the test is skipped, in CI it fails."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is missing: install Debian's package {package} (`.ci/run` does)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found
