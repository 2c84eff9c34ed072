"""The bytes of a configuration file that may be more than a ConfigMap holds: compressed by gzip, or in parts, whose
number and SHA-256 a first line gives (`kquota.yaml.2` and so on). Kubernetes may bring parts of two versions side by
side: then there is no file. A file has changed when its content has: ConfigMaps are swapped by symlinks."""

from __future__ import annotations

import errno
import hashlib
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config.problems import MAX_FILE_BYTES
from proxy.net.files import read_file

_GZIP: Final = b"\x1f\x8b"
HEADER: Final = re.compile(rb"# kquota\.io/parts: (\d{1,3}) sha256:([0-9a-f]{64})\n")
"""The first line of a file in parts: their number, and the SHA-256 of the whole without this line."""


def read_config(path: str | Path) -> bytes:
    """The whole file. Raises OSError; its `strerror` is readable."""
    data = read_file(path, MAX_FILE_BYTES)
    if data.startswith(_GZIP):
        data = _expanded(path, data)
    header = HEADER.match(data)
    return data if header is None else _joined(path, data[header.end() :], int(header[1]), header[2].decode())


def _expanded(path: str | Path, data: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=31)
    try:
        found = reader.decompress(data, MAX_FILE_BYTES + 1)
    except zlib.error as error:
        raise OSError(errno.EINVAL, f"not a valid gzip file: {error}", str(path)) from error
    if len(found) > MAX_FILE_BYTES:
        raise OSError(
            errno.EFBIG, f"it expands to more than {MAX_FILE_BYTES} bytes; larger files are not read", str(path)
        )
    if not reader.eof:
        raise OSError(errno.EINVAL, "it is a truncated gzip file", str(path))
    return found


def _joined(path: str | Path, first: bytes, count: int, expected: str) -> bytes:
    data = bytearray(first)
    for number in range(2, count + 1):
        part = Path(f"{path}.{number}")
        try:
            data += read_file(part, MAX_FILE_BYTES - len(data))
        except OSError as error:
            reason = f"part {number} of {count}, {part.name}: {error.strerror or error}"
            raise OSError(error.errno, reason, str(path)) from error
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        reason = f"its {count} parts are not of one version: expected SHA-256 {expected}, got {found}"
        raise OSError(errno.EAGAIN, reason, str(path))
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file's content at one moment. Equal digests mean equal content."""

    digest: str | None
    """SHA-256 of the content; None when it could not be read."""
    error: str | None = None
    data: bytes | None = field(default=None, compare=False)
    """The content itself, so that what is loaded is what was compared."""


def fingerprint(path: str | Path) -> Fingerprint:
    """Read a file now. Never raises for a missing or unreadable file: that is a state like any other."""
    try:
        data = read_config(path)
    except OSError as error:
        return Fingerprint(None, error.strerror or str(error))
    return Fingerprint(hashlib.sha256(data).hexdigest(), None, data)
