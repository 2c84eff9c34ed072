"""Has the file changed? Compared by content, so that it works for editors, `cp` and ConfigMaps alike.

A ConfigMap volume is never written in place: kubelet writes a new directory and swaps the symlink `..data` to it, so
the path stays the same, its modification time may not change at all, and a watch on the inode would watch the old file
for ever. Reading a small file once a second costs less than a cleverer method.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from config.parts import read_config


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file's content at one moment. Equal digests mean equal content."""

    digest: str | None
    """SHA-256 of the content; None when it could not be read."""
    error: str | None = None
    """Why it could not be read."""
    data: bytes | None = None
    """The content itself, so that what is loaded is what was compared."""


def fingerprint(path: str | Path) -> Fingerprint:
    """Read a file now. Never raises for a missing or unreadable file: that is a state like any other."""
    try:
        data = read_config(path)
    except OSError as error:
        return Fingerprint(None, error.strerror or str(error))
    return Fingerprint(hashlib.sha256(data).hexdigest(), None, data)
