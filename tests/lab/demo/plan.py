"""The clients of the demo and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MB = 1_000_000

WINDOW_S = 10
"""Kafka's quota window: what a client may move at once is this many seconds' worth (11 samples of 1 s, one running)."""
STEADY_FROM_S = 13
"""From then on the rate is steady, at the earliest: the opening burst, which takes a second or more, leaves the window
11 s later, and the last delay before that, of a second at most, has to pass."""
AFTER_BURST_S = 11
"""A burst has left the window this long after its last byte: 10 s, and the sample of a second that is not over."""
BURST_SHARE = 0.9
"""A client has spent its first window when it moved this fraction of ten seconds' worth: the quota counts a few per
cent more than the records, and what is buffered in the client counts as well."""
LONGER_S = 15
"""A run becomes up to this much longer if a busy machine needs longer for the first window."""
STEADY_AT_LEAST_S = 4
TOLERANCE = 0.10
"""How far from its limit (or its own target) a client may be in the steady phase."""


@dataclass(frozen=True, slots=True)
class DemoClient:
    """One client of the demo. Rates are in bytes per second, of record values."""

    name: str
    """Its client-id, with a number where several clients have the same."""
    client_id: str
    library: str
    manner: str
    role: Literal["producer", "consumer"]
    program: str
    topic: str
    limit: float | None
    wanted: float | None
    sidecar: int = 0
    shared: bool = False
    """The limit is the fleet's: all clients with this client-id share it, through whichever sidecar they connect."""

    @property
    def quota_name(self) -> str:
        return "producer_byte_rate" if self.role == "producer" else "consumer_byte_rate"


PLANS: Sequence[DemoClient] = (
    DemoClient(
        "orders", "orders", "kafka-python", "polite", "producer", "kafka_python_producer", "orders", 1 * MB, 3 * MB
    ),
    DemoClient(
        "clicks-1", "clicks", "aiokafka", "greedy", "producer", "aiokafka_producer", "clicks",
        2 * MB, None, shared=True,
    ),
    DemoClient(
        "clicks-2", "clicks", "librdkafka", "modest", "producer", "librdkafka_producer", "clicks",
        2 * MB, 0.5 * MB, sidecar=1, shared=True,
    ),
    DemoClient(
        "reports", "reports", "librdkafka", "stubborn", "consumer", "librdkafka_consumer", "batch",
        1.5 * MB, None, sidecar=1,
    ),
    DemoClient("batch", "batch", "librdkafka", "no quota", "producer", "librdkafka_producer", "batch", None, 5 * MB),
)  # fmt: skip
"""The two of `clicks` have one limit of the fleet: the greedy one gets what the modest one does not want. `reports`
reads what `batch` writes, which is always more than it may read. `batch` limits itself to a modest rate, so that the
demo runs on a small machine."""
SIDECARS = 1 + max(plan.sidecar for plan in PLANS)


def sharing(plan: DemoClient, plans: Sequence[DemoClient]) -> list[DemoClient]:
    """Those that share a limit with `plan`, itself included; it alone if the limit is not shared."""
    return [other for other in plans if other.client_id == plan.client_id] if plan.shared else [plan]


def is_hungry(plan: DemoClient) -> bool:
    """Whether it wants more than it can have: only such clients are throttled."""
    return plan.limit is not None and (plan.wanted is None or plan.wanted > plan.limit)
