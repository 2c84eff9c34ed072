"""Resolves names when brokers are dialled: by the system's resolver, in few threads of its own, as a lookup whose
servers do not answer holds one for many seconds. A hundred clients that dial the same name look it up once. Nothing is
cached: getaddrinfo does not say how long an answer is valid."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import trio

MAX_LOOKUPS: Final = 16
"""Names that are looked up at the same time; further ones wait, until their callers time out."""


class Resolver(trio.abc.HostnameResolver):
    """For `trio.socket.set_custom_hostname_resolver`. Literal addresses never come here."""

    def __init__(self, look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
        self._look_up = look_up
        self._threads = trio.CapacityLimiter(MAX_LOOKUPS)
        self._under_way: dict[tuple[Any, ...], _Lookup] = {}

    async def getaddrinfo(
        self, host: bytes | None, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """As `socket.getaddrinfo`; raises socket.gaierror. Cancelling ends the wait, not the lookup."""
        key = (host, port, family, type, proto, flags)
        lookup = self._under_way.get(key)
        if lookup is None:
            lookup = self._under_way[key] = _Lookup()
            trio.lowlevel.spawn_system_task(self._run, key, lookup)  # own task: no caller's timeout ends it
        await lookup.done.wait()
        if lookup.error is not None:
            raise lookup.error.with_traceback(None)
        return list(lookup.found)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        """Never needed: addresses are not resolved to names."""
        raise NotImplementedError

    async def _run(self, key: tuple[Any, ...], lookup: _Lookup) -> None:
        try:
            lookup.found = await trio.to_thread.run_sync(
                self._look_up, *key, abandon_on_cancel=True, limiter=self._threads
            )
        except (OSError, UnicodeError) as error:  # gaierror is an OSError; labels may be too long for IDNA
            lookup.error = error
        finally:
            del self._under_way[key]
            lookup.done.set()


class _Lookup:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.found: list[Any] = []
        self.error: Exception | None = None
