"""Which kquota this is."""

from __future__ import annotations


def kquota_version() -> str:
    """The installed version; "unknown" when run from a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # not needed by most commands

    try:
        return version("kquota")
    except PackageNotFoundError:
        return "unknown"
