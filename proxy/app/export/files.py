"""Usage records in files: hidden while they grow, renamed when they are complete, so readers only see whole files.

    <directory>/date=2026-08-01/hour=12/.usage-<instance>-<sequence>.jsonl.open    being written, locked
    <directory>/date=2026-08-01/hour=12/usage-<instance>-<sequence>.jsonl          complete, never touched again

Each interval is appended at once and flushed to the disk. The next sidecar that starts on the directory completes what
a killed one leaves behind: an incomplete last line is cut off, and the file renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from proxy.app.export.worker import Batch

log = structlog.get_logger("kquota.export")

OPEN_SUFFIX: Final = ".open"
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TAIL_BYTES: Final = 65_536


@dataclass
class FileSink:
    """Writes batches to files, complete when their hour is over, when `rotate_s` old or of `rotate_bytes`. Of complete
    files the oldest are deleted above `keep_bytes` (None: no limit), counted in `deleted`."""

    directory: Path
    instance: str
    rotate_s: float
    rotate_bytes: int
    keep_bytes: int | None
    clock_s: Callable[[], float] = time.monotonic
    deleted: int = 0
    _file: _Growing | None = None
    _recovered: bool = False

    def write(self, batch: Batch) -> None:
        """See :class:`proxy.app.export.worker.Sink`: all of the batch, or nothing of it."""
        try:
            self._recover()
            self._finish_if_due(batch.partition)
            if self._file is None:
                name = f"usage-{self.instance}-{batch.first_sequence:012d}.jsonl"
                self._file = _Growing(self.directory / batch.partition, name, self.clock_s())
            self._file.append(b"".join(batch.lines))
        except OSError as error:
            if self._file is not None and (self._file.broken or error.errno not in _DISK_FULL):
                with suppress(OSError):  # the first failure is reported; what is left is recovered later
                    self.close()
                self._file = None
            raise

    def tick(self) -> None:
        """Complete a file that is old enough, even when nothing more is written; at first, files left by others."""
        self._recover()
        self._finish_if_due(None)

    def _finish_if_due(self, partition: str | None) -> None:
        file = self._file
        if file is not None and (
            file.gone()
            or file.size_bytes >= self.rotate_bytes
            or self.clock_s() - file.opened_s >= self.rotate_s
            or (partition is not None and file.directory != self.directory / partition)
        ):
            self.close()

    def close(self) -> None:
        """Complete the file that is being written."""
        file, self._file = self._file, None
        if file is not None:
            file.finish()
            self._delete_old()

    def _recover(self) -> None:
        """Complete the files of a sidecar that was killed. Once, when the directory can be read."""
        if self._recovered:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.directory.glob(f"date=*/hour=*/.usage-*{OPEN_SUFFIX}")):
            try:
                records_bytes = complete(path)
            except OSError as error:
                log.error("cannot complete an earlier file of usage records", path=str(path), error=str(error))
                continue
            if records_bytes is not None:
                log.info("completed an earlier file of usage records", path=str(path), bytes=records_bytes)
        self._recovered = True

    def _delete_old(self) -> None:
        if self.keep_bytes is None:
            return
        found = []
        for path in self.directory.glob("date=*/hour=*/usage-*.jsonl"):
            with suppress(OSError):  # it has been removed meanwhile
                stat = path.stat()
                found.append((str(path.parent), stat.st_mtime_ns, path, stat.st_size))
        total = sum(size for *_, size in found)
        for _, _, path, size in sorted(found)[:-1]:  # never the newest
            if total <= self.keep_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
            self.deleted += 1
            for emptied in (path.parent, path.parent.parent):
                with suppress(OSError):  # not empty
                    emptied.rmdir()


class _Growing:
    def __init__(self, directory: Path, name: str, now_s: float) -> None:
        self.directory = directory
        self.opened_s = now_s
        self.size_bytes = 0
        self.broken = False
        """It may end in half a line: nothing can be appended any more, and completing it cuts that off."""
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f".{name}{OPEN_SUFFIX}"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._fd)
            if self.gone():
                raise BlockingIOError(
                    errno.EAGAIN,
                    "another sidecar deleted the new file, mistaking it for one left behind by a dead sidecar",
                    str(self._path),
                )
            _sync_directory(directory)
        except OSError:
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
            raise

    def gone(self) -> bool:
        """It has been deleted."""
        return os.fstat(self._fd).st_nlink == 0

    def append(self, data: bytes) -> None:
        """Write all of it and flush it to the disk; on failure nothing of it stays."""
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fdatasync(self._fd)
        except OSError as error:
            try:
                os.ftruncate(self._fd, self.size_bytes)
            except OSError:
                self.broken = True
            error.filename = str(self._path)
            raise
        self.size_bytes += len(data)

    def finish(self) -> None:
        """Rename it; delete it if it is empty."""
        try:
            if not self.gone():
                _complete(self._fd, self._path)
        finally:
            os.close(self._fd)


def complete(path: Path) -> int | None:
    """Complete a half-written file: cut off an incomplete last line and rename it (an empty one is deleted). Returns
    its bytes; None if a running sidecar still writes it. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None  # its owner has just completed it
    try:
        try:
            _lock(fd)
        except BlockingIOError:
            return None
        if os.fstat(fd).st_nlink == 0 or not path.exists():
            return None  # its owner has completed it meanwhile
        return _complete(fd, path)
    finally:
        os.close(fd)


def _complete(fd: int, path: Path) -> int:
    size = _end_of_last_line(fd)
    os.ftruncate(fd, size)
    if size == 0:
        path.unlink(missing_ok=True)
    else:
        os.fsync(fd)
        os.rename(path, path.with_name(path.name.removeprefix(".").removesuffix(OPEN_SUFFIX)))
        _sync_directory(path.parent)
    return size


def _lock(fd: int) -> None:
    """Mark the file as in use. Raises BlockingIOError if it already is."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:  # a file system without locks: then no two sidecars may share the directory
        log.debug("cannot lock usage files", error=str(error))


def _end_of_last_line(fd: int) -> int:
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(end - _TAIL_BYTES, 0)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_directory(directory: Path) -> None:
    """Make the names in it survive a power failure too."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(fd)
    finally:
        os.close(fd)
