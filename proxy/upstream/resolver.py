"""Names to addresses, when brokers are dialled: by the system's resolver, aside, and never many at once.

A resolver whose servers do not answer holds a thread for many seconds, longer than anybody waits for it. Those threads
must not be the ones that others need (trio's common 40), and a hundred clients that dial the same name ask once.
Nothing is remembered: how long an answer is good, getaddrinfo does not tell.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import trio

MAX_LOOKUPS: Final = 16
"""Names that are looked up at the same time; further ones wait for their turn as long as who asks has patience."""


class Resolver(trio.abc.HostnameResolver):
    """For `trio.socket.set_custom_hostname_resolver`. Literal addresses never come here."""

    def __init__(self, look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
        """`look_up` has the arguments and results of `socket.getaddrinfo`, and may block."""
        self._look_up = look_up
        self._threads = trio.CapacityLimiter(MAX_LOOKUPS)
        self._under_way: dict[tuple[Any, ...], _Lookup] = {}

    async def getaddrinfo(
        self, host: bytes | None, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """As `socket.getaddrinfo`; raises socket.gaierror. Who is cancelled waits no longer, the lookup goes on."""
        key = (host, port, family, type, proto, flags)
        lookup = self._under_way.get(key)
        if lookup is None:
            lookup = self._under_way[key] = _Lookup()
            trio.lowlevel.spawn_system_task(self._run, key, lookup)  # of its own: nobody's timeout ends it
        await lookup.done.wait()
        if lookup.error is not None:
            raise lookup.error.with_traceback(None)
        return list(lookup.found)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        """Nobody asks for names of addresses."""
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
    """One name that is being looked up."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.found: list[Any] = []
        self.error: Exception | None = None
