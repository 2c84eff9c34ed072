"""Follows the files next to the configuration: certificates, keys, the static user. A changed one is loaded off the
event loop; an invalid one changes nothing and is reported, by the log and a metric."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog
import trio

from config.parts import Fingerprint, fingerprint
from proxy.net.tls.contexts import NotYetValidError

log = structlog.get_logger("kquota.files")

ANSWER_TIMEOUT_S: Final = 10.0
"""After this time without an answer a file counts as unreadable."""
SETTLE_S: Final = 0.1
"""A file that is being written is read again until two readings agree, so that no half of it is ever loaded."""
MAX_SETTLING: Final = 20
_Result = TypeVar("_Result")
POLL_S: Final = 1.0
"""For the configuration file as well; a renewed certificate's two files are nearly always found together."""


class StuckError(OSError):
    """The file system has not answered, or files keep changing."""


class Aside:
    """Runs the reads of some files one after the other, each in a thread. One that hangs keeps the only slot;
    everything recovers as soon as the file system answers."""

    def __init__(self) -> None:
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def run(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """The result of `work`, or its exception; StuckError when it takes too long, though it goes on."""
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            return await trio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True, limiter=self._one_at_a_time)
        raise StuckError(f"no answer from the file system within {ANSWER_TIMEOUT_S:g} s")


class Reader(Generic[_Result]):
    """Reads files off the event loop, as `read` does."""

    def __init__(self, read: Callable[[], _Result], seen: _Result) -> None:
        self.seen = seen
        """What was read when it was last used."""
        self.aside: Final = Aside()
        self._read = read

    async def changed(self, *, forced: bool = False) -> _Result | None:
        """What is read once two readings agree; None: it is as `seen`, unless `forced`. Raises StuckError."""
        found = await self.aside.run(self._read)
        if found == self.seen and not forced:
            return None
        for _ in range(MAX_SETTLING):
            await trio.sleep(SETTLE_S)
            again = await self.aside.run(self._read)
            if again == found:
                return found if found != self.seen or forced else None
            found = again
        raise StuckError(f"it keeps changing: {MAX_SETTLING + 1} readings, and no two in a row were the same")


class FileReader(Reader[Fingerprint]):
    """Reads one file, for which being unreadable is a content like any other."""

    def __init__(self, path: Path, seen: Fingerprint) -> None:
        super().__init__(lambda: fingerprint(path), seen)
        self.path = path

    async def changed(self, *, forced: bool = False) -> Fingerprint | None:
        """As `Reader.changed`, but raises nothing."""
        try:
            return await super().changed(forced=forced)
        except StuckError as error:
            found = Fingerprint(None, str(error))
            return found if found != self.seen or forced else None


def replace_file(path: Path, data: bytes) -> None:
    """Write a temporary file next to it, flush to the disk, rename over it, flush the directory: `path` is the whole
    old file or the whole new one, with its permissions. The target of a link is replaced, not the link. One writer at a
    time. Raises OSError: `path` is unchanged."""
    path = Path(os.path.realpath(path))
    temporary = path.with_name(path.name + ".tmp")
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # O_NONBLOCK: a FIFO of this name has no reader, and opening it would wait for one.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(temporary, flags, 0o644)
        try:
            with open(descriptor, "wb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "not a regular file", str(temporary))
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


@dataclass(slots=True)
class Followed:
    """Files of one section of the configuration."""

    setting: str
    paths: list[Path]
    load: Callable[[], Any]
    """Puts the files in force. Raises OSError whose text names file and reason; blocking, called in a thread."""
    reloads: int = 0
    failures: int = 0
    successful: bool = True
    last_error: str | None = None

    def refused(self, error: str) -> None:
        """Count and log the error, once while it lasts."""
        self.successful = False
        if error != self.last_error:
            self.last_error = error
            self.failures += 1
            log.error("files refused, the last good ones stay in force", setting=self.setting, error=error)


class Follower:
    """Follows files until cancelled."""

    def __init__(self, followed: Iterable[Followed]) -> None:
        self.followed = list(followed)
        self._readers = [Reader(partial(_looks, one.paths), _looks(one.paths)) for one in self.followed]

    async def run(self) -> None:
        """Check periodically, with one task for the files of each section."""
        async with trio.open_nursery() as nursery:
            for one, reader in zip(self.followed, self._readers, strict=True):
                nursery.start_soon(self._follow, one, reader)

    async def _follow(self, one: Followed, reader: Reader[list[Fingerprint]]) -> None:
        while True:
            await trio.sleep(POLL_S)
            try:
                await self._look(one, reader)
            except StuckError as error:
                reader.seen = []  # whatever is there when it answers again is loaded
                one.refused(f"{one.setting} {', '.join(map(str, one.paths))}: {error}")

    async def _look(self, one: Followed, reader: Reader[list[Fingerprint]]) -> None:
        found = await reader.changed()
        if found is None:
            return
        failure = None
        try:
            await reader.aside.run(one.load)
        except StuckError:
            raise
        except NotYetValidError as error:
            reader.seen = []  # loaded again next time
            one.refused(str(error))
            return
        except OSError as error:
            failure = str(error)
        except Exception as error:  # an internal error must not end the traffic
            log.exception("files not loaded: internal error", setting=one.setting)
            failure = f"{one.setting}: {error!r}"
        reader.seen, one.last_error = found, None
        if failure is not None:
            one.refused(failure)
            return
        one.reloads += 1
        one.successful = True
        log.info("files reloaded", setting=one.setting)


def _looks(paths: Iterable[Path]) -> list[Fingerprint]:
    return [Fingerprint(found.digest, found.error) for found in map(fingerprint, paths)]
