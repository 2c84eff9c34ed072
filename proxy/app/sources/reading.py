"""Reads and replaces files off the event loop: a file system that does not answer, such as a network one, hangs a
thread that neither a reload nor the end of the process waits for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from config.parts import Fingerprint, fingerprint

ANSWER_TIMEOUT_S: Final = 10.0
"""After this time without an answer a file counts as unreadable."""
SETTLE_S: Final = 0.1
"""A file that is being written is read again until two readings agree, so that no half of it is ever loaded."""
MAX_SETTLING: Final = 20
_Result = TypeVar("_Result")


class StuckError(OSError):
    """The file system has not answered."""


class Aside:
    """Runs the reads of some files one after the other, each in a thread. One that hangs keeps the only slot;
    everything recovers as soon as the file system answers."""

    def __init__(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.no_answer = f"no answer from the file system within {timeout_s:g} s"
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def run(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """The result of `work`, or its exception; StuckError when it takes too long, and then it goes on
        nevertheless."""
        with trio.move_on_after(self._timeout_s):
            return await trio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=self._one_at_a_time)
        raise StuckError(self.no_answer)


class FileReader:
    """Reads one file off the event loop."""

    def __init__(self, path: Path, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.path = path
        self.aside = Aside(timeout_s)

    async def read(self) -> Fingerprint:
        """The file's content now. Never raises for an unreadable file."""
        try:
            return await self.aside.run(fingerprint, self.path)
        except StuckError as error:
            return Fingerprint(None, str(error))

    async def settled(self, found: Fingerprint, settle_s: float = SETTLE_S) -> Fingerprint:
        """The file's content once two readings agree, the first being `found`; one that keeps changing counts as
        unreadable."""
        if found.error == self.aside.no_answer:
            return found  # asked again soon enough
        for _ in range(MAX_SETTLING):
            await trio.sleep(settle_s)
            again = await self.read()
            if again == found:
                return again
            found = again
        return Fingerprint(None, f"it keeps changing: {MAX_SETTLING + 1} readings, and no two in a row were the same")


def replace_file(path: Path, data: bytes) -> None:
    """Write a temporary file next to it, flush to the disk, rename over it, flush the directory: `path` is the whole
    old file or the whole new one, with its permissions. One writer at a time. Raises OSError: `path` is unchanged."""
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
