"""Small files written by others: read without blocking on them, and never beyond a size limit.

By mistake or on purpose, a path may lead to a FIFO without a writer, a device that never ends, or a file that is far
too large. So a file is checked before it is opened and again before it is read, and reading stops at the limit.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Without O_NONBLOCK, opening a FIFO waits for a writer: one may have been put there after the first check."""
_STEP_BYTES: Final = 1 << 20


def read_file(path: str | Path, most_bytes: int) -> bytes:
    """The content of a regular file; symbolic links are followed. Raises OSError; its `strerror` is for people.

    Blocks only while the file system itself does not answer, for instance a network one.
    """
    # Checked by name first: opening some devices has effects.
    _check(os.stat(path), path, most_bytes)
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, _FLAGS)) as file:
        found = os.fstat(file.fileno())
        _check(found, path, most_bytes)
        data = file.read(found.st_size + 1)  # all of it, except for files of /proc and files that grow
        while len(data) <= most_bytes:
            more = file.read(min(_STEP_BYTES, most_bytes + 1 - len(data)))
            if not more:
                return data
            data += more
    raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes; larger files are not read", str(path))


def _check(found: os.stat_result, path: str | Path, most_bytes: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}; a regular file was expected", str(path))
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes; at most {most_bytes} are read", str(path))


@contextmanager
def in_memory(data: bytes) -> Iterator[str]:
    """A path at which a library finds these bytes, in this process's memory: for libraries that only read files
    (OpenSSL a private key), so that they get exactly what was checked. Raises OSError."""
    with open(os.memfd_create("kquota", os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
