"""Free TCP ports that stay free until the JVM binds them, with high likelihood.

The kernel gives ports from its ephemeral range (32768 and up on Linux) to every outgoing connection of every process,
so a port "found free" there may be taken a second later, and a stopped broker could not come back to its own. Below
that range no program gets a port by accident.
"""

from __future__ import annotations

import random
import socket

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
ATTEMPTS = 200


def free_ports(count: int, avoid: set[int] | None = None) -> list[int]:
    """Distinct ports on 127.0.0.1 that can be bound now.

    Raises:
        OSError: no free port was found.
    """
    found: list[int] = []
    taken = set(avoid or ())
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST_PORT, HIGHEST_PORT)
        if port not in taken and _can_bind(port):
            taken.add(port)
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no free port on 127.0.0.1 between {LOWEST_PORT} and {HIGHEST_PORT}")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As the JVM does: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
