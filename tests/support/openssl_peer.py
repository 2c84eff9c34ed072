"""A peer that does what Python's `ssl` cannot: update keys, renegotiate, ask for any bytes as a name. OpenSSL's public
functions by ctypes, certificates unchecked."""

from __future__ import annotations

import ctypes
import socket
from ctypes import c_char_p, c_int, c_long, c_void_p
from functools import cache
from ssl import SSLWantReadError
from typing import Any, Final

TLS1_2: Final = 0x0303
_SET_MAX_VERSION, _SET_HOST_NAME = 124, 55
"""SSL_CTRL_SET_MAX_PROTO_VERSION and so on, behind macros (openssl/ssl.h)."""
_WANT_READ, _WANT_WRITE, _ZERO_RETURN = 2, 3, 6
_WAIT: Final = frozenset({_WANT_READ, _WANT_WRITE})
_UPDATE_REQUESTED: Final = 1


class PeerError(Exception):
    """OpenSSL's reason."""


@cache
def _libraries() -> tuple[Any, Any]:
    ssl, crypto = ctypes.CDLL("libssl.so.3"), ctypes.CDLL("libcrypto.so.3")
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(ssl, name).restype = c_void_p
    crypto.ERR_get_error.restype = crypto.ERR_peek_error.restype = ctypes.c_ulong
    crypto.ERR_reason_error_string.restype = c_char_p
    crypto.ERR_reason_error_string.argtypes = [ctypes.c_ulong]
    for name in ("SSL_ctrl", "SSL_CTX_ctrl"):
        getattr(ssl, name).argtypes = [c_void_p, c_int, c_long, c_void_p]
    return ssl, crypto


def queued_error() -> int:
    """This thread's oldest error that nobody has taken from OpenSSL's queue; 0 if there is none."""
    return int(_libraries()[1].ERR_peek_error())


def leave_error() -> None:
    """In this thread's queue, as a careless user of OpenSSL does."""
    crypto = _libraries()[1]
    crypto.ERR_new()
    crypto.ERR_set_error(20, 1, None)


class Peer:
    """A client on a socket that does not block."""

    def __init__(self, sock: socket.socket, *, version: int = 0, name: bytes = b"localhost") -> None:
        self.sock: Final = sock
        self._lib, self._crypto = _libraries()
        self._context = c_void_p(self._lib.SSL_CTX_new(c_void_p(self._lib.TLS_client_method())))
        self._lib.SSL_CTX_ctrl(self._context, _SET_MAX_VERSION, version, None)
        self._ssl = c_void_p(self._lib.SSL_new(self._context))
        self._lib.SSL_ctrl(self._ssl, _SET_HOST_NAME, 0, ctypes.cast(c_char_p(name), c_void_p))
        self._lib.SSL_set_fd(self._ssl, sock.fileno())
        self._lib.SSL_set_connect_state(self._ssl)

    def close(self) -> None:
        self._lib.SSL_free(self._ssl)
        self._lib.SSL_CTX_free(self._context)
        self.sock.close()

    def do_handshake(self) -> None:
        """A step. Raises SSLWantReadError until it is done, PeerError if it has failed."""
        if not self._done(self._lib.SSL_do_handshake(self._ssl)):
            raise SSLWantReadError

    def renegotiate(self) -> bool:
        """Begin another handshake (TLS 1.2); `do_handshake` goes on with it."""
        return bool(self._lib.SSL_renegotiate(self._ssl))

    def update_keys(self) -> bool:
        """Change our key, and ask the other side to change its own, with what is written next (TLS 1.3)."""
        return bool(self._lib.SSL_key_update(self._ssl, _UPDATE_REQUESTED))

    def send(self, data: bytes) -> int:
        """How much was taken, 0 if it would block."""
        return self._done(self._lib.SSL_write(self._ssl, data, len(data)))

    def recv(self, most: int = 65_536) -> bytes | None:
        """None if it would block, empty at the end."""
        buffer = ctypes.create_string_buffer(most)
        count = self._lib.SSL_read(self._ssl, buffer, most)
        if count <= 0 and self._lib.SSL_get_error(self._ssl, count) == _ZERO_RETURN:
            return b""
        return buffer.raw[:count] if self._done(count) else None

    def _done(self, result: int) -> int:
        if result > 0:
            return result
        if self._lib.SSL_get_error(self._ssl, result) in _WAIT:
            return 0
        reason = self._crypto.ERR_reason_error_string(self._crypto.ERR_get_error())
        self._crypto.ERR_clear_error()
        raise PeerError((reason or b"closed").decode())
