"""`python -m benchmarks.evasion`: attack, measure, judge. Exit code 1 when a row got more than its limit allows."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from benchmarks.evasion import honest
from benchmarks.evasion.report import Report, store
from benchmarks.evasion.rows import BATCHES, chosen
from benchmarks.evasion.run import in_words, run, slowed, slows_others
from benchmarks.evasion.stage import stage

SECONDS = 134.0
"""The first window (11 s), two minutes, and room to begin."""
QUICK_S = 45.0
HONEST = "honest"


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.evasion", description=__doc__)
    arguments.add_argument(
        "--rows",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"rows or batches, `{HONEST}` or the names of honest libraries; all if left out",
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each batch of attacks")
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s of each batch; nothing is stored")
    arguments.add_argument("--direct", action="store_true", help="also against the broker's own quotas, for comparison")
    arguments.add_argument("--offer", type=float, help="try so many times the limit, whatever the rows say")
    arguments.add_argument("--list", action="store_true", help="show the rows")
    arguments.add_argument("--store", action="store_true", help="store the result, and put the table into the document")
    options = arguments.parse_args()
    libraries = [name for name in honest.NAMES if not options.rows or name in options.rows or HONEST in options.rows]
    names = [name for name in options.rows if name not in (HONEST, *honest.NAMES)]
    try:
        rows = chosen(names) if names or not options.rows else []
    except ValueError as error:
        arguments.error(str(error))
    if options.list:
        for together in BATCHES:
            for row in rows:
                if row.batch in together:
                    print(f"{row.batch:9} {row.name:24} {row.title}")
        print("\n".join(f"{HONEST:9} {name}" for name in libraries))
        return 0
    if options.offer:
        rows = [dataclasses.replace(row, offer=options.offer) for row in rows]
    seconds = QUICK_S if options.quick else options.seconds
    report = Report(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), seconds)
    with stage(rows) as on:
        report.batches = run(on, rows, seconds, print)
        if libraries:
            report.honest = honest.run(on, libraries, QUICK_S if options.quick else honest.SECONDS, print)
        if options.direct:  # last: the broker keeps its quotas
            report.direct = run(on, rows, seconds, print, direct=True)
    if options.store and not options.quick:
        print(f"stored in {store(report)}")
    failed = [one for batch in report.batches for one in batch.outcomes if not one.passed]
    strayed = [one for one in report.honest if not one.passed]
    tried = sum(len(batch.outcomes) for batch in report.batches)
    slow = [batch for batch in report.batches if slows_others(batch)]
    print(
        f"{len(failed)} of {tried} attacks failed the bound, {len(strayed)} of {len(report.honest)} libraries strayed"
    )
    for one in failed:
        print(in_words(one))
    for each in strayed:
        print(honest.in_words(each))
    for batch in slow:
        print(f"FAIL neighbour beside {', '.join(batch.names)}: {slowed(batch)}")
    unclean = [batch for batch in report.batches if batch.unclean]
    for batch in unclean:
        print(f"FAIL a sidecar of {', '.join(batch.names)} did not end well:\n{batch.unclean[-1500:]}")
    return 1 if failed or strayed or slow or unclean else 0


if __name__ == "__main__":
    sys.exit(main())
