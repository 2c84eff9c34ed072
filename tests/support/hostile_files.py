"""What can be in the place of a file: each kind put there, and what is said about it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LARGE_BYTES = 36_000_000


class Kind(NamedTuple):
    """Something that is no file to be read."""

    put: Callable[[Path], None]
    reason: str


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)


def _below_a_file(path: Path) -> None:
    """Not to be reached, by no user: root may read all that has no permissions."""
    below = path.with_name(f"{path.name}-file")
    below.write_text("")
    path.symlink_to(below / "inside")


KINDS = {
    "FIFO": Kind(os.mkfifo, "it is a FIFO; a regular file was expected"),
    "socket": Kind(_socket, "it is a socket; a regular file was expected"),
    "endless device": Kind(lambda path: path.symlink_to("/dev/zero"), "it is a character device; a regular file was"),
    "directory": Kind(Path.mkdir, "Is a directory"),
    "36 MB": Kind(_large, f"it has {LARGE_BYTES} bytes; at most "),
    "links in a circle": Kind(lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "unreadable": Kind(_below_a_file, "Not a directory"),
}
"""A file that is gone is not among them: for an overlay that is no mistake."""


def put(kind: str, path: Path) -> str:
    """Something of this kind instead of what is at `path`. Returns what has to be said about it."""
    take_away(path)
    KINDS[kind].put(path)
    return KINDS[kind].reason


def take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_file(path: Path, text: str | bytes) -> None:
    """A file again, complete when it appears."""
    whole = path.with_name(f"{path.name}-whole")
    whole.write_bytes(text.encode() if isinstance(text, str) else text)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    os.replace(whole, path)
