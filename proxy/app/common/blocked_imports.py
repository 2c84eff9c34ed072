"""Blocks optional imports of the sidecar's libraries that happen to be installed: up to 18 MB of memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

UNUSED: Final = {
    "hypothesis",  # kio: strategies for its users' tests
    "rich",  # structlog: tracebacks with local variables, which may hold client data; ours are Python's own
    "better_exceptions",  # the same
    "snappy",  # prometheus_client: pushing to a remote write endpoint
}


@contextmanager
def blocked_imports() -> Iterator[None]:
    """Inside, these modules cannot be imported, unless they are already; afterwards they can be again."""
    modules = cast("dict[str, Any]", sys.modules)
    hidden = dict.fromkeys(UNUSED - modules.keys())
    modules.update(hidden)  # None: ModuleNotFoundError, as Python documents it
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
