"""The admin port's HTTP/1.1 server, in the event loop of the traffic: h11 and trio. Connections that hang, trickle or
flood end, and the next probe gets through."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import h11
import structlog
import trio

log = structlog.get_logger("kquota.admin")

MAX_CONNECTIONS: Final = 64
"""Connections open at once; a new one evicts the oldest."""
LIFETIME_S: Final = 20.0
"""For a connection without a complete request, and for each request until its answer has been read."""
KEEP_ALIVE_S: Final = 10.0
MAX_HEAD_BYTES: Final = 16_384
READ_BYTES: Final = 16_384
AFTER_ACCEPT_FAILED_S: Final = 0.1


@dataclass
class AdminServer:
    """Serves an ASGI app on few connections at a time, each with a deadline."""

    listener: socket.socket
    app: Any
    on_evict: Callable[[], None] = lambda: None
    open: dict[_Connection, None] = field(default_factory=dict)
    """Oldest first."""

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.listener))
        async with listener, trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # out of descriptors: traffic has priority
                    log.warning("cannot accept on the admin port", error=str(error))
                    await trio.sleep(AFTER_ACCEPT_FAILED_S)
                    continue
                if len(self.open) >= MAX_CONNECTIONS:
                    oldest = next(iter(self.open))
                    del self.open[oldest]
                    oldest.scope.cancel()
                    self.on_evict()
                connection = _Connection(stream, self.app)
                self.open[connection] = None
                nursery.start_soon(self._serve_one, connection)

    async def _serve_one(self, connection: _Connection) -> None:
        try:
            await connection.serve()
        finally:
            self.open.pop(connection, None)


class _Connection:
    """One client. Cancelling `scope` closes its socket at once."""

    def __init__(self, stream: trio.SocketStream, app: Any) -> None:
        self._stream = stream
        self._app: Callable[..., Awaitable[None]] = app
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.scope = trio.CancelScope(deadline=trio.current_time() + LIFETIME_S)

    async def serve(self) -> None:
        """Answer requests until either side has enough. Never raises for what the client does."""
        try:
            with self.scope, suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                while (request := await self._next_request()) is not None:
                    await self._answer(request)
                    if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                        break
                    self._http.start_next_cycle()
                    self.scope.deadline = trio.current_time() + KEEP_ALIVE_S
        finally:
            self._stream.socket.close()

    async def _next_request(self) -> h11.Request | None:
        """None at the end of the stream, and after something that is no request, which is answered."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some(READ_BYTES))
            if not isinstance(event, h11.Request):
                return None
            self._http.next_event()  # its end, unless it has a body, which nothing reads
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
            return None
        self.scope.deadline = trio.current_time() + LIFETIME_S
        return event

    async def _answer(self, request: h11.Request) -> None:
        try:
            await self._app(self._scope_of(request), _no_body, self._sender(request))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception:
            log.exception("admin request failed: internal error", path=request.target.decode("latin-1"))
            if self._http.our_state is h11.SEND_RESPONSE:  # otherwise the connection ends within the answer
                await self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")

    def _sender(self, request: h11.Request) -> Callable[[Any], Awaitable[None]]:
        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
                await self._send(h11.Response(status_code=message["status"], headers=headers))
                return
            if message.get("body") and request.method != b"HEAD":
                await self._send(h11.Data(data=message["body"]))
            if not message.get("more_body"):
                await self._send(h11.EndOfMessage())

        return send

    async def _refuse(self, status: int, why: str) -> None:
        body = why.encode("ascii", "replace") + b"\n"
        headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            await self._send(event)

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._stream.send_all(data)

    def _scope_of(self, request: h11.Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": None,
            "server": None,
        }


async def _no_body() -> dict[str, Any]:
    """ASGI's `receive`: no route reads a body."""
    return {"type": "http.request", "body": b"", "more_body": False}
