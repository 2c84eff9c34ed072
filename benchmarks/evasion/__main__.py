"""`python -m benchmarks.evasion`: attack, measure, judge. Exit code 1 when a row got more than its limit allows."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from benchmarks.evasion import beside, honest
from benchmarks.evasion.report import Report, store, summary
from benchmarks.evasion.rows import BATCHES, chosen
from benchmarks.evasion.run import in_words, run
from benchmarks.evasion.stage import stage

SECONDS = 134.0
"""The first window (11 s), two minutes, and room to begin."""
QUICK_S = 45.0
DIRECT_S = 45.0
"""Of each batch at the broker's own quotas, which are there for comparison."""
HONEST, NEIGHBOUR = "honest", "neighbour"


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.evasion", description=__doc__)
    arguments.add_argument(
        "--rows",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"rows or batches, `{HONEST}` or the names of honest libraries, `{NEIGHBOUR}`; all if left out",
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each batch of attacks")
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s of each batch; nothing is stored")
    arguments.add_argument("--direct", action="store_true", help="also against the broker's own quotas, for comparison")
    arguments.add_argument("--offer", type=float, help="try so many times the limit, whatever the rows say")
    arguments.add_argument("--list", action="store_true", help="show the rows")
    arguments.add_argument("--store", action="store_true", help="store the result")
    options = arguments.parse_args()
    libraries = [name for name in honest.NAMES if not options.rows or name in options.rows or HONEST in options.rows]
    names = [name for name in options.rows if name not in (HONEST, NEIGHBOUR, *honest.NAMES)]
    neighbours = chosen(list(beside.ATTACKS)) if not options.rows or NEIGHBOUR in options.rows else []
    others = chosen(list(honest.ATTACKS)) if libraries else []
    try:
        rows = chosen(names) if names or not options.rows else []
    except ValueError as error:
        arguments.error(str(error))
    if options.list:
        for together in BATCHES:
            for row in rows:
                if row.batch in together:
                    print(f"{row.batch:9} {row.name:24} {row.title}")
        print("\n".join(f"{NEIGHBOUR:9} next to {row.name}" for row in neighbours))
        print("\n".join(f"{HONEST:9} {name}" for name in libraries))
        return 0
    if options.offer:
        rows = [dataclasses.replace(row, offer=options.offer) for row in rows]
    seconds = QUICK_S if options.quick else options.seconds
    report = Report(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), seconds)
    report.direct_seconds = min(seconds, DIRECT_S)
    storing = options.store and not options.quick
    with stage([*rows, *neighbours, *others]) as on:
        report.batches = run(on, rows, seconds, say)
        if neighbours:
            report.neighbour = beside.run(on, neighbours, say)
        if libraries:
            honest_s = QUICK_S if options.quick else honest.SECONDS
            report.honest = honest.run(on, libraries, honest_s, say, others)
        if storing:  # what was measured is not lost with what comes after it
            store(report)
        if options.direct:  # last: the broker keeps its quotas
            report.direct = run(on, [row for row in rows if row.at_a_broker], report.direct_seconds, say, direct=True)
    if storing:
        print(f"{summary(report.batches)}\nstored in {store(report)}")
    failed = [one for batch in report.batches for one in batch.outcomes if not one.passed]
    strayed = [one for one in report.honest if not one.passed]
    tried = sum(len(batch.outcomes) for batch in report.batches)
    near = report.neighbour
    slow = [] if near is None else [one for one in near.attacks if near.slowed(one)]
    print(
        f"{len(failed)} of {tried} attacks failed the bound, {len(strayed)} of {len(report.honest)} libraries strayed"
    )
    for one in failed:
        print(in_words(one))
    for each in strayed:
        print(honest.in_words(each))
    for near_one in slow:
        assert near is not None
        print(near.in_words(near_one))
    unclean = [batch for batch in report.batches if batch.unclean]
    for batch in unclean:
        print(f"FAIL a sidecar of {', '.join(batch.names)} did not end well:\n{batch.unclean[-1500:]}")
    return 1 if failed or strayed or slow or unclean else 0


def say(text: str) -> None:
    """Progress, at once, also where it goes to a file."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
