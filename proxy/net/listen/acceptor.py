"""Accept loops: clients are accepted, or turned away where a limit is reached or no file descriptor is left."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from proxy.core.errors import CloseReason
from proxy.net.listen.connections import Connections
from proxy.net.listen.spare_fd import SpareFd, descriptors, most_connections
from proxy.net.upstream.dial import Dial

log = structlog.get_logger("kquota.proxy")

ACCEPT_CAPACITY_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
ACCEPT_PAUSE_S: Final = 0.1
"""Out of descriptors: open connections go on, and this many new ones are turned away at a time."""
ACCEPT_LOG_EVERY_S: Final = 10.0
TURNED_AWAY_AT_ONCE: Final = 100


@dataclass(eq=False)
class Acceptor:
    """All listening sockets of a sidecar."""

    connections: Connections
    listeners: list[socket.socket] = field(default_factory=list)
    _spare_fd: SpareFd = field(default_factory=SpareFd)
    _logged_s: float = -ACCEPT_LOG_EVERY_S

    async def run(self, listener: socket.socket, name: str, dial: Dial) -> None:
        """Accept clients until the listener is closed. Logs name their connections `name`; they `dial` the broker."""
        with suppress(trio.ClosedResourceError):
            while listener.fileno() >= 0:  # it may be closed between a wait and the accept
                await trio.lowlevel.wait_readable(listener)
                try:
                    client, address = listener.accept()
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in ACCEPT_CAPACITY_ERRNOS:
                        await self._no_descriptors(listener, error)
                    continue  # the client is gone before we accepted it (ECONNABORTED and the like)
                allowed = self._allowed()
                if self.connections.count() >= allowed:
                    self._turn_away(client, address, allowed)
                else:
                    self.connections.start(client, address, name, dial)

    def _allowed(self) -> int:
        return most_connections(self.connections.settings.bounds.max_connections, len(self.listeners))

    def close_listener(self, listener: socket.socket) -> None:
        """Refuse further clients of one listener, those in its backlog included."""
        self.listeners.remove(listener)
        trio.lowlevel.notify_closing(listener)
        listener.close()

    @property
    def full(self) -> str | None:
        """Why the process's limit of open files allows no further connection; None when it does."""
        allowed = self._allowed()
        if self.connections.count() < allowed or allowed == self.connections.settings.bounds.max_connections:
            return None
        return f"no file descriptors for another connection: {self._descriptors_used()}"

    def check_capacity(self) -> None:
        """Raises OSError if one more listener would leave no descriptors for connections."""
        if most_connections(1, len(self.listeners) + 1) == 0:
            raise OSError(errno.EMFILE, f"no file descriptor for one more listener: {self._descriptors_used()}")

    def _descriptors_used(self) -> str:
        used = f"{len(self.listeners)} listeners and {self.connections.count()} connections"
        return f"the limit of open files is {descriptors()}, and there are {used}"

    def stop(self) -> None:
        """Accept nothing more: new clients are refused at once instead of waiting in the backlog."""
        for listener in [*self.listeners]:
            self.close_listener(listener)
        self.connections.admission.close_muted()

    def close(self) -> None:
        """Stop, and close the spare descriptor."""
        self.stop()
        self._spare_fd.close()

    async def _no_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Out of descriptors: turn away clients in the backlog, so that they need not wait."""
        counters = self.connections.shared.counters
        counters.accept_failures += 1
        if self.connections.admission.close_muted():
            return  # descriptors are free now
        now_s = trio.current_time()
        if now_s >= self._logged_s + ACCEPT_LOG_EVERY_S:
            self._logged_s = now_s
            log.error("cannot accept client connections", error=str(error), failures=counters.accept_failures)
        for _ in range(TURNED_AWAY_AT_ONCE):
            if not self._spare_fd.turn_away(listener):
                break
            counters.connections.opened += 1
            counters.connections.closed[str(CloseReason.NO_DESCRIPTORS)] += 1
        await trio.sleep(ACCEPT_PAUSE_S)
        self._spare_fd.refill()

    def _turn_away(self, client: socket.socket, address: tuple[str, int], limit: int) -> None:
        shared = self.connections.shared
        client.close()
        shared.counters.connections.opened += 1
        shared.counters.connections.closed[str(CloseReason.MAX_CONNECTIONS)] += 1
        shared.close_log.closed(str(CloseReason.MAX_CONNECTIONS), peer=f"{address[0]}:{address[1]}", limit=limit)
