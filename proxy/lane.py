"""Which lane the data path takes: the compiled one where it was built, else the Python code that is its reference

The environment variable KQUOTA_PURE (anything but "" and "0") chooses the Python code; setup.py obeys it too.
"""

from __future__ import annotations

import os
from typing import Final


def _why_not() -> str:
    if os.environ.get("KQUOTA_PURE", "") not in ("", "0"):
        return "KQUOTA_PURE is set"
    try:
        import proxy._lane  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


WHY_NOT: Final[str] = _why_not()
"""Why the lane is not compiled; empty when it is."""
COMPILED: Final[bool] = not WHY_NOT
DESCRIPTION: Final[str] = "compiled" if COMPILED else f"pure Python: {WHY_NOT}"
"""For people: the start's log line and `kquota --version`."""
