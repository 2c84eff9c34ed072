"""Which kquota this is."""

from __future__ import annotations


def kquota_version() -> str:
    """The installed version; "unknown" when run from a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # most commands do not need it

    try:
        return version("kquota")
    except PackageNotFoundError:
        return "unknown"
