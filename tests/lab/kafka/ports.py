"""Free TCP ports that stay free until the JVM binds them, with high likelihood.

The kernel gives ports from its ephemeral range (32768 and up on Linux) to every outgoing connection of every process,
so a port "found free" there may be taken a second later, and a stopped broker could not come back to its own. Below
that range no program gets a port by accident. Programs that look for ports at the same time could still choose the
same one before either has bound it: the environment variable KQUOTA_PORTS gives each a range of its own. Within one
program, a port that was given lately, and may not have been bound yet, is not given again.
"""

from __future__ import annotations

import os
import random
import re
import socket
from collections import deque
from typing import Final

RANGE: Final = "KQUOTA_PORTS"
"""The environment variable: `20000-22999`, both ends included."""
DEFAULT_RANGE: Final = "20000-32000"
ATTEMPTS: Final = 200

_given: Final = deque[int](maxlen=500)
"""The latest ports that were found. They are not given again while there are others."""


def port_range() -> tuple[int, int]:
    text = os.environ.get(RANGE) or DEFAULT_RANGE
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None:
        raise ValueError(f"{RANGE}: got {text!r}, expected a range of ports such as 20000-22999")
    return int(match[1]), int(match[2])


def free_ports(count: int, avoid: set[int] | None = None) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found.append(free_port_run(1, {*found, *(avoid or ())}))
    return found


def free_port_run(count: int, avoid: set[int] | None = None) -> int:
    """The first of `count` adjacent ports on 127.0.0.1, all of which can be bound now. Raises as free_ports."""
    low, high = port_range()
    starts = range(low, high - count + 2)
    for lately in (set(_given), set[int]()):
        not_these = lately.union(avoid or ())
        for first in random.sample(starts, min(ATTEMPTS, len(starts))):
            ports = range(first, first + count)
            if not_these.isdisjoint(ports) and all(map(_can_bind, ports)):
                _given.extend(ports)
                return first
    wanted = "no free port" if count == 1 else f"no {count} adjacent free ports"
    raise OSError(f"{wanted} on 127.0.0.1 between {low} and {high}")


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As the JVM does: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
