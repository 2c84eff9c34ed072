"""One connection of an attacker, on asyncio: frames out, answers in, from any address and through TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from typing import Self

from benchmarks.evasion.frames import authenticate, authenticated, handshake, handshake_error
from benchmarks.evasion.logins import Steps

Address = tuple[str, int]
ABORT = struct.pack("ii", 1, 0)
MAX_ANSWER_BYTES = 64 << 20


class RefusedError(Exception):
    """The other side has ended the connection, or has refused a login."""


class Wire:
    """A connection. Large frames are not copied."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    async def open(cls, address: Address, source: str | None = None, tls: ssl.SSLContext | None = None) -> Self:
        """Connect."""
        connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if source is not None:
                connection.bind((source, 0))
            wire = cls(connection)
            await wire._loop.sock_connect(connection, address)
            if tls is not None:
                wire._streams = await asyncio.open_connection(sock=connection, ssl=tls, server_hostname=address[0])
        except BaseException:
            connection.close()
            raise
        return wire

    async def send(self, frame: bytes) -> None:
        """Give it to the kernel, all of it."""
        if self._streams is None:
            await self._loop.sock_sendall(self._socket, frame)
        else:
            self._streams[1].write(frame)
            await self._streams[1].drain()

    async def answer(self) -> bytes:
        """The next frame without its size."""
        (size,) = struct.unpack(">i", await self._exactly(4))
        if not 0 <= size <= MAX_ANSWER_BYTES:
            raise RefusedError(f"an answer of {size} bytes")
        return await self._exactly(size)

    async def ask(self, frame: bytes) -> bytes:
        """Both."""
        await self.send(frame)
        return await self.answer()

    async def login(self, mechanism: str, steps: Steps, client_id: str) -> None:
        """Log in.

        Raises:
            RefusedError: the broker does not want that.
        """
        if error := handshake_error(await self.ask(handshake(mechanism, client_id))):
            raise RefusedError(f"SaslHandshake: error {error}")
        said = next(steps)
        with suppress(StopIteration):
            while True:
                error, token = authenticated(await self.ask(authenticate(said, client_id)))
                if error:
                    raise RefusedError(f"SaslAuthenticate: error {error}")
                try:
                    said = steps.send(token)
                except ValueError as refused:
                    raise RefusedError(str(refused)) from refused

    def half_close(self) -> None:
        """No more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        """End it."""
        if self._streams is not None:
            self._streams[1].transport.abort() if reset else self._streams[1].close()
            return
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self._socket.close()

    async def _exactly(self, count: int) -> bytes:
        if self._streams is not None:
            return await self._streams[0].readexactly(count)
        if count <= 1 << 16:
            parts = await self._loop.sock_recv(self._socket, count)
            while len(parts) < count:
                parts += await self._received(count - len(parts), empty=not parts)
            return parts
        whole = bytearray(count)
        view, have = memoryview(whole), 0
        while have < count:
            got = await self._loop.sock_recv_into(self._socket, view[have:])
            if not got:
                raise RefusedError("closed in the middle of an answer")
            have += got
        return bytes(whole)

    async def _received(self, count: int, *, empty: bool) -> bytes:
        data = b"" if empty else await self._loop.sock_recv(self._socket, count)
        if not data:
            raise RefusedError("closed")
        return data
