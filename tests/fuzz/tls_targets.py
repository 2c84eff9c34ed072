"""Bytes on an established TLS connection, by each implementation: whatever comes, wherever it is cut."""

from __future__ import annotations

import atexit
import shutil
import struct
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from ssl import SSLError
from typing import Final

from tests.fuzz.targets import target
from tests.support.certificates import Authority
from tests.support.tls_pairs import IMPLEMENTATIONS, Contexts, contexts, pair

_STEP: Final = struct.Struct(">BBH")
"""What happens, a size in units of 64 bytes, and a number."""
GENUINE, FORGED, FLIPPED, SENT, READ, GOODBYE, CLOSED = range(7)
_KINDS: Final = 7
MAX_STEPS: Final = 60


@cache
def _both() -> Contexts:
    folder = Path(tempfile.mkdtemp(prefix="kquota-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority = Authority(folder)
    return contexts(authority, authority.issue("host", "localhost", common_name="host"))


def _scripts() -> list[bytes]:
    def script(*steps: tuple[int, int, int], rest: bytes = b"") -> bytes:
        return b"".join(_STEP.pack(*step) for step in steps) + rest

    header = b"\x17\x03\x03"
    return [
        script((GENUINE, 200, 300), (READ, 8, 0), (READ, 255, 0), (SENT, 255, 0), (GOODBYE, 0, 0), (READ, 255, 0)),
        script((GENUINE, 4, 10), (GENUINE, 4, 10), (READ, 1, 0), (FLIPPED, 4, 20), (READ, 255, 0)),
        script((FORGED, 1, 8), rest=header + b"\x00\x10" + bytes(16)),
        script((FORGED, 1, 5), rest=header + b"\xff\xff"),
        script((FORGED, 1, 8), rest=b"\x16\x03\x03\x00\x04\x18\x00\x00\x00"),
        script((SENT, 255, 0), (SENT, 255, 0), (SENT, 255, 0), (CLOSED, 0, 0), (READ, 255, 0)),
    ]


@target("tls", _scripts, max_bytes=1024)
def records(data: bytes) -> None:
    """What is read is what was sent, or nothing more: after a byte that the peer's key has not made, no plaintext."""
    for by in IMPLEMENTATIONS:
        _exchange(by, data)


def _exchange(by: str, data: bytes) -> None:
    sent, got, forged, at, rest = bytearray(), bytearray(), False, 0, b""
    with pair(_both(), by, buffer_bytes=8192) as made:
        with suppress(OSError):  # how a broken connection ends
            for _ in range(MAX_STEPS):
                if at + _STEP.size > len(data):
                    break
                kind, size, number = _STEP.unpack_from(data, at)
                at += _STEP.size
                match kind % _KINDS:
                    case 0 | 2:
                        plain = bytes((number % 256,)) * (64 * size + 1)
                        try:
                            sent += plain[: made.theirs.send(plain)]
                        except SSLError:
                            continue  # full
                        record = bytearray(made.far.recv(65_536))
                        if kind % _KINDS == FLIPPED and not forged:
                            record[number % len(record)] ^= 1 + number % 255
                            forged = True
                        made.near.send(record)
                    case 1:
                        raw = data[at : at + number % 1024]
                        at += len(raw)
                        forged = forged or bool(raw)
                        made.near.send(raw)
                    case 3:
                        rest = rest or bytes(64 * size + 1)  # what was not taken comes again
                        rest = rest[made.ours.channel.send(rest, 0, len(rest), False) :]
                    case 4:
                        buffer = bytearray(64 * size + 1)
                        got += buffer[: max(0, made.ours.channel.receive(memoryview(buffer), len(buffer)))]
                    case 5:
                        with suppress(SSLError):
                            made.theirs.unwrap()
                        made.settle()
                    case _:
                        made.near.close()
        assert sent.startswith(got), "plaintext that was not sent"
        assert made.ours.channel.unread_bytes >= 0
