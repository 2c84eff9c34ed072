"""The keys of a fleet's records, from the file `fleet.key_file`: one a line, the first signs, each is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from proxy.net.files import read_file

MAX_BYTES: Final = 4096
SHORTEST: Final = 32
"""Characters of a key. 32 of base64 are 192 bits, if they were drawn at random."""
MOST: Final = 4
"""Keys in the file: the new one, the old one, and some. Each is tried on a record that none of them signed."""


class FleetKeysError(OSError):
    """The file has no keys; the message has the place and the reason."""


class FleetKeys:
    """The keys as last read. Each :meth:`load` replaces `current` by a new tuple."""

    setting = "fleet.key_file"

    def __init__(self, path: str) -> None:
        """Raises FleetKeysError."""
        self.path: Final = Path(path)
        self.current: tuple[bytes, ...] = ()
        self.load()

    def load(self) -> None:
        """Read the file. Raises FleetKeysError."""
        try:
            data = read_file(self.path, MAX_BYTES)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from error
        keys = tuple(line.strip() for line in data.splitlines() if line.strip())
        if not 0 < len(keys) <= MOST:
            raise self._error(f"got {len(keys)} keys, expected 1 to {MOST}, one a line")
        for number, key in enumerate(keys, 1):
            if len(key) < SHORTEST:
                text = f"key {number} has {len(key)} characters, expected at least {SHORTEST}"
                raise self._error(f"{text} (openssl rand -base64 32)")
        self.current = keys

    def _error(self, reason: str) -> FleetKeysError:
        return FleetKeysError(f"{self.setting} {self.path}: {reason}")
