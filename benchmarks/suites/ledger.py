"""The ledger alone, without sockets: a million invented clients; ten million events.

Run it by `python -m benchmarks.suites.ledger`.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

from proxy.app.metrics import Exposition, Status
from proxy.app.sources.watch import ReloadState
from proxy.core.telemetry.observer import Counters
from quota.entity import DEFAULT, Kind
from quota.ledger import Account, Ledger
from quota.rate import SampledRate
from quota.table import CandidateLimits, Entry, QuotaTable

CLIENTS = 1_000_000
EVENTS = 10_000_000
HONEST = 100
PER_S = 20_000
"""New client ids each second of the ledger's time: with 11 s of memory, far more than there is room for."""


def rss_mb() -> float:
    """Resident memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


def table(kinds: list[Kind]) -> QuotaTable:
    """Quotas of each client-id apart, of these kinds."""
    produce, fetch, request, mutation = (1e5 if kind in kinds else None for kind in Kind)
    return QuotaTable([Entry(None, DEFAULT, produce, fetch, request, mutation)])


def attack(kinds: list[Kind], name_length: int) -> None:
    """A million names, each used once in every way, beside clients that stay; expositions and housekeeping go on."""
    ledger, calm = (Ledger(table(kinds)) for _ in range(2))
    metrics = Exposition(ledger, Counters(), ReloadState(), lambda: Status(True, True, False), max_groups=200)
    honest = [[one.account("u", f"honest-{number}") for number in range(HONEST)] for one in (ledger, calm)]
    gc.collect()
    before_mb, peak_mb, collected_s, steps = rss_mb(), 0.0, 0.0, [0.0]
    begin = time.process_time()
    decisions = 0
    for index in range(CLIENTS):
        now = index * 1000 // PER_S
        account = ledger.account("u", f"{index:08}".ljust(name_length, "x"))
        for kind in kinds:
            ledger.charge(account, kind, 100, now)
        if index % 20 == 0:  # each honest client every 100 ms, some at twice the limit
            number = index // 20 % HONEST
            amount = 5000 * (1 + number % 4)
            delays = {
                one.charge(accounts[number], Kind.PRODUCE, amount, now)
                for one, accounts in paired(ledger, calm, honest)
            }
            assert len(delays) == 1, "an honest client was counted otherwise"
            decisions += 1
        if index % 100_000 == 99_999:
            gc.disable()
            steps += list(timed(ledger.sweep(now))) + list(timed(metrics._clients.look(now)))
            gc.enable()
            started = time.process_time()
            gc.collect()
            collected_s = max(collected_s, time.process_time() - started)
            peak_mb = max(peak_mb, rss_mb())
    spent_s = time.process_time() - begin
    del account
    names = "+".join(kinds)
    print(f"{CLIENTS} names of {name_length} characters, {names}: {spent_s:.0f} s of CPU with all else,")
    print(
        f"  resident memory +{peak_mb - before_mb:.0f} MB, {ledger.clients} clients, "
        f"{sum(ledger.counters.count(kind) for kind in Kind)} counters, "
        f"{sum(ledger.counters.overflowed.values())} times led to an overflow counter"
    )
    print(
        f"  longest step of housekeeping and expositions {max(steps) * 1000:.1f} ms, "
        f"a full garbage collection {collected_s * 1000:.0f} ms; "
        f"{decisions} decisions about honest clients as without the attack"
    )


def paired(one: Ledger, other: Ledger, honest: list[list[Account]]) -> Iterator[tuple[Ledger, list[Account]]]:
    """Both ledgers with their honest clients."""
    return zip((one, other), honest, strict=True)


def timed(steps: Iterator[object]) -> Iterator[float]:
    """CPU time of each step."""
    while True:
        begin = time.process_time()
        try:
            next(steps)
        except StopIteration:
            return
        yield time.process_time() - begin


def drift() -> None:
    """How far sums are off after ten million events."""
    rate = SampledRate()
    kept: list[tuple[int, int]] = []
    now = 0
    for number in range(EVENTS // 2):
        now, amount = number // 300, 1 + number % 100_003
        rate.record(amount, now)
        rate.record(-amount if number % 3 else 0, now)
        if not number % 3 and number > EVENTS // 2 - 4_000_000:
            kept.append((now, amount))
    total, window_ms = rate.peek(now)
    exact = sum(amount for at, amount in kept if at >= now - window_ms)
    print(f"{EVENTS} charges and refunds of bytes: the window holds {total:.0f}, off by {total - exact}")
    rate = SampledRate()
    for number in range(EVENTS):
        now = number // 100
        rate.record(0.1, now)
    total, window_ms = rate.peek(now)
    exact_tenths = Fraction(window_ms + 1) * 100 / 10
    print(
        f"{EVENTS} tenths of percent-seconds: {float(exact_tenths)} in the window, "
        f"off by {float(total - exact_tenths):.1e}"
    )
    ledger = Ledger(QuotaTable([Entry(user="u", controller_mutation_rate=1)]))
    account = ledger.account("u", "c")
    for now in range(EVENTS):
        ledger.charge(account, Kind.MUTATION, 0.001, now)
    tokens = ledger.observed(account, Kind.MUTATION, now)
    print(f"{EVENTS} takes of 0.001 tokens at exactly the rate: {tokens} tokens of 11, off by {tokens - 10.999:.1e}")


def costs() -> None:
    """What one charge costs."""
    far, near = CandidateLimits(producer_byte_rate=1e11), CandidateLimits(producer_byte_rate=1e4)
    for label, live, candidate in (
        ("no candidate", 1e12, None),
        ("candidate with room", 1e12, far),
        ("candidate exceeded", 1e12, near),
        ("live limit exceeded", 1e4, None),
    ):
        best = 1.0
        for _ in range(7):
            ledger = Ledger(QuotaTable([Entry(user="u", producer_byte_rate=live, candidate=candidate)]))
            account = ledger.account("u", "c")
            begin = time.process_time()
            for now in itertools.islice(itertools.count(), 200_000):
                ledger.charge(account, Kind.PRODUCE, 1000, now)
            best = min(best, (time.process_time() - begin) / 200_000)
        print(f"a charge, {label}: {best * 1e6:.2f} us")


def apart(work: Callable[..., None], *arguments: object) -> None:
    """Do it in a process of its own, so that memory is counted from the beginning."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__} failed")


if __name__ == "__main__":
    apart(costs)
    apart(attack, [Kind.PRODUCE, Kind.FETCH], 20)
    apart(attack, list(Kind), 20)
    apart(attack, [Kind.PRODUCE], 32_000)
    apart(drift)
