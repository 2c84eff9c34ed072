"""A login by Kerberos (RFC 4752) without a library of Python's: MIT's own libgssapi_krb5, called by ctypes.

MIT's environment variables name the login and the Kerberos server (`environment`): the first
principal of the keytab is the client.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from ctypes import POINTER, byref, c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Final

LIBRARY: Final = "libgssapi_krb5.so.2"
PACKAGE: Final = "libgssapi-krb5-2"
HOST_BASED: Final = bytes.fromhex("2a864886f71201020104")
"""OID 1.2.840.113554.1.2.1.4: names such as `kafka@localhost`."""
CONTINUE_NEEDED: Final = 1
MUTUAL: Final = 2
NO_LAYER: Final = b"\1\0\0\0"
"""Of the security layers that a broker offers, none; RFC 4752, section 3.1."""


class GssError(ConnectionError):
    """The library or the Kerberos server says no."""


class _Buffer(ctypes.Structure):
    _fields_ = (("length", c_size_t), ("value", c_void_p))

    @classmethod
    def of(cls, data: bytes) -> _Buffer:
        """It keeps `data` alive."""
        made = cls(len(data), ctypes.cast(ctypes.c_char_p(data), c_void_p))
        made.kept = data
        return made


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_void_p))


def environment(config: Path, keytab: Path) -> dict[str, str]:
    """Environment variables by which MIT's library finds all it needs."""
    return {
        "KRB5_CONFIG": str(config),
        "KRB5_CLIENT_KTNAME": f"FILE:{keytab}",
        "KRB5CCNAME": f"MEMORY:{os.getpid()}",
    }


class _Library:
    """The few calls that a client needs. Raises OSError where the library is missing (Debian's `PACKAGE`)."""

    def __init__(self) -> None:
        self._gss = ctypes.CDLL(LIBRARY)
        for name in ("import_name", "init_sec_context", "wrap", "unwrap", "release_buffer", "release_name"):
            getattr(self._gss, f"gss_{name}").restype = c_uint32
        self._gss.gss_delete_sec_context.restype = c_uint32

    def call(self, name: str, *arguments: object) -> int:
        """The major status, unless it is an error."""
        minor = c_uint32()
        major = int(getattr(self._gss, f"gss_{name}")(byref(minor), *arguments))
        if major >> 16:
            raise GssError(f"gss_{name}: status {major:#x}, minor {minor.value}")
        return major

    def taken(self, buffer: _Buffer) -> bytes:
        """The contents of a buffer of the library's, which is released."""
        data = ctypes.string_at(buffer.value, buffer.length) if buffer.length else b""
        self.call("release_buffer", byref(buffer))
        return data


_loaded: list[_Library] = []


def login(service: str) -> Generator[bytes, bytes, None]:
    """The client's messages of one login at `service` (`kafka@localhost`), with mutual authentication."""
    if not _loaded:
        _loaded.append(_Library())
    (gss,) = _loaded
    name, context = c_void_p(), c_void_p()
    kind = _Oid(len(HOST_BASED), ctypes.cast(ctypes.c_char_p(HOST_BASED), c_void_p))
    gss.call("import_name", byref(_Buffer.of(service.encode())), byref(kind), byref(name))
    try:
        answer = b""
        while True:
            out = _Buffer()
            major = gss.call(
                "init_sec_context", None, byref(context), name, None, c_uint32(MUTUAL), c_uint32(0), None,
                byref(_Buffer.of(answer)), POINTER(_Oid)(), byref(out), None, None,
            )  # fmt: skip
            token = gss.taken(out)
            answer = yield token
            if not major & CONTINUE_NEEDED:
                break
        offered = _Buffer()
        gss.call("unwrap", context, byref(_Buffer.of(answer)), byref(offered), None, None)
        layers = gss.taken(offered)
        if len(layers) != 4 or not layers[0] & NO_LAYER[0]:
            raise GssError(f"the broker offers the layers {layers!r}")
        chosen = _Buffer()
        gss.call("wrap", context, c_int(0), c_uint32(0), byref(_Buffer.of(NO_LAYER)), None, byref(chosen))
        yield gss.taken(chosen)
    finally:
        if context:
            gss.call("delete_sec_context", byref(context), None)
        gss.call("release_name", byref(name))
