"""Replaces a small file atomically: at any time it is the whole old one or the whole new one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a temporary file next to it, flush to the disk, rename over it, flush the directory. Raises OSError: `path`
    is unchanged.

    Blocks for as long as the disk takes. One writer at a time: the name of the temporary file is always the same, so
    that the next write overwrites what a crash leaves behind. The file keeps its permissions.
    """
    temporary = path.with_name(path.name + ".tmp")
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # O_NONBLOCK: a FIFO of this name has no reader, and opening it would wait for one.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(temporary, flags, 0o644)
        try:
            with open(descriptor, "wb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is no regular file", str(temporary))
                with suppress(FileNotFoundError):
                    os.fchmod(descriptor, os.stat(path).st_mode & 0o777)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)
