"""Stores the port of each broker in a file, off the event loop (`listen.state_file`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from config.known_ports import BadStateError, load_ports, ports_bytes
from proxy.app.sources import follow
from proxy.app.sources.follow import Aside, replace_file
from proxy.net.listen.addresses import KnownPort
from proxy.net.listen.server import Proxy

log = structlog.get_logger("kquota")

BETWEEN_WRITES_S: Final = 1.0


def ports_before(path: str | None) -> list[KnownPort]:
    """What the file says at the start; nothing, and a warning, when it cannot be used."""
    if path is None:
        return []
    try:
        return load_ports(path)
    except BadStateError as error:
        log.warning("the ports of brokers before the restart are unknown", error=str(error))
        return []


async def keep_ports(path: Path, proxy: Proxy) -> None:
    """Write the file whenever a port leads to another broker, until cancelled. The disk holds up nothing else."""
    aside = Aside()
    written: Sequence[object] | None = None
    failed = False
    while True:
        changed = proxy.cluster.changed
        ports = proxy.cluster.book.known_ports(trio.current_time())
        content = [(port, broker, held_s is None) for port, broker, held_s in ports]
        if content != written and (content or written is not None):
            try:
                await aside.run(replace_file, path, ports_bytes(ports, time.time()))
            except OSError as error:
                if not failed:
                    log.warning("the ports of brokers cannot be stored", file=str(path), error=str(error))
                failed = True
            else:
                written, failed = content, False
        await trio.sleep(follow.ANSWER_TIMEOUT_S if failed else BETWEEN_WRITES_S)
        if not failed:
            await changed.wait()
