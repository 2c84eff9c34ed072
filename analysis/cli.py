"""The command line of the reports. `kquota report` runs it with its own arguments, in a separate process."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from analysis.errors import ReportError, WrongUseError, in_short
from config.visible import visible
from quota.entity import Kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analysis.days import Days
    from analysis.levels import CandidateQuotas

JOBS = {
    "usage": "bytes, requests and rates of each client",
    "throttling": "which clients were throttled, by which quota, for how long",
    "chargeback": "what each client owes, by a price model (--prices)",
    "recommend": "a quota for every client, as Helm values and as a diff",
    "capacity": "the sum of the limits against peak usage, with a forecast",
    "noisy": "clients whose bursts coincide with slower requests of others",
    "whatif": "what other quotas (--candidate) would have done",
    "compliance": "which client libraries honour throttle times",
    "slo": "throttled share of each team's time and requests, against a target (--target, --owners)",
    "compact": "merge small files of records into large ones, per day and cluster, for all other reports",
    "changes": "usage and delays a day before and a day after each quota change",
    "forecast": "when each limit and each cluster's capacity will be reached (--horizon, --capacity)",
    "anomalies": "clients with a new kind of usage, or far more than before (--recent)",
    "all": "every report whose options are given, and one page with their findings",
    "stream": "rollups per minute and alerts, from a topic or a directory, until it is stopped",
}
OK, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
HOUR_S = 3600
_T = TypeVar("_T")
INSTALL = "pip install 'kquota[analysis]'"


def parser() -> argparse.ArgumentParser:
    """The options of all reports."""
    width = max(map(len, JOBS))
    whole = argparse.ArgumentParser(
        prog="kquota report",
        description="Make reports from usage records with Spark.",
        epilog="reports:\n" + "\n".join(f"  {name:{width}}  {text}" for name, text in JOBS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("name", choices=JOBS, metavar="NAME", help="which report, see below")
    _add_options(whole.add_argument)
    return whole


def main(arguments: Sequence[str]) -> int:
    """Make one report; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except WrongUseError as error:
        return _complain(str(error), WRONG_USE)
    except ReportError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except ModuleNotFoundError as error:
        return _complain(f"reports need the package {error.name}, which is not installed: {INSTALL}", FAILED)


def _run(options: argparse.Namespace) -> int:
    job_options = _options_of(options)  # wrong options are reported before a JVM is started
    conf = dict(options.conf)
    _check_output(options.name, options.input, options.output)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return _stream(options, conf) if options.name == "stream" else _report(options, job_options, conf)
    except (PySparkException, Py4JJavaError) as error:
        raise ReportError(f"Spark failed: {in_short(error)}") from error


def _check_output(name: str, source: str, output: str) -> None:
    """Raises WrongUseError if the output cannot be written, or is where the input is."""
    for one in WRITTEN.get(name, (name,)):
        target = f"{output}/{one}"
        if _within(target, source) or _within(source, target):
            raise WrongUseError(f"--output {output}: {target} and --input {source} overlap, expected separate places")
    if "://" in _place(output):
        return
    whole = Path(_place(output))
    if name in OF_THE_OTHER and (whole / OF_THE_OTHER[name]).exists():
        other = "stream" if name == "compact" else "compact"
        raise WrongUseError(f"--output {output} is the output of {other}, expected another directory")
    nearest = next(one for one in (whole, *whole.parents) if one.exists())
    if not nearest.is_dir():
        raise WrongUseError(f"--output {output}: {nearest} is a file, expected a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise WrongUseError(f"--output {output}: {nearest} is not writable")


def _within(place: str, pattern: str) -> bool:
    """Whether a place is one that the pattern (a glob) matches, or lies below one."""
    there, asked = (_place(one).split("/") for one in (place, pattern))
    return len(there) >= len(asked) and all(map(fnmatchcase, there, asked))


def _place(text: str) -> str:
    """An address without a slash at its end; of a local file its whole path."""
    if "://" in text.removeprefix("file://"):
        return text.rstrip("/")
    return str(Path(text.removeprefix("file:")).resolve())


def _report(options: argparse.Namespace, job_options: dict[str, Any], conf: dict[str, str]) -> int:
    from analysis.days import Days
    from analysis.session import open_session, small

    days = Days(options.first or date.min, options.last or date.max)
    if days.last < days.first:
        raise WrongUseError(f"--to {options.last} is before --from {options.first}")
    conf = small(options.input, options.master) | conf
    if options.format != "files":
        from analysis.store import session_conf

        places = [options.input, options.output] if options.name == "compact" else [options.input]
        conf |= session_conf(conf, places, options.format)
    # Spark's own line with the tasks that are done.
    conf.setdefault("spark.ui.showConsoleProgress", str(sys.stderr.isatty() and not options.quiet).lower())
    spark = open_session(options.master, options.memory, conf)
    try:
        if options.name == "compact":
            return _compact(spark, options, days)
        from analysis.runner import Asked, make, make_all

        asked = Asked(options.input, options.output, options.grain, job_options, days=days, quiet=options.quiet)
        if options.name == "all":
            without = [ONLY_FOR[option] for option in NEEDED if getattr(options, option) is None]
            result, failed = make_all(spark, [name for name in JOBS if name not in (*NOT_REPORTS, *without)], asked)
        else:
            result, failed = make(spark, options.name, asked), {}
    finally:
        spark.stop()
    print(result)
    for name, reason in failed.items():
        _complain(f"{name}: {reason}", FAILED)
    return FAILED if failed else OK


def _compact(spark: SparkSession, options: argparse.Namespace, days: Days) -> int:
    from analysis.compact import CompactSettings, compact

    def say(line: str) -> None:
        print(visible(line), flush=True)

    settings = CompactSettings(
        options.input, options.output, days, options.settle, options.keep_days, options.delete_input,
        form=options.format,
    )  # fmt: skip
    if not compact(spark, settings, say):
        say("nothing new")
    return OK


def _stream(options: argparse.Namespace, conf: dict[str, str]) -> int:
    """Run until the queries end (--once), one fails, or SIGTERM or Ctrl-C comes. Batches are all or nothing."""
    from analysis import streaming
    from analysis.session import kafka_package, open_session

    for option, given in (("--from and --to are", options.first or options.last), ("--format is", options.format)):
        if given is not None:
            raise WrongUseError(f"{option} not for stream")
    if options.alerts is not None and not streaming.is_kafka(options.alerts):
        raise WrongUseError(f"--alerts {options.alerts}: expected kafka://host:port/topic")
    for place in filter(streaming.is_kafka, (options.input, options.alerts)):
        streaming.address(place)
        conf.setdefault("spark.jars.packages", kafka_package())
    properties = streaming.read_properties(options.kafka_config) | dict(options.kafka)
    settings = streaming.StreamSettings(
        options.input, options.output, options.alerts, options.delay, options.trigger, options.once, options.batch,
        properties,
    )  # fmt: skip
    metrics = streaming.StreamMetrics()
    if options.metrics is not None:
        metrics.serve(streaming.listen_address(options.metrics))
    spark = open_session(options.master, options.memory, conf)

    def say(line: str) -> None:
        if not options.quiet:
            print(visible(line), file=sys.stderr, flush=True)

    # A flag, because an exception in the middle of a call to the JVM would leave both sides out of step.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        streaming.follow(streaming.start(spark, settings, stop), say, metrics, stop)
    finally:
        spark.stop()
    return OK


NOT_REPORTS = ("all", "compact", "stream")
WRITTEN = {"all": tuple(JOBS), "compact": ("records", "rollups", "set-aside"), "stream": ("rollups", "set-aside")}
"""What is written below the output; by others a directory of their name."""
OF_THE_OTHER = {"compact": "_checkpoints", "stream": "records"}
"""Both write `rollups`; what below the output only the other one writes."""
ONLY_FOR = {"prices": "chargeback", "candidate": "whatif", "sweep": "whatif"}
"""Options of one report alone -> the report."""
NEEDED = ("prices", "candidate")
"""Options without which their report cannot be made."""


def _options_of(options: argparse.Namespace) -> dict[str, Any]:
    """What jobs need besides the records, under the names that the options have here."""
    from analysis.owners import Owners, PriceModel, load

    for option, owner in ONLY_FOR.items():
        given = getattr(options, option) is not None
        if given and options.name not in (owner, "all"):
            raise WrongUseError(f"--{option} is for {owner}, not for {options.name}")
        if not given and option in NEEDED and options.name == owner:
            raise WrongUseError(f"{owner} needs --{option} FILE")
    found = vars(options) | {"capacity": dict(options.capacity)}
    if options.owners is not None:
        found["owners"] = load(Owners, "--owners", options.owners)
    if options.prices is not None:
        found["prices"] = prices = load(PriceModel, "--prices", options.prices)
        if prices.payer == "team" and options.owners is None:
            raise WrongUseError(f"--prices {options.prices}: payer: got 'team', which needs --owners FILE")
    if options.candidate is not None:
        found["candidates"] = _candidates(options.candidate, options.sweep)
    return found


def _candidates(files: Sequence[str], sweep: Sequence[float] | None) -> dict[str, CandidateQuotas]:
    from analysis.levels import load_candidate

    found: dict[str, CandidateQuotas] = {}
    for file in files:
        candidate = load_candidate(file)
        if not any(candidate.entries(kind) for kind in Kind):
            raise WrongUseError(f"--candidate {file}: no quotas in this file")
        name = Path(file).stem if sum(Path(one).stem == Path(file).stem for one in files) == 1 else file
        if sweep is None:
            found[name] = candidate
        else:
            found |= {f"{name} × {factor:g}": candidate.scaled(factor) for factor in sweep}
    return found


def _checked(expected: str, read: Callable[[str], _T], fits: Callable[[_T], object]) -> Callable[[str], _T]:
    """A type of an option: what `read` makes of its text, if that `fits`."""

    def checked(text: str) -> _T:
        with suppress(ValueError):
            if fits(value := read(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")

    return checked


def _between(kind: type[int] | type[float], least: float, most: float, expected: str) -> Callable[[str], float]:
    return _checked(expected, kind, lambda value: least <= value <= most)


def _written(pattern: str, expected: str) -> Callable[[str], str]:
    return _checked(expected, str, re.compile(pattern, re.ASCII | re.IGNORECASE).fullmatch)


_MOST_DAYS = 36_500
_DAY = _checked("a day such as 2026-08-31", date.fromisoformat, bool)
_GRAIN = _checked(
    "a number of seconds that divides an hour", int, lambda value: 1 <= value <= HOUR_S and not HOUR_S % value
)
_FACTORS = _checked(
    "numbers above 0 with commas between, such as 0.5,0.75,1,1.5",
    lambda text: sorted({float(one) for one in text.split(",")}),
    lambda values: all(0 < value < float("inf") for value in values),
)
_PERCENT = _checked("percent of the time, from 0 to 100", lambda text: float(text) / 100, lambda share: 0 <= share <= 1)
_TARGET = _checked("percent below 100, such as 99.9", lambda text: float(text) / 100, lambda share: 0 <= share < 1)
_CAPACITY = _checked(
    "produce=BYTES or fetch=BYTES, per second",
    lambda text: (text.partition("=")[0], float(text.partition("=")[2])),
    lambda pair: pair[0] in ("produce", "fetch") and 0 < pair[1] < float("inf"),
)
_HEADROOM = _between(float, 0, 10, "a number from 0 to 10, such as 0.25 for a quarter more")
_DAYS = _between(float, 0.001, 366, "days, such as 7")
_HORIZON = _between(int, 1, 730, "whole days, from 1 to 730")
_KEEP = _between(int, 1, _MOST_DAYS, f"a whole number of days of at least 1 and at most {_MOST_DAYS}")
_HOURS = _between(float, 0, 24 * _MOST_DAYS, "a number of hours of at least 0, such as 2")
_NUMBER = _between(int, 1, 2**31 - 1, "a whole number of at least 1")
_MEMORY = _written(r"[1-9][0-9]*[kmgt]b?", "a size as Java has it, such as 512m or 4g")
_SPAN = _written(
    r"([0-9]{1,9} +(millisecond|second|minute|hour|day|week)s? *)+", "a time as Spark has it, such as 10 minutes"
)

_PAIR = _checked("NAME=VALUE", lambda text: text.split("=", 1), lambda pair: len(pair) == 2)


def _add_options(add: Callable[..., object]) -> None:
    file = partial(add, metavar="FILE")
    span = partial(add, type=_SPAN, metavar="TIME")
    pairs = partial(add, type=_PAIR, action="append", default=[])
    add("--input", required=True, help="usage records (JSON lines, or Parquet): a file, a directory or a glob")
    output = "directory for the results; each report writes to a subdirectory"
    add("--output", required=True, type=lambda place: place.rstrip("/"), help=output)
    add("--from", type=_DAY, dest="first", metavar="DAY", help="the first day to read (UTC), such as 2026-08-01")
    add("--to", type=_DAY, dest="last", metavar="DAY", help="the last day to read, inclusive")
    add("--grain", type=_GRAIN, default=60, metavar="S", help="time bucket of fleet-wide rates, in seconds (60)")
    file("--prices", help="chargeback: the price model (YAML)")
    file("--candidate", action="append", help="whatif: quotas to try (YAML, or JSON of `kquota check`); repeatable")
    add("--sweep", type=_FACTORS, metavar="X,X,…", help="whatif: multiply each candidate's limits by each factor")
    at_most = "whatif: acceptable share of time that a group is delayed (1)"
    add("--at-most", type=_PERCENT, default=0.01, metavar="PERCENT", help=at_most)
    add("--headroom", type=_HEADROOM, default=0.25, metavar="X", help="recommend: fraction added to the need (0.25)")
    capacity = "capacity, forecast: produce=BYTES or fetch=BYTES per second of the clusters; repeatable"
    add("--capacity", type=_CAPACITY, action="append", default=[], metavar="KIND=BYTES", help=capacity)
    file("--owners", help="teams (YAML): adds the team of each client to tables")
    target = "slo: target share of time and requests without delay (99)"
    add("--target", type=_TARGET, default=0.99, metavar="PERCENT", help=target)
    days = partial(add, metavar="DAYS")
    days("--recent", type=_DAYS, default=7.0, dest="recent_days", help="anomalies: length of the recent period (7)")
    days("--horizon", type=_HORIZON, default=90, dest="horizon_days", help="forecast: how many days to look ahead (90)")
    add("--settle", type=_HOURS, default=2.0, metavar="H", help="compact: hours to wait after a day has ended (2)")
    add("--keep-days", type=_KEEP, metavar="N", help="compact: delete days from the output that are older than N days")
    form = "compact: format of a new store (files); reports: format of a remote store"
    add("--format", choices=("files", "iceberg"), help=form)
    add("--delete-input", action="store_true", help="compact: delete input files with usable records once compacted")
    add("--alerts", metavar="PLACE", help="stream: kafka://host:port/topic for alerts")
    span("--delay", default="10 minutes", help="stream: how late records may come (10 minutes)")
    span("--trigger", default="30 seconds", help="stream: time between batches (30 seconds)")
    add("--once", action="store_true", help="stream: process the records that exist, then end")
    add("--batch", type=_NUMBER, metavar="N", help="stream: at most N messages (files) per batch")
    pairs("--kafka", metavar="KEY=VALUE", help="stream: Kafka client property (no passwords); repeatable")
    file("--kafka-config", help="stream: file with Kafka client properties, such as passwords")
    add("--metrics", metavar="[HOST:]PORT", help="stream: serve lag, rates and state for Prometheus here")
    add("--master", help="Spark master; default: spark-submit's, else all cores of this machine")
    add("--memory", type=_MEMORY, metavar="SIZE", help="memory of a local Spark, such as 4g (2g)")
    pairs("--conf", metavar="KEY=VALUE", help="Spark's own configuration")
    add("--quiet", action="store_true", help="no progress on stderr")


def _complain(text: str, code: int) -> int:
    print(f"error: {visible(text, lines=True)}", file=sys.stderr)
    return code
