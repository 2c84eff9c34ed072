"""Web servers that answer what a test says: in place of a sidecar's admin port, of a stranger, of an API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


class Answering(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # the headers and the body are two segments: the second would wait 40 ms for an ACK

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def answer(self, status: int, body: bytes, reason: str | None = None) -> None:
        self.send_response(status, reason)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@contextmanager
def serving(server: HTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def web_server(answer: Callable[[str], tuple[int, bytes]], *, reason: str | None = None) -> Iterator[int]:
    """Its port on 127.0.0.1. `answer` makes status and body for a path without its query."""

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer(*answer(self.path.partition("?")[0]), reason)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield server.server_port
