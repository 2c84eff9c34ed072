"""`make peer-suites`: each suite at real brokers directly, then through the sidecar; a table of what differs.

A test that passed directly and did not pass through the sidecar is tried again by itself, both ways. The exit code is 1
if there is one that always passes directly and never through the sidecar.

`--rate` limits every client, to see the suites throttled. Directly it is then the broker that enforces the same quota:
a test that cannot bear throttling fails in both columns.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from tests.lab.kafka import KafkaCluster
from tests.lab.releases import NEW, RUN
from tests.peers.outcomes import NEVER_BEGUN, Row, count, side_by_side, table
from tests.peers.suites import BROKERS, PARTITIONS, SUITES, NoSuiteError, Suite
from tests.support.raw_client import set_brokers_quota
from tests.support.sidecars import sidecar

START_LIMIT_S = 180.0
"""Of three brokers, on a busy machine."""
TRIES = 2


@contextmanager
def brokers(version: str, rate: int | None) -> Iterator[KafkaCluster]:
    overrides = {"num.partitions": str(PARTITIONS)}
    with KafkaCluster.start(BROKERS, version, overrides=overrides, start_limit_s=START_LIMIT_S) as cluster:
        for key in () if rate is None else ("producer_byte_rate", "consumer_byte_rate"):
            set_brokers_quota(cluster.bootstrap[0], "<default>", key, rate)
        yield cluster


@contextmanager
def place(version: str, through: bool, rate: int | None) -> Iterator[str]:
    """A bootstrap address: of a broker, or of a sidecar before one."""
    with brokers(version, None if through else rate) as cluster:
        if not through:
            yield cluster.bootstrap[0]
            return
        limits = {} if rate is None else {"producer_byte_rate": rate, "consumer_byte_rate": rate}
        # Without a rate there are limits as well, which are never reached: what enforces them is there.
        free = {"producer_byte_rate": 10**9, "consumer_byte_rate": 10**9, "request_percentage": 10_000}
        with sidecar(cluster.bootstrap, [{"client-id": "<default>", **(limits or free)}]) as running:
            yield running.bootstrap


def compare(suite: Suite, names: Sequence[str], version: str, rate: int | None) -> list[Row]:
    runs = []
    for through in (False, True):
        began_s = time.monotonic()
        with place(version, through, rate) as bootstrap:
            runs.append(suite.run(bootstrap, names))
        print(f"{suite.name} {'through the sidecar' if through else 'directly'}: {time.monotonic() - began_s:.0f} s")
    rows = side_by_side(*runs)
    for _ in range(TRIES):
        again = [row for row in rows if row.suspect]
        for row in again:
            for through, tries in ((False, row.direct), (True, row.through)):
                with place(version, through, rate) as bootstrap:
                    tries.append(suite.run(bootstrap, [row.name]).get(row.name, NEVER_BEGUN))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if the sidecar breaks a test, 2 if a suite cannot be built here."""
    parser = argparse.ArgumentParser(prog="make peer-suites PEER_ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=SUITES, action="append", help="only this one")
    parser.add_argument("--test", action="append", default=[], help="only these tests of one suite, by their names")
    parser.add_argument("--kafka", choices=RUN, action="append", help=f"release of the brokers (default {NEW})")
    parser.add_argument("--rate", type=int, help="bytes/s that each client may produce, and fetch")
    parser.add_argument("--repeat", type=int, default=1, help="compare as often")
    given = parser.parse_args(arguments)
    if given.test and len(given.suite or ()) != 1:
        parser.error("--test wants one --suite")
    broken = []
    for version, name in product(given.kafka or [NEW], given.suite or SUITES):
        try:
            suite = SUITES[name]()
            for _ in range(given.repeat):
                rows = compare(suite, given.test, version, given.rate)
                head = f"{suite.name} ({suite.part}), Kafka {version}"
                print(f"\n## {head}\n\n{table(rows)}\n\n{count(rows)}", flush=True)
                broken += [f"{suite.name} {row.name}, Kafka {version}" for row in rows if row.suspect]
        except NoSuiteError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
    for one in broken:
        print(f"passes at the broker, and never through the sidecar: {one}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
