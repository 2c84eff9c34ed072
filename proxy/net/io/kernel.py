"""What the kernel knows of a TCP connection beyond the socket calls, asked without reading or writing."""

from __future__ import annotations

import struct
from socket import IPPROTO_TCP, TCP_INFO, socket
from typing import Final, NamedTuple

from proxy.net.tls.channel import TlsSocket, received_bytes

_TCP_INFO: Final = struct.Struct("=B119xQ16xII")
"""In struct tcp_info (linux/tcp.h), in the machine's byte order: tcpi_state at 0, tcpi_bytes_acked at 120,
tcpi_notsent_bytes at 144, tcpi_min_rtt (microseconds) at 148. Before Linux 4.6 some are missing."""
_NO_RTT: Final = 2**32 - 1
_TCP_CLOSE: Final = 7
_PEER_HAS_CLOSED: Final = frozenset({8, 9, 11})
"""TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING (linux/tcp_states.h)."""


class TcpInfo(NamedTuple):
    """The state of a connection, and what has been written to it, as seen by its peer."""

    state: int = _TCP_CLOSE
    acked_bytes: int = 0
    """Acknowledged since the connection was made."""
    unsent_bytes: int = 0
    """Not sent: the receive window is full, or the congestion window is, or we have said that more follows (MSG_MORE)
    and it is less than a segment. Bytes in flight do not count."""
    min_rtt_us: int = 0

    @property
    def was_reset(self) -> bool:
        """The connection no longer exists."""
        return self.state == _TCP_CLOSE

    @property
    def peer_has_closed(self) -> bool:
        """The peer has closed its sending direction, whether or not we have read up to there."""
        return self.state in _PEER_HAS_CLOSED

    @property
    def round_trip_ms(self) -> float:
        """The least network round trip to the peer; 0 if unknown."""
        return 0.0 if self.min_rtt_us == _NO_RTT else self.min_rtt_us / 1000.0


def tcp_info(sock: socket) -> TcpInfo:
    """What the kernel knows of this connection; of one that no longer exists, only that it was reset."""
    try:
        data = sock.getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO.size)
    except OSError:
        return TcpInfo()
    return TcpInfo(*_TCP_INFO.unpack(data.ljust(_TCP_INFO.size, b"\0")))


def unread_bytes(sock: socket) -> int:
    """Bytes that were received and not read yet; on a TLS connection mostly encrypted bytes."""
    return sock.unread_bytes() if isinstance(sock, TlsSocket) else received_bytes(sock)
