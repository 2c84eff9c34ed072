"""A week of usage records to try reports on: `python -m tests.lab.sample_week` writes examples/usage/week.parquet."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from quota.record import FIELDS
from tests.support.usage_rows import build

FILE: Final = Path(__file__).resolve().parents[2] / "examples/usage/week.parquet"
STEP_S: Final = 600
CONNECTIONS: Final = 2
DAYS: Final = 7
MONDAY_MS: Final = int(datetime(2026, 9, 7, tzinfo=UTC).timestamp() * 1000)
THURSDAY, SATURDAY = 3, 5
MB: Final = 1e6
TYPES: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}


@dataclass(frozen=True)
class Client:
    pod: str
    user: str
    client_id: str
    library: str
    kind: str
    rate: float
    limit: float
    nightly: bool = False
    since_day: int = 0
    ignores: bool = False


CLIENTS: Final = (
    Client("orders-0", "orders", "checkout", "apache-kafka-java", "produce", 1.2 * MB, 5 * MB),
    Client("orders-0", "orders", "order-events", "apache-kafka-java", "fetch", 2.5 * MB, 5 * MB),
    Client("orders-1", "orders", "legacy-feed", "kafka-python", "produce", 2.2 * MB, 2 * MB, ignores=True),
    Client("data-0", "data", "etl", "confluent-kafka-python", "produce", 14 * MB, 8 * MB, nightly=True),
    Client("data-0", "data", "reports", "confluent-kafka-python", "fetch", 4 * MB, 10 * MB),
    Client("data-0", "data", "search-indexer", "franz-go", "fetch", 9 * MB, 10 * MB, since_day=SATURDAY),
)


def wanted(client: Client, day: int, hour: float) -> float:
    if day < client.since_day:
        return 0.0
    if client.nightly:
        return client.rate if 1 <= hour < 4 else client.rate / 20
    working = 0.35 + 0.65 * max(math.sin((hour - 6) / 14 * math.pi), 0.0)
    return client.rate * working * (0.5 if day >= SATURDAY else 1.0)


def record(client: Client, number: int, dice: random.Random) -> dict[str, Any] | None:
    """The interval `number` of a client; None while it is not there."""
    day, hour = divmod(number * STEP_S / 3600, 24)
    limit = 20 * MB if client.client_id == "etl" and day >= THURSDAY else client.limit
    rate = wanted(client, int(day), hour) * dice.uniform(0.85, 1.15)
    if not rate:
        return None
    achieved, kind = min(rate, limit), client.kind
    moved = round(achieved * STEP_S, -3)
    requests = max(round(moved / 100_000), 1)
    over = max(rate / limit - 1, 0.0)
    delayed = min(round(requests * min(over * 2, 0.9)), requests)
    start_ms = MONDAY_MS + number * STEP_S * 1000
    name, version = client.library, {"kafka-python": "3.0.12", "franz-go": "1.20"}.get(client.library, "4.4.0")
    mutes = delayed // 20
    spread = {f"{kind}_rate_{name}": round(achieved * factor, -3) for name, factor in SPREAD.items()}
    return build(
        {
            "schema_version": 3,
            "instance": f"{client.pod}-week",
            "sequence": 1,
            "start_ms": start_ms,
            "end_ms": start_ms + STEP_S * 1000,
            "duration_s": float(STEP_S),
            "samples": STEP_S,
            "cluster_id": "prod",
            "namespace": client.user,
            "pod": client.pod,
            "kquota_version": "0.2.0",
            "user": client.user,
            "client_id": client.client_id,
            "client_library": name,
            "client_library_version": version,
            "connections_peak": CONNECTIONS,
            f"{kind}_bytes": int(moved),
            "request_seconds": round(requests * 0.002, 1),
            "requests": requests,
            f"requests_{kind}": requests,
            f"throttle_{kind}_count": delayed,
            f"throttle_{kind}_seconds": round(min(over, 1.0) * CONNECTIONS * STEP_S, 1) if delayed else 0.0,
            f"throttle_{kind}_held_count": 0,
            f"throttle_{kind}_held_seconds": 0.0,
            "mutes": mutes,
            "mutes_ignored": round(mutes * 0.8) if client.ignores else 0,
            **spread,
            f"{kind}_limit": limit,
            f"{kind}_limit_mode": "enforce",
            f"{kind}_limit_level": "user+client-id",
            f"{kind}_group_user": client.user,
            f"{kind}_group_client_id": client.client_id,
            f"{kind}_group_utilisation_peak": round(min(rate / limit, 1.05), 2),
            f"{kind}_group_shadow_count": 0,
            f"{kind}_group_shadow_seconds": 0.0,
        }
    )


SPREAD: Final = {"p50": 1.0, "p95": 1.1, "p99": 1.15, "max": 1.2}


def rows() -> Iterator[dict[str, Any]]:
    dice, sequences = random.Random(48), Counter[str]()
    for number in range(DAYS * 24 * 3600 // STEP_S):
        for client in CLIENTS:
            if (found := record(client, number, dice)) is not None:
                sequences[client.pod] += 1
                yield found | {"sequence": sequences[client.pod]}


def table() -> pa.Table:
    schema = pa.schema([(one.name, TYPES[one.type]) for one in FIELDS])
    return pa.Table.from_pylist(list(rows()), schema=schema)


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    pq.write_table(table(), FILE, compression="zstd", compression_level=19)
    print(f"{FILE}: {FILE.stat().st_size:,} B")


if __name__ == "__main__":
    main()
