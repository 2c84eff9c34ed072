"""A network that fails on command: TCP links between clients, the sidecar and brokers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

import trio

Address = tuple[str, int]

TO_TARGET: Final = "to target"
FROM_TARGET: Final = "from target"
POLL_S: Final = 0.02
CHUNK_BYTES: Final = 65_536
SLOW_STEP_S: Final = 0.05
"""A slow link lets a twentieth of a second's worth through at a time."""
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send RST."""
BACKLOG: Final = 1024


class _Pair:
    def __init__(self, near: trio.SocketStream) -> None:
        self.near = near
        self.far: trio.SocketStream | None = None
        self.dead = False
        """Half-open: nothing passes any more, not even the end. For good: what was lost is never sent again."""
        self.passed = {TO_TARGET: 0, FROM_TARGET: 0}
        self.scope = trio.CancelScope()

    def close(self, *, reset: bool) -> None:
        for stream in (self.near, self.far):
            if stream is not None:
                if reset:
                    with suppress(OSError):
                        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                stream.socket.close()
        self.scope.cancel()


class Link:
    """A listening address, where it leads, and what is wrong with it."""

    def __init__(self, network: FaultyNetwork, listen: Address, target: Address) -> None:
        self.listen = listen
        self.target = target
        self.latency_s = 0.0
        self.bytes_per_s: float | None = None
        self.stalled = False
        self.half_open = False
        self._reset_after: tuple[int, str] | None = None
        self.resets = 0
        self.carried = {TO_TARGET: 0, FROM_TARGET: 0}
        """Bytes, of all connections so far; what a reset has thrown away behind us is among them."""
        self._network = network
        self._pairs: set[_Pair] = set()
        self._listening = trio.CancelScope()
        self._refusing = False

    def reset_after(self, count: int | None, direction: str = FROM_TARGET) -> None:
        """Reset each connection, new and old, when that many bytes (from now on) have passed; None: no more."""

        def start() -> None:
            for pair in self._pairs:
                pair.passed = dict.fromkeys(pair.passed, 0)
            self._reset_after = None if count is None else (count, direction)

        self._network.do(start)

    def heal(self) -> None:
        """All is well again, except for connections that are dead or cut already."""
        self.latency_s, self.bytes_per_s, self.stalled, self.half_open = 0.0, None, False, False
        self.reset_after(None)
        self.accept()

    def cut(self, *, reset: bool) -> None:
        def end() -> None:
            for pair in list(self._pairs):
                pair.close(reset=reset)

        self._network.do(end)

    def refuse(self) -> None:
        if not self._refusing:
            self._refusing = True
            self._network.do(self._listening.cancel)

    def accept(self) -> None:
        if self._refusing:
            self._refusing = False
            self._network.do(self.open)

    def open(self) -> None:
        family = socket.AF_INET6 if ":" in self.listen[0] else socket.AF_INET
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(self.listen)
            listener.listen(BACKLOG)
            own = trio.socket.from_stdlib_socket(listener.dup())
        self._listening = trio.CancelScope()
        self._network.start(self._serve, own, self._listening)

    async def _serve(self, listener: trio.socket.SocketType, scope: trio.CancelScope) -> None:
        with listener, scope:
            while True:
                near, _ = await listener.accept()
                self._network.start(self._carry, _Pair(trio.SocketStream(near)))

    async def _carry(self, pair: _Pair) -> None:
        self._pairs.add(pair)
        try:
            with pair.scope, suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pair.dead = self.half_open
                if pair.dead:
                    await self._swallow(pair.near)
                    return
                try:
                    pair.far = await trio.open_tcp_stream(*self.target)
                except OSError:
                    pair.close(reset=True)
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, pair, pair.near, pair.far, TO_TARGET)
                    nursery.start_soon(self._pump, pair, pair.far, pair.near, FROM_TARGET)
        finally:
            self._pairs.discard(pair)
            pair.close(reset=False)

    async def _pump(self, pair: _Pair, source: trio.SocketStream, sink: trio.SocketStream, direction: str) -> None:
        try:
            while True:
                data = await source.receive_some(CHUNK_BYTES)
                if self.latency_s:
                    await trio.sleep(self.latency_s)
                while self.stalled and not self.half_open:  # noqa: ASYNC110 - set from other threads, without an event
                    await trio.sleep(POLL_S)
                pair.dead = pair.dead or self.half_open
                if pair.dead:
                    if not data:
                        return  # and the other side gets nothing
                    continue
                if not data:
                    await sink.send_eof()
                    return
                if self._strikes(pair, direction, len(data)):
                    limit, _ = self._reset_after or (0, "")
                    await self._send(sink, data[: max(limit - pair.passed[direction], 0)], direction)
                    await trio.sleep(POLL_S)  # a reset may overtake what was sent before it
                    self.resets += 1
                    pair.close(reset=True)
                    return
                pair.passed[direction] += len(data)
                await self._send(sink, data, direction)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            if pair.dead:
                return
            pair.close(reset=True)

    def _strikes(self, pair: _Pair, direction: str, count: int) -> bool:
        fault = self._reset_after
        return fault is not None and fault[1] == direction and pair.passed[direction] + count > fault[0]

    async def _send(self, sink: trio.SocketStream, data: bytes, direction: str) -> None:
        view = memoryview(data)
        while view:
            rate = self.bytes_per_s
            part = len(view) if rate is None else max(int(rate * SLOW_STEP_S), 1)
            self.carried[direction] += len(view[:part])
            await sink.send_all(view[:part])
            view = view[part:]
            if rate is not None:
                await trio.sleep(SLOW_STEP_S)

    async def _swallow(self, stream: trio.SocketStream) -> None:
        while await stream.receive_some(CHUNK_BYTES):
            pass


class FaultyNetwork:
    def __init__(self) -> None:
        self.links: list[Link] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), name="faulty network", daemon=True)
        self._nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken

    def link(self, listen: Address, target: Address) -> Link:
        """A new link. Raises OSError if its address is taken."""
        link = Link(self, listen, target)
        self.do(link.open)
        self.links.append(link)
        return link

    def do(self, action: Callable[[], Any]) -> None:
        trio.from_thread.run_sync(action, trio_token=self._token)

    def start(self, task: Callable[..., Any], *args: Any) -> None:
        self._nursery.start_soon(task, *args)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._ready.set()
            await trio.sleep_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.do(self._nursery.cancel_scope.cancel)
        self._thread.join(10)
