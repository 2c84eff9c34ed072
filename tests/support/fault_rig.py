"""A sidecar with a network that fails on both sides: clients -> links (127.0.0.2) -> sidecar -> link -> broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_ports
from tests.lab.kafka.probe import brokers_seen_by
from tests.lab.kafka.properties import ExtraListener
from tests.support.fault_tools import Held, least_held
from tests.support.faults import FaultyNetwork, Link
from tests.support.sidecars import Sidecar, sidecar
from tests.support.waiting import until

CLIENTS_HOST: Final = "127.0.0.2"
IDLE_MS: Final = 8000
"""Clients that vanish without a word are kept so long; ten minutes unless configured otherwise."""


@dataclass
class Rig:
    """Everything between a client and the broker."""

    cluster: KafkaCluster
    proxy: Sidecar
    to_sidecar: list[Link]
    to_broker: Link
    bootstrap: str
    """For clients."""
    at_rest: Held

    def links(self, where: str) -> list[Link]:
        """Those on the side of the "clients" or of the "broker"."""
        return self.to_sidecar if where == "clients" else [self.to_broker]

    def each(self, where: str, do: Callable[[Link], None]) -> None:
        """Do something to all links of one side."""
        for link in self.links(where):
            do(link)


@contextmanager
def between_links(quotas: Sequence[dict[str, Any]], **settings: Any) -> Iterator[Rig]:
    """A broker of its own and a sidecar with these quotas and further settings, with links before and behind it."""
    own_port, told_port = free_ports(2)
    listener = ExtraListener("FAULTS", own_port, told_port)
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster.start(1, progress=print, extra_listeners=[listener]))
        network = stack.enter_context(FaultyNetwork())
        to_broker = network.link(("127.0.0.1", told_port), ("127.0.0.1", own_port))
        proxy = stack.enter_context(
            sidecar(
                [f"127.0.0.1:{told_port}"],
                list(quotas),
                drain_timeout_s=2,
                connections_max_idle_ms=IDLE_MS,
                listen={"advertised": {"host": CLIENTS_HOST}},
                **settings,
            )
        )
        ports = [proxy.port, *(broker.port for broker in brokers_seen_by("127.0.0.1", proxy.port))]
        to_sidecar = [network.link((CLIENTS_HOST, port), ("127.0.0.1", port)) for port in ports]
        yield Rig(cluster, proxy, to_sidecar, to_broker, f"{CLIENTS_HOST}:{proxy.port}", least_held(proxy))


def cut(where: str, *, reset: bool) -> Callable[[Rig], None]:
    """End all connections of one side, three times."""

    def strike(rig: Rig) -> None:
        for _ in range(3):
            rig.each(where, lambda link: link.cut(reset=reset))
            time.sleep(0.3)

    return strike


def gone_for(where: str, seconds: float) -> Callable[[Rig], None]:
    """Reset all connections of one side and refuse new ones."""

    def strike(rig: Rig) -> None:
        rig.each(where, Link.refuse)
        rig.each(where, lambda link: link.cut(reset=True))
        time.sleep(seconds)
        rig.each(where, Link.heal)

    return strike


def with_setting(where: str, seconds: float, **settings: float | bool) -> Callable[[Rig], None]:
    """Change attributes of the links of one side."""

    def strike(rig: Rig) -> None:
        for link in rig.links(where):
            for name, value in settings.items():
                setattr(link, name, value)
        time.sleep(seconds)
        rig.each(where, Link.heal)

    return strike


def reset_within_frames(where: str, direction: str, count: int) -> Callable[[Rig], None]:
    """Reset connections after `count` bytes. Batches have 5 to 30 kB: the reset strikes inside a message."""

    def strike(rig: Rig) -> None:
        before = sum(link.resets for link in rig.links(where))
        rig.each(where, lambda link: link.reset_after(count, direction))
        until(lambda: sum(link.resets for link in rig.links(where)) >= before + 3, "resets", 30)
        rig.each(where, Link.heal)

    return strike
