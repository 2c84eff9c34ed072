"""Honest clients far above their limits: six libraries offer 20 times what they may, for minutes.

Nothing may fail, get lost or come twice. Each library has a topic, a client-id and a limit of its own. Its application
is paced at 20 limits and held up by its library when that is full (`BUFFER_BYTES`): at the limit what is held back is
delivered within 10 s, far below the shortest delivery timeout.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.evasion.arithmetic import compute_achieved
from benchmarks.evasion.honest_client import LIBRARIES
from benchmarks.evasion.rows import BOUND, Row
from benchmarks.evasion.run import WINDOW_NUM, Meter, child, line_of, start, tell, work_of
from benchmarks.evasion.stage import Stage, sidecars
from tests.support import go_tools
from tests.support.history import Event, History, check

LIMIT = 100_000
OFFER = 20
RECORD_BYTES = 1000
BUFFER_BYTES = 1_000_000
SECONDS = 180.0
GO_LIBRARIES = {"franz-go": "franz", "sarama": "sarama"}
NAMES = (*LIBRARIES, *GO_LIBRARIES)
END_LIMIT_S = 180.0
ATTACKS = ("p4-reconnect", "p30-impatient", "p4-acks-0-reconnect", "b1-20mb-persistent", "f30-v17-reconnect", "i-1mb")
"""What runs next to them."""


@dataclass
class Honest:
    """What became of one library's records."""

    library: str
    sent: int = 0
    acknowledged: int = 0
    lost: int = 0
    """Acknowledged, and not in the topic."""
    repeated: int = 0
    """In the topic more than once."""
    errors: list[str] = field(default_factory=list)
    achieved: float = 0.0
    """What the sidecar counted over the limit, after the first window and from one request to another: a request of
    these libraries may be a megabyte, ten seconds of the limit (see `arithmetic`)."""
    missing: str = ""
    """Why it could not be tried."""

    @property
    def passed(self) -> bool:
        """No errors, nothing lost, nothing twice, and held to the limit."""
        fine = not (self.errors or self.lost or self.repeated or self.missing)
        return fine and self.acknowledged == self.sent > 0 and self.achieved <= BOUND


def command_of(library: str) -> list[str]:
    """How its client is started.

    Raises:
        NoGoError: it is written in Go, and there is no Go here that could build it.
    """
    if library in GO_LIBRARIES:
        return go_command(GO_LIBRARIES[library])
    return [sys.executable, "-m", "benchmarks.evasion.honest_client"]


def go_command(package: str, *tags: str) -> list[str]:
    """How a client of tests/go/honest is started. Raises NoGoError."""
    sources = go_tools.MODULES / "honest"
    text = "".join(file.read_text() for file in sorted(sources.rglob("*.go")))
    stamp = f"-X=main.source={zlib.crc32(text.encode()):x}"  # built again when the sources have changed
    return [str(go_tools.program("honest", f"kquota/tests/go/honest/{package}", stamp, tags=tags))]


def run(
    on: Stage,
    libraries: Sequence[str],
    seconds: float,
    say: Callable[[str], None],
    attacks: Sequence[Row] = (),
    *,
    limit: int = LIMIT,
) -> list[Honest]:
    """All of them at the same time, and `attacks` next to them (through the same sidecar where the door is plain)."""
    results = {name: Honest(name) for name in libraries}
    commands = {}
    for name in libraries:
        try:
            commands[name] = command_of(name)
        except go_tools.NoGoError as error:
            results[name].missing = str(error)
    prefix = f"honest{len(on.prepared)}-"
    rows = [Row(name, name, "honest", limit=limit) for name in commands]
    on.prepare(rows, prefix)
    others = f"a{len(on.prepared)}-"
    ids = on.prepare(attacks, others)
    beside = f", next to {len(attacks)} attacks" if attacks else ""
    say(f"{len(commands)} honest libraries at {OFFER} times their limit, {seconds:g} s{beside} ...")
    with ExitStack() as stack:
        running = stack.enter_context(sidecars(on, {prefix: rows, others: attacks}, owners={}, window_num=WINDOW_NUM))
        if attacks:
            work = work_of(on, attacks, seconds, others, ids, {}, running)
            attackers = stack.enter_context(child("attackers", work))
            line_of(attackers)
            tell(attackers, "go")
        meter = Meter(running, rows, prefix)
        meter.start()
        children = {}
        for name, command in commands.items():
            work = {
                "bootstrap": [running["plain"].bootstrap],
                "topic": prefix + name,
                "client_id": prefix + name,
                "per_s": OFFER * limit / RECORD_BYTES,
                "seconds": seconds,
                "record_bytes": RECORD_BYTES,
                "buffer_bytes": BUFFER_BYTES,
            }
            if name in LIBRARIES:
                work["library"] = name
            children[name] = start(command, work)
        time.sleep(seconds)
        meter.end()
        until = time.monotonic()
        acknowledged: dict[str, list[int]] = {}
        for name, client in children.items():
            answer = finish(client)
            acknowledged[name], results[name].sent, results[name].errors = (
                answer["acked"],
                answer["sent"],
                answer["errors"],
            )
            results[name].achieved = compute_achieved(meter.seen[name], limit, WINDOW_NUM, until).achieved
    for name in commands:
        result, log = results[name], read_numbers(on.cluster.bootstrap, prefix + name)
        result.acknowledged = len(acknowledged[name])
        found = check(history_of(result.sent, acknowledged[name], log))
        result.lost, result.repeated = len(found.get("lost", ())), len(found.get("duplicated", ()))
    for result in results.values():
        say(in_words(result))
    return list(results.values())


def finish(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What a client reports at its end."""
    try:
        out, _ = child.communicate(timeout=END_LIMIT_S)
        answer: dict[str, Any] = json.loads(out)
    except (subprocess.TimeoutExpired, ValueError) as error:
        child.kill()
        child.wait()
        answer = {"errors": [f"its program ended badly: {error!r}"[:300]]}
    return {"sent": 0, "acked": [], "errors": [], "read": [], "times": []} | {
        key: value for key, value in answer.items() if value is not None
    }


def read_numbers(bootstrap: Sequence[str], topic: str) -> list[tuple[int, int, int]]:
    """(offset, number, when it was appended in ms) of all records in a topic."""
    from kafka import KafkaConsumer, TopicPartition

    with KafkaConsumer(
        bootstrap_servers=list(bootstrap), auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end, found = consumer.end_offsets([partition])[partition], []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(one.offset, int(one.value[:12]), one.timestamp) for one in records]
        return found


def history_of(sent: int, acknowledged: Iterable[int], read: Iterable[tuple[int, int, int]]) -> History:
    """Of one producer, which reports no offsets, and one reader."""
    return [
        *(Event("sent", "producer", number) for number in range(sent)),
        *(Event("acknowledged", "producer", number) for number in acknowledged),
        *(Event("polled", "reader", number, offset=offset) for offset, number, _ in read),
    ]


def in_words(one: Honest) -> str:
    """A line for the terminal."""
    if one.missing:
        return f"FAIL {one.library}: not tried: {one.missing}"
    verdict = "PASS" if one.passed else "FAIL"
    return (
        f"{verdict} {one.library}: {one.sent} sent, {one.acknowledged} acknowledged, {one.lost} lost, "
        f"{one.repeated} twice, {len(one.errors)} errors, {one.achieved:.3f} of the limit"
        + (f"; {Counter(one.errors).most_common(2)}" if one.errors else "")
    )
