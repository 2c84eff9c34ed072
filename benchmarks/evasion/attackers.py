"""The attackers, in a process of their own: work on stdin as JSON, what was seen on stdout. Started by `stage`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import ssl
import struct
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.evasion import frames
from benchmarks.evasion.logins import steps
from benchmarks.evasion.members import MemberWire
from benchmarks.evasion.rows import LOOPBACK, Row
from benchmarks.evasion.wire import Address, RefusedError, Wire
from benchmarks.rig.frames import fetch_frame
from proxy.core.wire.messages import metadata_request

STEP_TIMEOUT_S = 60.0
"""How long an attacker that awaits answers does so before it tries again. Longer than `max_mute`."""
RELOGIN_EVERY_S = 1.1
"""A broker ignores logins on one connection that come more often."""
REST_S = 0.05
"""After a failure: an attacker that is refused does not spin."""
SHARE_WAIT_S = 0.2
UNKNOWN_TOPIC = 3


@dataclass
class Work:
    """What to do, and where."""

    doors: dict[str, Address]
    rows: list[Row]
    topics: dict[str, str]
    """Topic ids in hex, by row."""
    seconds: float
    prefix: str
    """Of client-ids and topics."""
    password: str
    authority: str | None
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Delegation tokens (id, HMAC) by row."""
    certificates: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Files of clients' certificates and their keys, by row."""
    kerberos: dict[str, str] = field(default_factory=dict)
    """Environment variables of MIT's Kerberos."""


@dataclass
class Seen:
    """What the attackers of a row saw."""

    name: str
    frame_bytes: int = 0
    """Of a request, without its size: what a quota counts."""
    requests: int = 0
    answers: int = 0
    connections: int = 0
    amount: float = 0.0
    """Fetched bytes in answers with records, mutations that were confirmed."""
    series: list[tuple[float, float]] = field(default_factory=list)
    """(time, amount) whenever it grew."""
    throttled_ms: int = 0
    """The longest announced throttle time (fetch)."""
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, amount: float) -> None:
        """More was achieved."""
        self.amount += amount
        self.series.append((time.monotonic(), self.amount))


class Attacker:
    """The attackers of one row."""

    def __init__(self, row: Row, work: Work) -> None:
        self.row, self.work, self.seen = row, work, Seen(row.name)
        self.client_id = self.topic = work.prefix + row.name
        self.topic_id = uuid.UUID(hex=work.topics.get(row.name, "00" * 16))
        self._number = itertools.count()
        self._due = time.monotonic()
        each = row.size if row.attack in ("produce", "fetch", "share") else 1
        per_s = row.offer if row.attack == "requests" else row.offer * row.limit / min(each, 1_000_000_000)
        if row.attack in ("fetch", "share"):  # what is asked for is not what comes: about a batch
            per_s = row.offer * row.limit / min(row.size, 100_000)
        self._step_s = 1.0 / per_s
        self._tls = None
        if row.door in ("tls", "certificate"):
            self._tls = ssl.create_default_context(cafile=work.authority)
            if row.name in work.certificates:
                self._tls.load_cert_chain(*work.certificates[row.name])
        self._frame = b""
        if row.attack == "produce" and row.flavour != "names":
            self._frame = self._produce()
            self.seen.frame_bytes = len(self._frame) - 4
        elif row.attack == "produce":
            self.seen.frame_bytes = len(self._produce(name=self._invented())) - 4
        self._step: Callable[[Wire, int, dict[str, Any]], Awaitable[None]] = {
            "produce": self._produce_once,
            "fetch": self._fetch_once,
            "share": self._share_once,
            "requests": self._request_once,
            "mutations": self._mutate_once,
        }[row.attack]

    async def run(self) -> None:
        """All of its connections, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(self.row.connections):
                tasks.create_task(self._worker(index))

    async def _worker(self, index: int) -> None:
        kept: dict[str, Any] = {}
        """What outlives a connection: a producer's id and sequence."""
        while True:
            try:
                await self._connection(index, kept)
            except* (OSError, RefusedError, asyncio.IncompleteReadError) as group:  # TimeoutError is an OSError
                for error in group.exceptions:
                    self.seen.errors[f"{type(error).__name__}: {error}"[:100]] += 1
                await asyncio.sleep(REST_S)

    async def _turn(self, requests: int = 1) -> None:
        """No more than is offered, and no catching up."""
        now = time.monotonic()
        self._due = max(self._due + requests * self._step_s, now - 0.5)
        if self._due > now:
            await asyncio.sleep(self._due - now)

    async def _connection(self, index: int, kept: dict[str, Any]) -> None:
        row = self.row
        if row.mode != "persistent":
            await self._turn(row.depth)
        (host, port), source = self.work.doors[row.door], row.source(index)
        if source is not None:
            host = LOOPBACK[source[:3]]
        async with asyncio.timeout(STEP_TIMEOUT_S):
            wire = await (MemberWire if row.member else Wire).open((host, port), source, self._tls)
        if isinstance(wire, MemberWire):
            await wire.join(row.member, f"group-{self.topic}", self.topic, self.client_id)
        self.seen.connections += 1
        here: dict[str, Any] = {"kept": kept, "index": index, "first": True}
        try:
            if row.door in ("sasl", "kerberos"):
                await self._login(wire, row.user)
                here["login"] = time.monotonic()
            if row.mode != "persistent":
                await self._step(wire, row.depth, here)
                return
            for _ in range(row.depth - 1):  # on their way at any time
                await self._turn()
                await wire.send(self._frame)
                self.seen.requests += 1
            while row.relogin == "piped":
                await self._login_behind_requests(wire)
            while True:
                await self._turn()
                await self._step(wire, 1, here)
                here["first"] = False
                if row.relogin and time.monotonic() > here["login"] + RELOGIN_EVERY_S:
                    if row.relogin == "renew":
                        await self._renew()
                    await self._login(wire, f"other-{row.name}" if row.relogin == "other" else row.user)
                    here["login"] = time.monotonic()
        finally:
            wire.close(reset=row.mode == "reset")

    async def _login(self, wire: Wire, user: str) -> None:
        row, password = self.row, self.work.password
        if token := self.work.tokens.get(row.name):
            user, password = token
        said = steps(row.mechanism, user, password, token_s=row.token_s, by_token=token is not None)
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await wire.login(row.mechanism, said, self.client_id)

    async def _login_behind_requests(self, wire: Wire) -> None:
        """A client that owes is not read: its next login must be, and before that all that stands there."""
        row = self.row
        count = max(round(row.offer * row.limit * row.token_s / row.size), 1)
        began = time.monotonic()

        async def send() -> None:
            for _ in range(count):
                await wire.send(self._frame)
                self.seen.requests += 1
            await asyncio.sleep(max(RELOGIN_EVERY_S - (time.monotonic() - began), 0.0))
            await wire.send(frames.handshake(row.mechanism, self.client_id))
            said = steps(row.mechanism, row.user, self.work.password, token_s=row.token_s)
            await wire.send(frames.authenticate(next(said), self.client_id))

        async with asyncio.timeout(STEP_TIMEOUT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            for _ in range(count):
                self._judge(await wire.answer())
                self.seen.answers += 1
            if error := frames.handshake_error(await wire.answer()):
                raise RefusedError(f"SaslHandshake: error {error}")
            error, result = frames.authenticated(await wire.answer())
            if error or result:
                raise RefusedError(f"SaslAuthenticate: error {error} {result!r}")

    async def _renew(self) -> None:
        """A delegation token is renewed by its owner, who has not logged in with it."""
        secret = self.work.tokens[self.row.name][1]
        wire = await Wire.open(self.work.doors[self.row.door])
        try:
            await wire.login("PLAIN", steps("PLAIN", self.row.user, self.work.password), "renewing")
            async with asyncio.timeout(STEP_TIMEOUT_S):
                if error := frames.renewal_error(await wire.ask(frames.renew_token(secret, "renewing"))):
                    self.seen.errors[f"RenewDelegationToken: error {error}"] += 1
        finally:
            wire.close()

    async def _ask(self, wire: Wire, frame: bytes) -> bytes | None:
        """The answer, if it is awaited."""
        await wire.send(frame)
        self.seen.requests += 1
        if self.row.mode in ("impatient", "reset"):
            return None
        if self.row.mode == "half-close":
            wire.half_close()
        async with asyncio.timeout(STEP_TIMEOUT_S):
            answer = await wire.answer()
        self.seen.answers += 1
        return answer

    # ---- produce

    def _invented(self) -> str:
        return f"{self.client_id}-{next(self._number):09d}"

    def _produce(self, name: str = "", **more: Any) -> bytes:
        row = self.row
        compressed = row.flavour == "compressed"
        return frames.produce(
            self.topic, row.size, name or self.client_id, acks=row.acks, compressed=compressed, **more
        )

    async def _produce_once(self, wire: Wire, count: int, here: dict[str, Any]) -> None:
        row, frame = self.row, self._frame
        if row.flavour in ("idempotent", "transactional"):
            frame = await self._numbered(wire, here)
        elif row.flavour == "names":
            frame = self._produce(name=self._invented())
        if row.acks == 0:
            await wire.send(frame)
            self.seen.requests += 1
            return
        if count == 1:
            answer = await self._ask(wire, frame)
            if answer is not None and self._judge(answer):
                return
        else:
            for _ in range(count):
                await wire.send(frame)
                self.seen.requests += 1
            for _ in range(count):
                self._judge(await self._next(wire))
        if row.flavour in ("idempotent", "transactional"):
            here["kept"]["sequence"] += 1

    async def _next(self, wire: Wire) -> bytes:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            answer = await wire.answer()
        self.seen.answers += 1
        return answer

    def _judge(self, answer: bytes) -> bool:
        """Whether it is an error."""
        if error := frames.produce_error(self.topic, answer):
            self.seen.errors[f"Produce: error {error}"] += 1
        return error != 0

    async def _numbered(self, wire: Wire, here: dict[str, Any]) -> bytes:
        kept, row = here["kept"], self.row
        transaction = f"{self.topic}-{here['index']}" if row.flavour == "transactional" else None
        while "producer" not in kept:
            error, *producer = frames.producer_of(await wire.ask(frames.init_producer_id(self.client_id, transaction)))
            if error:  # the coordinator is being made
                self.seen.errors[f"InitProducerId: error {error}"] += 1
                await asyncio.sleep(0.5)
                continue
            kept |= {"producer": tuple(producer), "sequence": 0}
            if transaction is not None:
                await wire.ask(frames.add_partition(self.client_id, transaction, kept["producer"], self.topic))
        frame = self._produce(producer=(*kept["producer"], kept["sequence"]), transaction=transaction)
        self.seen.frame_bytes = len(frame) - 4
        return frame

    # ---- fetch

    async def _fetch_once(self, wire: Wire, _count: int, here: dict[str, Any]) -> None:
        row = self.row
        session = (0, -1) if row.flavour != "session" else here.get("session", (0, 0))
        frame = fetch_frame(row.version, self.topic, self.topic_id, row.size, self.client_id, session=session)
        answer = await self._ask(wire, frame)
        if answer is None:
            return
        self._fetched(answer, flexible=row.version >= 12)
        if row.version >= 7:
            (error,) = struct.unpack_from(">h", answer, 9 if row.version >= 12 else 8)
            if error:
                self.seen.errors[f"Fetch: error {error}"] += 1
            number = frames.fetch_session(row.version, answer)
            here["session"] = (number, session[1] + 1) if number and not error else (0, 0)

    def _fetched(self, answer: bytes, *, flexible: bool) -> None:
        (told_ms,) = struct.unpack_from(">i", answer, 5 if flexible else 4)
        self.seen.throttled_ms = max(self.seen.throttled_ms, told_ms)
        if len(answer) > frames.EMPTY_FETCH_BYTES:
            self.seen.add(len(answer))

    async def _share_once(self, wire: Wire, _count: int, here: dict[str, Any]) -> None:
        if "member" not in here:
            here |= {"member": str(uuid.UUID(bytes=os.urandom(16))), "epoch": 0, "acquired": (0, -1)}
        frame = frames.share_fetch(
            f"group-{self.topic}",
            here["member"],
            here["epoch"],
            self.topic_id,
            self.row.size,
            self.client_id,
            here["acquired"],
        )
        answer = await self._ask(wire, frame)
        if answer is None:
            return
        self._fetched(answer, flexible=True)
        (error,) = struct.unpack_from(">h", answer, 9)
        if error:
            self.seen.errors[f"ShareFetch: error {error}"] += 1
            raise RefusedError(f"ShareFetch: error {error}")
        here["epoch"] += 1
        here["acquired"] = frames.acquired(answer)
        if len(answer) <= frames.EMPTY_FETCH_BYTES:
            await asyncio.sleep(SHARE_WAIT_S)

    # ---- other requests

    async def _request_once(self, wire: Wire, _count: int, _here: dict[str, Any]) -> None:
        match self.row.flavour:
            case "small":
                frame = metadata_request(1, 1, self.client_id)
            case "validate":
                frame = frames.create_topics(7, [f"{self.topic}-x"], self.client_id, validate_only=True)
            case _:
                frame = frames.describe_broker(self.client_id)
        await self._ask(wire, frame)

    async def _mutate_once(self, wire: Wire, _count: int, here: dict[str, Any]) -> None:
        flavour = self.row.flavour
        if flavour.startswith("partitions"):
            await self._partitions(wire, here, version=1 if flavour.endswith("old") else 3)
        elif flavour.startswith("delete"):
            await self._delete(wire, here, version=4 if flavour.endswith("old") else 5)
        elif flavour.startswith("metadata"):
            names = [f"{self.topic}-x{next(self._number)}" for _ in range(self.row.size)]
            await self._ask(wire, frames.metadata(1 if flavour.endswith("old") else 12, names, self.client_id))
        else:
            await self._create(wire)

    async def _create(self, wire: Wire) -> None:
        row = self.row
        names = [f"{self.topic}-x{next(self._number)}" for _ in range(row.size)]
        version = 4 if row.flavour == "old" else 7
        if row.flavour == "validate":
            await wire.ask(frames.create_topics(version, names, self.client_id, validate_only=True))
        answer = await self._ask(wire, frames.create_topics(version, names, self.client_id))
        if answer is None or version < 7:
            return
        ids = frames.created_ids(answer)
        self.seen.add(len(ids))
        if row.flavour == "ids" and ids:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                deleted = frames.deleted_count(await wire.ask(frames.delete_topics_by_id(ids, self.client_id)))
            self.seen.add(deleted)

    async def _made(self, wire: Wire, kept: dict[str, Any]) -> str:
        """A topic of one partition, by a client without a quota; the same one until it is dropped from `kept`."""
        if "topic" not in kept:
            name = f"{self.topic}-y{next(self._number)}"
            async with asyncio.timeout(STEP_TIMEOUT_S):
                if not frames.created_ids(await wire.ask(frames.create_topics(7, [name], "maker"))):
                    raise RefusedError(f"{name} was not created")
            kept |= {"topic": name, "partitions": 1}
        return str(kept["topic"])

    async def _partitions(self, wire: Wire, here: dict[str, Any], *, version: int) -> None:
        kept = here["kept"]
        topic, count = await self._made(wire, kept), kept["partitions"] + 1
        answer = await self._ask(wire, frames.create_partitions(version, topic, count, self.client_id))
        if answer is None:
            return
        if error := frames.partitions_error(version, answer):
            self.seen.errors[f"CreatePartitions: error {error}"] += 1
        else:
            kept["partitions"] = count
            self.seen.add(1)

    async def _delete(self, wire: Wire, here: dict[str, Any], *, version: int) -> None:
        topic = await self._made(wire, here["kept"])
        answer = await self._ask(wire, frames.delete_topic(version, topic, self.client_id))
        if answer is None:
            return
        if error := frames.deletion_error(version, answer):
            self.seen.errors[f"DeleteTopics: error {error}"] += 1
        if error in (0, UNKNOWN_TOPIC):
            del here["kept"]["topic"]
            self.seen.add(not error)


async def attack(work: Work) -> list[Seen]:
    """All rows at the same time, until the time is over."""
    attackers = [Attacker(row, work) for row in work.rows]
    try:
        async with asyncio.timeout(work.seconds), asyncio.TaskGroup() as tasks:
            for one in attackers:
                tasks.create_task(one.run())
    except TimeoutError:
        pass
    return [one.seen for one in attackers]


def main() -> int:
    """The command."""
    result = json.loads(sys.stdin.readline())
    result["rows"] = [Row(**row) for row in result["rows"]]
    result["doors"] = {name: tuple(address) for name, address in result["doors"].items()}
    work = Work(**result)
    os.environ |= work.kerberos
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        return 1
    print(json.dumps([vars(seen) for seen in asyncio.run(attack(work))]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
