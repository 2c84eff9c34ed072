"""Tests whether a broker answers the Kafka protocol: two small requests over a plain socket, without a client library.

The newest versions of requests change; the ones used here (ApiVersions 0, Metadata 1) are the oldest that both Kafka
3.9 and 4.x still serve (KIP-896), with the old header (no tagged fields).
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

API_METADATA = 3
API_VERSIONS = 18
# Far above any answer to the two requests below; guards against talking to something that is not Kafka.
MAX_ANSWER_BYTES = 1 << 20


class ProbeError(Exception):
    """The peer does not answer as a Kafka broker does (yet)."""


class AdvertisedBroker(NamedTuple):
    """One broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int


def brokers_seen_by(host: str, port: int, *, timeout_s: float = 30.0) -> list[AdvertisedBroker]:
    """The live brokers as one broker sees them (ApiVersions first, then Metadata for no topic at all)."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as peer:
            answer = _ask(peer, API_VERSIONS, 0, b"")
            (error,) = struct.unpack_from(">h", answer)
            if error:
                raise ProbeError(f"{host}:{port} answers ApiVersions with error {error}")
            return _brokers(_ask(peer, API_METADATA, 1, struct.pack(">i", 0)))
    except (OSError, struct.error) as error:
        raise ProbeError(f"{host}:{port}: {error}") from error


def _ask(peer: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    client_id = b"kquota-probe"
    request = struct.pack(">hhih", api_key, version, api_key, len(client_id)) + client_id + body
    peer.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(peer, 4))
    if not 4 <= size <= MAX_ANSWER_BYTES:
        raise ProbeError(f"an answer of {size} bytes is not Kafka's")
    answer = _receive(peer, size)
    (correlation_id,) = struct.unpack_from(">i", answer)
    if correlation_id != api_key:
        raise ProbeError(f"correlation id {correlation_id} answered, {api_key} asked")
    return answer[4:]


def _receive(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = peer.recv(size - len(parts))
        if not chunk:
            raise ProbeError("connection closed in the middle of an answer")
        parts += chunk
    return bytes(parts)


def _brokers(answer: bytes) -> list[AdvertisedBroker]:
    """Metadata response 1: an array of (node id, host, port, rack or null), and more that is not needed here."""
    (count,) = struct.unpack_from(">i", answer)
    brokers, at = [], 4
    for _ in range(count):
        node_id, length = struct.unpack_from(">ih", answer, at)
        at += 6
        host = answer[at : at + length].decode()
        port, rack = struct.unpack_from(">ih", answer, at + length)
        at += length + 6 + max(rack, 0)
        brokers.append(AdvertisedBroker(node_id, host, port))
    return brokers
