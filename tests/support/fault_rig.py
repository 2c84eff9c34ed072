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
    cluster: KafkaCluster
    proxy: Sidecar
    to_sidecar: list[Link]
    to_broker: Link
    beside: Link
    bootstrap: str
    direct: str
    at_rest: Held

    def links(self, where: str) -> list[Link]:
        return self.to_sidecar if where == "clients" else [self.to_broker, self.beside]

    def each(self, where: str, do: Callable[[Link], None]) -> None:
        for link in self.links(where):
            do(link)

    def resets(self, where: str) -> int:
        """How often connections of one side have been reset within a message; of two ways to a broker, the fewer."""
        resets = [link.resets for link in self.links(where)]
        return sum(resets) if where == "clients" else min(resets)


@contextmanager
def between_links(quotas: Sequence[dict[str, Any]], **settings: Any) -> Iterator[Rig]:
    """A broker of its own and a sidecar with these quotas and further settings, with links before and behind it."""
    ports = iter(free_ports(4))
    listeners = [ExtraListener(name, next(ports), next(ports)) for name in ("FAULTS", "BESIDE")]
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster.start(1, progress=print, extra_listeners=listeners))
        network = stack.enter_context(FaultyNetwork())
        to_broker, beside = (
            network.link(("127.0.0.1", one.advertised_port), ("127.0.0.1", one.port)) for one in listeners
        )
        settings |= {"drain_timeout_s": 2, "connections_max_idle_ms": IDLE_MS}
        advertised = {"advertised": {"host": CLIENTS_HOST}}
        upstream = ["{}:{}".format(*to_broker.listen)]
        proxy = stack.enter_context(sidecar(upstream, list(quotas), listen=advertised, **settings))
        doors = [proxy.port, *(broker.port for broker in brokers_seen_by("127.0.0.1", proxy.port))]
        to_sidecar = [network.link((CLIENTS_HOST, port), ("127.0.0.1", port)) for port in doors]
        bootstrap, direct = f"{CLIENTS_HOST}:{proxy.port}", "{}:{}".format(*beside.listen)
        yield Rig(cluster, proxy, to_sidecar, to_broker, beside, bootstrap, direct, least_held(proxy))


def cut(rig: Rig, where: str, *, reset: bool) -> None:
    for _ in range(3):
        rig.each(where, lambda link: link.cut(reset=reset))
        time.sleep(0.3)


def gone_for(rig: Rig, where: str, seconds: float) -> None:
    """Reset all connections of one side and refuse new ones."""
    rig.each(where, Link.refuse)
    rig.each(where, lambda link: link.cut(reset=True))
    time.sleep(seconds)
    rig.each(where, Link.heal)


def with_setting(rig: Rig, where: str, seconds: float, **settings: float | bool) -> None:
    for link in rig.links(where):
        for name, value in settings.items():
            setattr(link, name, value)
    time.sleep(seconds)
    rig.each(where, Link.heal)


def reset_within_frames(rig: Rig, where: str, direction: str, count: int) -> None:
    """Reset connections after `count` bytes. Batches have 5 to 30 kB: the reset strikes inside a message."""
    before = rig.resets(where)
    rig.each(where, lambda link: link.reset_after(count, direction))
    until(lambda: rig.resets(where) >= before + 3, "resets", 30)
    rig.each(where, Link.heal)
