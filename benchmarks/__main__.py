"""The command line: `python -m benchmarks [--quick] [--rounds N] [--variants ...] [--only ...]`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.report import tables as report
from benchmarks.rig import runner, variants
from benchmarks.rig.variants import PROJECT
from benchmarks.suites.plan import PLANS
from benchmarks.suites.scenarios import scenarios

RESULTS = PROJECT / "benchmarks" / "results"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    keys = ", ".join(variant.key for variant in variants.VARIANTS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="plan", action="store_const", const="quick", help="one round, a minute or two")
    size.add_argument("--plan", choices=PLANS, help="how much is measured (default: full)")
    parser.add_argument("--rounds", type=int, help="how often each variant is measured")
    parser.add_argument("--variants", help=f"comma-separated, of: {keys} (default: all)")
    parser.add_argument("--only", help="comma-separated scenarios: memory, produce, fetch, fetch-apart, ...")
    parser.add_argument(
        "--halt-idle-cores", action="store_true", help="as they usually do (default: they poll, where that is allowed)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where <date>-<what>.json and .md go")
    parser.add_argument("--what", help="the name of the result (default: the plan's)")
    parser.add_argument("--report", type=Path, metavar="JSON", help="measure nothing, show a stored .samples.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Run, store, show. 0: done; 1: some measurement failed; 2: wrong use."""
    options = _arguments(argv)
    console = console or Console(stderr=False, width=None if sys.stdout.isatty() else 180)

    def say(text: str) -> None:
        console.print(f"· {text}", highlight=False, markup=False)

    try:
        if options.report:
            result, file = report.load(options.report), options.report
        else:
            plan = PLANS[options.plan or "full"]
            if options.rounds:
                plan = replace(plan, rounds=options.rounds)
            if options.halt_idle_cores:
                plan = replace(plan, idle_cores_poll=False)
            chosen = variants.find(options.variants.split(",")) if options.variants else list(variants.VARIANTS)
            known = scenarios(plan)
            wanted = options.only.split(",") if options.only else [scenario.key for scenario in known]
            if strange := set(wanted) - {scenario.key for scenario in known}:
                raise ValueError(f"no scenario {', '.join(strange)}; there are {[scenario.key for scenario in known]}")
            result = runner.run(plan, chosen, [scenario for scenario in known if scenario.key in wanted], say)
            file = report.store(result, options.output, options.what or plan.name)
            from benchmarks.report.plot import (
                draw,  # matplotlib takes its time, and who only asks for help need not wait
            )

            draw(result, file.with_suffix(".png"))
        report.show(result, console)
    except ValueError as error:
        say(str(error))
        return 2
    say(f"stored in {file}")
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    # A SIGTERM ends it as Ctrl-C does: everything that was started is stopped, everything stored meanwhile deleted.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(main())
