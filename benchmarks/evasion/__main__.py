"""`python -m benchmarks.evasion`: attack, measure, judge. Exit code 1 when a row got more than its limit allows."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from benchmarks.evasion.rows import BATCHES, chosen
from benchmarks.evasion.run import in_words, run
from benchmarks.evasion.stage import stage

SECONDS = 134.0
"""The first window (11 s), two minutes, and room to begin."""
QUICK_S = 45.0


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.evasion", description=__doc__)
    arguments.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="rows or batches; all if left out")
    arguments.add_argument("--seconds", type=float, default=SECONDS, help="of each batch")
    arguments.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s of each batch; nothing is stored")
    arguments.add_argument("--direct", action="store_true", help="also against the broker's own quotas, for comparison")
    arguments.add_argument("--offer", type=float, help="try so many times the limit, whatever the rows say")
    arguments.add_argument("--list", action="store_true", help="show the rows")
    options = arguments.parse_args()
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        arguments.error(str(error))
    if options.list:
        for names in BATCHES:
            for row in rows:
                if row.batch in names:
                    print(f"{row.batch:9} {row.name:24} {row.title}")
        return 0
    if options.offer:
        rows = [dataclasses.replace(row, offer=options.offer) for row in rows]
    seconds = QUICK_S if options.quick else options.seconds
    with stage(rows) as on:
        batches = run(on, rows, seconds, print)
        if options.direct:
            run(on, rows, seconds, print, direct=True)
    failed = [one for batch in batches for one in batch.outcomes if not one.passed]
    print(f"{len(failed)} failed")
    for one in failed:
        print(in_words(one))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
