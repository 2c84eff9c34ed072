"""How good the request-time estimate is: the sidecar's figure next to the brokers' own, on the same traffic.

    python -m benchmarks.suites.request_time [--seconds S] [--rounds N] [--only KEY,...]

Every traffic runs through the sidecar under a client-id of its own. Brokers record request time once a request quota
exists, so a huge one is set; their window (`quota.window.num`) is made so long that nothing has left it at the end, and
rate times window is then all the busy time that they charged to that client-id. Summed over the brokers it is compared
with `kquota_request_seconds_total`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import selectors
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import stored
from benchmarks.report.measured import describe_project
from benchmarks.rig.procstat import describe_machine, wait_calm
from benchmarks.rig.variants import PROJECT
from tests.lab.kafka import DEFAULT_VERSION, KafkaCluster, run_tool
from tests.lab.kafka.jmx import JMX, attributes

WINDOWS = 3601
"""The brokers' quota.window.num, of one second each: an hour, in which a comparison is done."""
HUGE_PERCENT = 1e7
"""A request quota of this size makes brokers measure, and never throttles a client."""
BROKERS = 3
METADATA = 3
RESULTS = PROJECT / "benchmarks" / "results"
CALM_SHARE = 0.2
"""The machine counts as calm below this share of its CPU; three brokers and a sidecar that idle are part of it."""
EXPOSITION_S = 1.2
"""The sidecar's metrics are up to a second old."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a traffic runs."""

    bootstrap: str
    """Of the sidecar."""
    direct: str
    """Of a broker: for what is not to be measured."""
    client_id: str
    seconds: float
    replicas: int = BROKERS
    """Of the topics that are produced to."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of traffic."""

    key: str
    title: str
    run: Callable[[Place], int]
    """Runs for `place.seconds` under the client-id `place.client_id`; returns a count of what it did, 0 if that is
    nothing. Raises AssertionError when what it is about did not happen."""


# ---- traffics --------------------------------------------------------------------------------------------------------


def _metadata(connections: int, in_flight: int) -> Callable[[Place], int]:
    """Metadata requests without topics, as fast as they are answered: so many at a time on each connection."""

    def run(place: Place) -> int:
        name = place.client_id.encode()
        # v9 is flexible: header with tags; no topics (compact array of length 0), three flags, tags.
        payload = struct.pack(">hhih", METADATA, 9, 0, len(name)) + name + b"\0" + b"\x01" + b"\0\0\0" + b"\0"
        frames = (struct.pack(">i", len(payload)) + payload) * in_flight
        host, _, port = place.bootstrap.rpartition(":")
        count, until = 0, time.monotonic() + place.seconds
        with ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for _ in range(connections):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, connection.makefile("rb"))
                connection.sendall(frames)
            owed = connections
            while owed:
                for ready, _ in selector.select():
                    for _ in range(in_flight):
                        (size,) = struct.unpack(">i", ready.data.read(4))
                        assert len(ready.data.read(size)) == size
                    count += in_flight
                    if time.monotonic() < until:
                        ready.fileobj.sendall(frames)  # type: ignore[union-attr]
                    else:
                        owed -= 1
        return count

    return run


def _produce(acks: str, value_bytes: int, per_s: float) -> Callable[[Place], int]:
    """One record per request at a steady rate."""

    def run(place: Place) -> int:
        from confluent_kafka import Producer

        topic = _topic(place, 3, place.replicas)
        producer = Producer(
            {
                "bootstrap.servers": place.bootstrap,
                "client.id": place.client_id,
                "acks": acks,
                "linger.ms": 0,
                "message.max.bytes": 8_000_000,
            }
        )
        value = os.urandom(value_bytes)
        return _paced(place.seconds, per_s, lambda: producer.produce(topic, value), producer.poll, producer.flush)

    return run


def _paced(
    seconds: float, per_s: float, send: Callable[[], Any], poll: Callable[[float], Any], end: Callable[[float], Any]
) -> int:
    begin, count = time.monotonic(), 0
    while (now := time.monotonic()) < begin + seconds:
        due = begin + count / per_s
        if now < due:
            poll(min(due - now, 0.1))
            continue
        send()
        count += 1
    end(30)
    return count


def _consume(per_s: float, value_bytes: int) -> Callable[[Place], int]:
    """A consumer that waits at the end of a log, into which `per_s` records come; 0: none ever."""

    def run(place: Place) -> int:
        from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

        topic = _topic(place, 1, 1)
        consumer = Consumer(_consumer_settings(place) | {"fetch.wait.max.ms": 500})
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        producer = Producer({"bootstrap.servers": place.direct, "client.id": "not-measured", "linger.ms": 0})
        value, read = os.urandom(value_bytes), 0

        def poll(wait_s: float) -> None:
            nonlocal read
            producer.poll(0)
            read += consumer.poll(wait_s) is not None

        if per_s:
            _paced(place.seconds, per_s, lambda: producer.produce(topic, value), poll, producer.flush)
        else:
            _paced(place.seconds, 1e-9, lambda: None, poll, lambda _: None)
        consumer.close()
        assert bool(read) == bool(per_s)
        return read

    return run


def _catch_up(place: Place) -> int:
    """A consumer reads what is there, as fast as it goes."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    topic, records = _topic(place, 1, 1), int(place.seconds * 2_000)
    producer = Producer({"bootstrap.servers": place.direct, "client.id": "not-measured", "linger.ms": 20})
    value = os.urandom(10_000)
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)
    consumer = Consumer(_consumer_settings(place) | {"fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    read, until = 0, time.monotonic() + 120
    while read < records and time.monotonic() < until:
        read += len(consumer.consume(1000, 1.0))
    consumer.close()
    assert read == records, f"{read} of {records} records read"
    return read


JOINED_S = 20.0
"""A member of a group has a partition after this time, or never: others may have to notice first, on a busy machine."""


def _rebalance(place: Place) -> int:
    """Two members of a group stay, a third comes and goes every other second: all of them join again each time."""
    from confluent_kafka import Consumer

    topic, group = _topic(place, 6, 1), f"group-{place.client_id}"
    done = threading.Event()
    settings = _consumer_settings(place) | {"group.id": group, "heartbeat.interval.ms": 300}
    rounds = 0

    def stay() -> None:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        while not done.is_set():
            consumer.poll(0.2)
        consumer.close()

    threads = [threading.Thread(target=stay) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + place.seconds
    while time.monotonic() < until:
        guest = Consumer(settings)
        guest.subscribe([topic])
        leave, late = time.monotonic() + 1, time.monotonic() + JOINED_S
        while time.monotonic() < leave or not (guest.assignment() or time.monotonic() > late):
            guest.poll(0.2)
        rounds += bool(guest.assignment())
        guest.close()
        time.sleep(1)
    done.set()
    for thread in threads:
        thread.join()
    assert rounds, "the third member never got a partition"
    return rounds


def _consumer_settings(place: Place) -> dict[str, Any]:
    return {
        "bootstrap.servers": place.bootstrap,
        "client.id": place.client_id,
        "group.id": f"group-{place.client_id}",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
    }


def _topic(place: Place, partitions: int, replicas: int) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"t-{place.client_id}"
    admin = AdminClient({"bootstrap.servers": place.direct, "client.id": "not-measured"})
    for future in admin.create_topics([NewTopic(name, partitions, replicas)]).values():
        future.result(30)
    until = time.monotonic() + 30
    while True:  # every broker must know it, whichever the client asks first
        found = admin.list_topics(name, timeout=10).topics[name].partitions
        if len(found) == partitions and all(part.leader >= 0 for part in found.values()):
            break
        assert time.monotonic() < until, f"topic {name} has no leaders"
        time.sleep(0.1)
    time.sleep(0.5)
    return name


TRAFFICS = (
    Traffic("metadata", "metadata storm, one at a time", _metadata(1, 1)),
    Traffic("metadata-8", "metadata storm, 8 in flight", _metadata(1, 8)),
    Traffic("metadata-32", "metadata storm, 32 connections", _metadata(32, 1)),
    Traffic("produce-1", "produce acks=1, 1 KB, 200/s", _produce("1", 1_000, 200)),
    Traffic("produce-1-large", "produce acks=1, 500 KB, 20/s", _produce("1", 500_000, 20)),
    Traffic("produce-all", "produce acks=all, 1 KB, 200/s", _produce("all", 1_000, 200)),
    Traffic("produce-all-large", "produce acks=all, 500 KB, 20/s", _produce("all", 500_000, 20)),
    Traffic("consumer-idle", "consumer of an empty topic, waits of 500 ms", _consume(0, 1)),
    Traffic("consumer-tail", "consumer at the end of a log, 50 records/s", _consume(50, 1_000)),
    Traffic("consumer-all", "consumer reads 20 MB per second of the run", _catch_up),
    Traffic("rebalance", "group of three, one comes and goes", _rebalance),
)


# ---- the brokers' own figures ----------------------------------------------------------------------------------------


@contextmanager
def measuring_cluster(brokers: int = BROKERS) -> Iterator[KafkaCluster]:
    """A cluster whose brokers measure request time and can be asked for it."""
    from tests.lab.kafka.cluster import BROKER_HEAP
    from tests.lab.kafka.tools import QUICK_JVM

    with KafkaCluster.start(
        brokers, jvm=(*QUICK_JVM, *BROKER_HEAP, *JMX), overrides={"quota.window.num": str(WINDOWS)}
    ) as cluster:
        measure(cluster)
        yield cluster


def measure(cluster: KafkaCluster) -> None:
    """Set the quota without which brokers record no request time."""
    run_tool(
        "kafka.admin.ConfigCommand",
        [
            *("--bootstrap-server", cluster.bootstrap[0], "--alter", "--entity-type", "clients", "--entity-default"),
            *("--add-config", f"request_percentage={HUGE_PERCENT:.0f}"),
        ],
        cluster.version,
    )


def broker_busy_ms(cluster: KafkaCluster) -> dict[str, float]:
    """What the brokers have charged to each client-id so far, in ms; right to 1 s in `WINDOWS`."""
    busy: dict[str, float] = {}
    for node in cluster.nodes:
        for keys, percent in attributes(node, "kafka.server:type=Request,*", "request-time", cluster.version).items():
            client = dict(keys).get("client-id", "")
            # 1 percent of one thread is 10 ms each second
            busy[client] = busy.get(client, 0.0) + percent * 10 * (WINDOWS - 1)
    return busy


# ---- comparison ----------------------------------------------------------------------------------------------------


def compare(
    chosen: Sequence[Traffic],
    seconds: float,
    rounds: int,
    say: Callable[[str], None],
    brokers: int = BROKERS,
    calm_wait_s: float = 0.0,
) -> list[dict[str, Any]]:
    """Run every traffic `rounds` times; one row for each run, with both figures in ms.

    Before each run it waits at most `calm_wait_s` for other programs on the machine to be done.
    """
    from tests.support.sidecars import sidecar  # the real `kquota run`; needs what the tests need

    rows: list[dict[str, Any]] = []
    with measuring_cluster(brokers) as cluster, sidecar(cluster.bootstrap) as running:
        for number in range(-1, rounds):  # the first turn only warms up: JVMs compile their hot code meanwhile
            for traffic in chosen:
                client_id = f"{traffic.key}-{number}" if number >= 0 else f"warm-up-{traffic.key}"
                say(client_id)
                length_s = seconds if number >= 0 else seconds / 3
                place = Place(running.bootstrap, cluster.bootstrap[0], client_id, length_s, brokers)
                wait_calm(CALM_SHARE, os.cpu_count() or 1, calm_wait_s)
                began = time.monotonic()
                traffic.run(place)
                row: dict[str, Any] = {"traffic": traffic.key, "round": number, "client_id": client_id}
                row |= {"took_s": round(time.monotonic() - began, 2), "load_1min": round(os.getloadavg()[0], 2)}
                if number >= 0:
                    rows.append(row)
        time.sleep(EXPOSITION_S)
        theirs = broker_busy_ms(cluster)
        for row in rows:
            row["ours_ms"] = round(running.metric("kquota_request_seconds_total", client_id=row["client_id"]) * 1000, 3)
            row["brokers_ms"] = round(theirs[row["client_id"]], 3)
            row["ratio"] = round(row["ours_ms"] / row["brokers_ms"], 3)
    return rows


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown: medians over the rounds, the ratio with its least and most."""
    rows, machine = result["rows"], result["machine"]
    loads = [row["load_1min"] for row in rows]
    out = [
        f"Measured {result['started'][:10]}: {machine['cores']} cores of {machine['cpu_model']}, {machine['kernel']}, "
        f"load average {min(loads)} to {max(loads)}; {BROKERS} brokers {result['kafka']} (heap 512 MB, quick compiler "
        f"only), clients on librdkafka or a bare socket, all on loopback; {result['rounds']} rounds of "
        f"{result['seconds']:g} s.",
        "",
        "| traffic | ours, % of a thread | brokers, % | ours / brokers: median (min–max) |",
        "|---|---:|---:|---:|",
    ]
    for traffic in TRAFFICS:
        mine = [row for row in rows if row["traffic"] == traffic.key]
        if not mine:
            continue
        percent = [
            statistics.median(row[name] / row["took_s"] / 10 for row in mine) for name in ("ours_ms", "brokers_ms")
        ]
        ratios = [row["ratio"] for row in mine]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        out.append(f"| {traffic.title} | {percent[0]:.2f} | {percent[1]:.2f} | {spread} |")
    return "\n".join(out) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, store, show. 0: done; 2: wrong use."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites.request_time", description=__doc__)
    parser.add_argument("--seconds", type=float, default=9.0, help="how long each traffic runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--calm-wait", type=float, default=15.0, help="seconds to wait for a calm machine before each run"
    )
    parser.add_argument("--only", help=f"comma-separated, of: {', '.join(traffic.key for traffic in TRAFFICS)}")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where <date>-request-time.json goes")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else [traffic.key for traffic in TRAFFICS]
    if strange := set(wanted) - {traffic.key for traffic in TRAFFICS}:
        parser.error(f"no traffic {', '.join(sorted(strange))}")
    result: dict[str, Any] = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "project": describe_project(),
        "kafka": DEFAULT_VERSION,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    chosen = [traffic for traffic in TRAFFICS if traffic.key in wanted]

    def say(text: str) -> None:
        print(f"· {text}", flush=True)

    result["rows"] = compare(chosen, options.seconds, options.rounds, say, calm_wait_s=options.calm_wait)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{result['started'][:10]}-request-time.json"
    file.write_text(stored.text(result), encoding="utf-8")
    print(table(result))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    sys.exit(main())
