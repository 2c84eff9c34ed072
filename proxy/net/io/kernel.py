"""What the kernel knows of a TCP connection beyond the socket calls, asked without reading or writing."""

from __future__ import annotations

import struct
import sys
from socket import IPPROTO_TCP, TCP_INFO, socket
from typing import Final, NamedTuple

from proxy.net.tls.channel import TlsSocket, received_bytes

_SEND_QUEUE: Final = struct.Struct("=120xQ16xI")
"""In struct tcp_info (linux/tcp.h), in the machine's byte order: tcpi_bytes_acked (8 bytes) at 120, tcpi_notsent_bytes
(4 bytes) at 144. Linux 4.6 and later."""
_MIN_RTT_AT: Final = 148
"""tcpi_min_rtt, 4 bytes: microseconds."""
_NO_RTT: Final = 2**32 - 1
_TCP_CLOSE: Final = 7
_PEER_HAS_CLOSED: Final = frozenset({8, 9, 11})
"""TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING (linux/tcp_states.h): the first byte of struct tcp_info."""


class SendQueue(NamedTuple):
    """What has been written to a socket, as seen by its peer."""

    unsent_bytes: int
    """Not sent: the receive window is full, or the congestion window is, or we have said that more follows (MSG_MORE)
    and it is less than a segment. Bytes in flight do not count."""
    acked_bytes: int
    """Acknowledged since the connection was made."""


def send_queue(sock: socket) -> SendQueue:
    """How much of what we wrote the peer has acknowledged. A socket that is no longer connected has an empty queue."""
    try:
        info = sock.getsockopt(IPPROTO_TCP, TCP_INFO, _SEND_QUEUE.size)
    except OSError:
        return SendQueue(0, 0)
    if len(info) < _SEND_QUEUE.size:
        return SendQueue(0, 0)
    acked, unsent = _SEND_QUEUE.unpack(info)
    return SendQueue(unsent, acked)


def unread_bytes(sock: socket) -> int:
    """Bytes that were received and not read yet; on a TLS connection mostly encrypted bytes."""
    return sock.unread_bytes() if isinstance(sock, TlsSocket) else received_bytes(sock)


def round_trip_ms(sock: socket) -> float:
    """The least network round trip to the peer, measured by the kernel (tcp_info.tcpi_min_rtt); 0 if unknown."""
    try:
        info = sock.getsockopt(IPPROTO_TCP, TCP_INFO, _MIN_RTT_AT + 4)
    except OSError:
        return 0.0
    if len(info) < _MIN_RTT_AT + 4:  # before Linux 4.6
        return 0.0
    microseconds = int.from_bytes(info[_MIN_RTT_AT:], sys.byteorder)
    return 0.0 if microseconds == _NO_RTT else microseconds / 1000.0


def was_reset(sock: socket) -> bool:
    """The connection no longer exists."""
    return _tcp_state(sock) == _TCP_CLOSE


def peer_has_closed(sock: socket) -> bool:
    """The peer has closed its sending direction, whether or not we have read up to there."""
    return _tcp_state(sock) in _PEER_HAS_CLOSED


def _tcp_state(sock: socket) -> int:
    try:
        return sock.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0]
    except OSError:
        return _TCP_CLOSE
