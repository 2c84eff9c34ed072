"""What the process holds for clients: gauges that return to their former values when the clients are gone."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from prometheus_client.core import Metric

from proxy.app.metrics.families import gauge
from proxy.net.listen.server import Proxy
from quota.ledger import Ledger


def held_families(proxy: Proxy, ledger: Ledger) -> Iterator[Metric]:
    """What is held now; must be called inside the event loop."""
    yield gauge("kquota_tasks", "Tasks of the event loop.", trio.lowlevel.current_statistics().tasks_living)
    yield gauge("kquota_pipes_open", "Kernel pipes for moving bytes.", proxy.pipes_open)
    yield gauge("kquota_fetch_reservations", "Fetches at brokers with bytes reserved.", ledger.reservations)
