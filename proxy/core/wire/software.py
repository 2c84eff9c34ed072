"""The client library's name and version: ApiVersions requests of version 3 and later carry them (KIP-511)."""

from __future__ import annotations

from typing import Final

from proxy.core.wire.primitives import Buffer, read_uvarint

FIRST_VERSION: Final = 3
MAX_CHARACTERS: Final = 100
"""Longer names are cut: the text ends up in metrics and logs, and clients may send anything."""


def client_software(buf: Buffer, body: int, end: int, version: int) -> str | None:
    """The text `name/version` from the ApiVersions request body at `body`, or None if it has none or is malformed.

    Malformed requests are for the broker to reject (INVALID_REQUEST); nothing is raised here.
    """
    if version < FIRST_VERSION:
        return None
    parts = []
    position = body
    for _ in range(2):
        length, position = read_uvarint(buf, position, end)
        if position < 0 or length < 1 or position + length - 1 > end:
            return None
        parts.append(bytes(buf[position : position + length - 1]).decode("utf-8", "replace"))
        position += length - 1
    return "/".join(parts)[:MAX_CHARACTERS]
