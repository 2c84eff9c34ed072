"""Frames: a 4-byte size, then that many bytes. Sizes are checked before anything else is parsed."""

from __future__ import annotations

from typing import Final

from proxy.core.wire.primitives import Buffer

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Largest frame accepted by default: Kafka's socket.request.max.bytes, 104857600."""

MIN_REQUEST_BYTES: Final = 8
"""Smallest request frame: API key, version and correlation id (ControlledShutdown version 0 has no more header)."""


class WireError(Exception):
    """Bytes that are not the Kafka protocol, or a version of it that must not pass uninspected.

    `reason` is a short constant for metrics; the text is for people. Only the connection it came from is closed.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_HTTP_VERBS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"TRAC", b"PATC", b"PRI ")


def diagnose(first: Buffer) -> tuple[str, str] | None:
    """What the first bytes of a connection are when they are some other well-known protocol: (reason, text), or None.

    Needs four bytes. A Kafka frame that would be mistaken for one of these has a size of hundreds of megabytes.
    """
    head = bytes(first[:4])
    if len(head) < 4:
        return None
    if head[0] in (0x14, 0x15, 0x16, 0x17) and head[1] == 3 and head[2] <= 4:
        return (
            "tls_on_plain_port",
            "this looks like TLS, and the port speaks plain Kafka: use PLAINTEXT or SASL_PLAINTEXT",
        )
    if head in _HTTP_VERBS:
        return "http_on_kafka_port", "this looks like HTTP, and the port speaks Kafka"
    if head == b"HTTP":
        return "http_on_kafka_port", "this looks like an HTTP response, and the port speaks Kafka"
    if head == b"SSH-":
        return "ssh_on_kafka_port", "this looks like SSH, and the port speaks Kafka"
    if head == b"PROX" or head == b"\r\n\r\n":
        return (
            "proxy_protocol_on_kafka_port",
            "this looks like the PROXY protocol: listen.proxy_protocol_from has to name the balancer",
        )
    return None


def bad_size(buf: Buffer, frame: int, size: int, smallest: int, largest: int) -> WireError:
    """The WireError for an unacceptable frame size: which other protocol it is, or what is wrong with the size."""
    other = diagnose(buf[frame : frame + 4])
    if other is not None:
        return WireError(*other)
    if size < 0:
        return WireError("frame_size_negative", f"the frame's size is negative: {size}")
    if size < smallest:
        return WireError("frame_too_small", f"the frame's size is {size} bytes; the smallest possible is {smallest}")
    return WireError("frame_too_large", f"the frame's size is {size} bytes; the limit is {largest}")
