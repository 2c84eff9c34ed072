"""Who takes part in the demo, and what each may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MB = 1_000_000

WINDOW_S = 10
"""Kafka's quota window: what a client may move at once is this many seconds' worth (11 samples of 1 s, one running)."""
STEADY_FROM_S = 13
"""From then on the rate is steady: the opening burst, which takes a second or more, leaves the window 11 s later, and a
delay that was handed out just before, of a second at most, has to pass."""
STEADY_AT_LEAST_S = 4
"""A shorter steady phase says nothing: single requests are worth tenths of a second."""
TOLERANCE = 0.10
"""How far from its limit (or its own target) a client may be in the steady phase."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One client of the demo. Rates are in bytes per second, of record values."""

    client_id: str
    library: str
    manner: str
    """One word for its character."""
    role: Literal["producer", "consumer"]
    program: str
    """Module in deploy.demo.clients."""
    topic: str
    limit: float | None
    wanted: float | None
    """What it tries to move; None: all it can."""

    @property
    def quota_name(self) -> str:
        """Kafka's name of the quota that applies to it."""
        return "producer_byte_rate" if self.role == "producer" else "consumer_byte_rate"


PLANS: Sequence[Plan] = (
    Plan("orders", "kafka-python", "polite", "producer", "kafka_python_producer", "orders", 1 * MB, 3 * MB),
    Plan("clickstream", "aiokafka", "greedy", "producer", "aiokafka_producer", "clickstream", 2 * MB, None),
    Plan("reports", "librdkafka", "stubborn", "consumer", "librdkafka_consumer", "clickstream", 1.5 * MB, None),
    Plan("batch", "librdkafka", "no quota", "producer", "librdkafka_producer", "batch", None, 5 * MB),
)
"""`reports` reads what `clickstream` writes, which is always more than it may read. `batch` limits itself to a modest
rate, so that the demo runs on a small machine."""
