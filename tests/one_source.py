"""Random operations on a ledger, and all that can be seen of it after each of them, as one line per case.

    python -m tests.one_source [--seed N] [--cases N]

The lines are the same whatever the arithmetic runs as: tests/system/test_one_source.py compares two processes.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from typing import Any

from quota import compiled
from quota.accounts import Account, Meter, RequestCounts
from quota.counter import FetchGrant, QuotaCounter, Usage
from quota.entity import DEFAULT, Kind
from quota.fetch_sizer import FetchSizer
from quota.ledger import Ledger
from quota.pacing import Pacer
from quota.rate import Sample, SampledRate
from quota.table import Entry, QuotaTable
from quota.trial import Trial

RATES = (None, 1.0, 1000, 50_000.0, 3_333_333.3, 1e12, 2.0**63)
STEPS_MS = (-1.5, 0.0, 0.4, 7.0, 260.0, 999.0, 1000.0, 5_000.0, 20_000.0, 300_000.0)
_shown: dict[type, list[str]] = {}
"""Attributes of each class that are shown."""
OWN = (Account, FetchGrant, QuotaCounter, Meter, Pacer, FetchSizer, RequestCounts, SampledRate, Trial, Usage)


def seen(value: Any) -> Any:
    """A value as both kinds of code show it: a number by its value (5 is 5.0), an object by its attributes."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Sample):
        return "a sample"  # `SampledRate.samples` shows what is in it
    if isinstance(value, int | float) and abs(value) < 2**53:
        return float(value).hex()
    if isinstance(value, OWN):
        if (shown := _shown.get(type(value))) is None:
            names = [name for name in dir(value) if not name.startswith("__") and not callable(getattr(value, name))]
            # What a property shows is a C number behind it, which compiled code does not show itself.
            left_out = {"_gate", "group"} | {f"_{name}" for name in names}
            shown = _shown[type(value)] = [name for name in names if name not in left_out]
        return [(name, seen(getattr(value, name))) for name in shown]
    if isinstance(value, list | tuple):
        return [seen(one) for one in value]
    if isinstance(value, dict):
        return [(str(key), seen(one)) for key, one in value.items()]
    if type(value).__name__ in ("deque", "TokenBucket"):
        return [seen(one) for one in (value if type(value).__name__ == "deque" else (value.tokens, value._last_ms))]
    return str(value)


def table(rng: random.Random) -> QuotaTable:
    rate = rng.choice(RATES)
    limits: dict[str, Any] = {
        "producer_byte_rate": rate,
        "consumer_byte_rate": rng.choice([rate, 1000.0]),
        "request_percentage": rng.choice([None, 0.01, 1.0, 200.0]),
        "controller_mutation_rate": rng.choice([None, 5.0]),
    }
    if not any(limits.values()):
        return QuotaTable([])
    return QuotaTable([Entry(client_id=DEFAULT, mode=rng.choice(["enforce", "enforce", "shadow"]), **limits)])


class Sender:
    """A connection on which a part of a request has not arrived yet."""

    def __init__(self, missing_bytes: int) -> None:
        self.missing_bytes = missing_bytes


def case(seed: int, operations: int = 150) -> str:
    rng, digest = random.Random(seed), hashlib.sha256()
    cap = rng.choice([None, 1000, 30_000])
    smooth, samples = rng.random() < 0.7, rng.choice([1, 2, 11])
    windows = {"num_samples": samples, "mutation_num_samples": samples}
    ledger = Ledger(table(rng), smooth=smooth, max_throttle_ms=cap, **windows)
    now_ms = rng.choice([0.0, 12_345.678])
    out: list[tuple[Account, FetchGrant]] = []
    connections = [Sender(1000 * number) for number in range(4)]
    for _ in range(operations):
        now_ms = max(0.0, now_ms + rng.choice(STEPS_MS))
        account = ledger.account("u", rng.choice("ab"))
        result: Any = None
        match rng.randrange(11):
            case 0 if rng.random() < 0.4:
                ledger.swap(table(rng))
            case 0 | 1 | 2:
                result = ledger.charge(account, Kind.PRODUCE, rng.choice([1, 700, 20_000, 2_000_000]), now_ms)
            case 3:
                result = ledger.charge(account, Kind.REQUEST, rng.random() * 500, now_ms)
            case 4:
                result = tuple(ledger.charge_mutation(account, 3.0, rng.random() < 0.5, now_ms))
            case 5:
                ledger.refund(account, rng.choice(list(Kind)), 100, now_ms)
            case 6 | 7:
                wanted = rng.choice([-1, 0, 1, 1000, 52_428_800, 2**31 - 1])
                grant = ledger.admit(account, Kind.FETCH, wanted, now_ms)
                result = (grant.throttle_ms, grant.max_bytes, grant.reserved, grant.paced_ms)
                if not grant.throttle_ms:
                    out.append((account, grant))
            case 8 if out:
                account, grant = out.pop(rng.randrange(len(out)))
                ledger.settle(account, Kind.FETCH, grant, rng.choice([0, 1, 100, 700, 1_000_000]), now_ms)
            case 9:
                kind, whole = rng.choice([Kind.PRODUCE, Kind.REQUEST]), rng.random() < 0.5
                amount = 0 if kind is Kind.REQUEST else rng.choice([1000, 5_000_000])
                result = ledger.queue(account, kind, rng.choice(connections), amount, now_ms, whole=whole)
            case _:
                kind = rng.choice(list(Kind))
                ledger.leave_queue(account, kind, rng.choice(connections))
                result = ledger.check(account, kind, now_ms)
        book = [result, list(ledger.accounts()), list(ledger.groups()), ledger.reservations]
        now = int(now_ms)
        shown = [(one.observed(now), one.utilisation(now), one.owed_ms(now), one.paced) for one in ledger.groups()]
        digest.update(repr([seen(book), seen(shown)]).encode())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=60)
    options = parser.parse_args()
    print(f"arithmetic: {compiled.WHY_NOT or 'compiled'}")
    for seed in range(options.seed, options.seed + options.cases):
        print(seed, case(seed))


if __name__ == "__main__":
    main()
