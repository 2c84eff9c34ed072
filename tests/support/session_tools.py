"""Frames and a driver for tests of the sans-IO session: bytes in, bytes out, on a clock that tests set."""

from __future__ import annotations

import datetime
import io
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kio.serial import entity_reader, entity_writer

from proxy.core.auth.sasl import NO_LOGIN, Login
from proxy.core.interceptors.intercept import AdminRequest, Outcome, Work
from proxy.core.interceptors.quota_admin import AlterRule
from proxy.core.session.effects import Effects
from proxy.core.session.session import Session
from proxy.core.session.state import SessionState
from proxy.core.session.states import Answering
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.apis import is_flexible
from proxy.core.wire.messages import framed, request_header
from proxy.core.wire.responses import NodeAddress
from quota.admin import Changes
from quota.entity import DEFAULT, Kind
from quota.ledger import Ledger
from quota.table import Entry, QuotaTable

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
MB = 1_000_000
TOPIC_ID = uuid.UUID(int=7)


def request(api_key: int, version: int, correlation_id: int, body: bytes, client_id: str = "c") -> bytes:
    return framed(request_header(api_key, version, correlation_id, client_id) + body)


def response(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    flexible = is_flexible(api_key, version) and api_key != API_VERSIONS
    return framed(struct.pack(">i", correlation_id) + (b"\0" if flexible else b"") + body)


def produce(
    correlation_id: int, size_bytes: int, *, acks: int = 1, client_id: str = "c", timeout_ms: int = 30_000
) -> bytes:
    """A Produce v7 request whose frame, without the 4-byte prefix, has exactly `size_bytes`."""
    head = request_header(PRODUCE, 7, correlation_id, client_id) + struct.pack(">hhii", -1, acks, timeout_ms, 0)
    return framed(head + b"r" * (size_bytes - len(head)))


def produce_response(correlation_id: int, throttle_ms: int = 0) -> bytes:
    """A Produce v7 response without topics; throttle_time_ms is its last field."""
    return response(PRODUCE, 7, correlation_id, struct.pack(">ii", 0, throttle_ms))


def kio_message(name: str, version: int, kind: str) -> Any:
    """kio's module of a message, for example ("fetch", 12, "request")."""
    return import_module(f"kio.schema.{name}.v{version}.{kind}")


def encode(message: Any) -> bytes:
    sink = io.BytesIO()
    entity_writer(type(message))(sink, message)
    return sink.getvalue()


def metadata_response(correlation_id: int, *brokers: tuple[int, str, int]) -> bytes:
    """Of version 1, with these brokers (node id, host, port) and no topics."""
    kio = kio_message("metadata", 1, "response")
    made = tuple(
        kio.MetadataResponseBroker(node_id=node, host=host, port=port, rack=None) for node, host, port in brokers
    )
    return response(METADATA, 1, correlation_id, encode(kio.MetadataResponse(brokers=made, controller_id=1, topics=())))


def decode(cls: Any, data: bytes) -> Any:
    """The kio message in `data`, which it must fill."""
    message, used = entity_reader(cls)(data, 0)
    assert used == len(data)
    return message


def fetch_body(
    version: int,
    *,
    max_bytes: int = 50_000_000,
    min_bytes: int = 1,
    session_id: int = 0,
    epoch: int = -1,
    partitions: dict[int, int] | None = None,
    forget: tuple[int, ...] = (),
) -> bytes:
    """A consumer's FetchRequest for one topic: partition -> fetch offset."""
    kio = kio_message("fetch", version, "request")
    name: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "t"}
    places = tuple(
        kio.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in (partitions or {}).items()
    )
    more: dict[str, Any] = {"topics": (kio.FetchTopic(**name, partitions=places),) if places else ()}
    if version < 15:
        more["replica_id"] = -1
    if version >= 7:
        more |= {"session_id": session_id, "session_epoch": epoch}
        more["forgotten_topics_data"] = (kio.ForgottenTopic(**name, partitions=forget),) if forget else ()
    wait = datetime.timedelta(milliseconds=500)
    return encode(kio.FetchRequest(max_wait=wait, min_bytes=min_bytes, max_bytes=max_bytes, **more))


def ledger(
    *,
    smooth: bool = True,
    produce_rate: float | None = None,
    fetch_rate: float | None = None,
    request_percentage: float | None = None,
) -> Ledger:
    limits: dict[str, Any] = {
        "producer_byte_rate": produce_rate, "consumer_byte_rate": fetch_rate, "request_percentage": request_percentage
    }  # fmt: skip
    return Ledger(QuotaTable([Entry(client_id=DEFAULT, **limits)] if any(limits.values()) else []), smooth=smooth)


def kafka_ledger(*entries: Entry, num_samples: int = 11, window_ms: int = 1000) -> Ledger:
    """A ledger that throttles as a broker does: no pacing, no cap on a throttle."""
    table = QuotaTable(entries)
    return Ledger(
        table,
        num_samples=num_samples,
        window_ms=window_ms,
        mutation_num_samples=num_samples,
        mutation_window_ms=window_ms,
        max_throttle_ms=None,
        smooth=False,
    )


def acted(
    of: Ledger, action: str, amount: int, now: int, *, fetched: int, kinds: Sequence[Kind] = tuple(Kind)
) -> object:
    """What a ledger answers to one step of a sequence about user "u": amounts of busy time are in tens of milliseconds,
    whole percent-seconds, whose sums are exact."""
    account = of.account("u", "c")
    if action == "charge":
        return [of.charge(account, kind, amount * (10 if kind is Kind.REQUEST else 1), now) for kind in kinds]
    if action == "strict":
        return of.charge_mutation(account, amount, True, now)
    if action == "fetch":
        grant = of.admit(account, Kind.FETCH, 10_000, now)
        if not grant.throttle_ms:
            of.settle(account, Kind.FETCH, grant, fetched, now)
        return grant.throttle_ms, grant.max_bytes
    if action == "refund":
        for kind in (Kind.PRODUCE, Kind.REQUEST):
            of.refund(account, kind, amount * 10, now)
    return [(of.check(account, kind, now), of.observed(account, kind, now)) for kind in Kind]


def identities(of: Ledger) -> set[tuple[str, str]]:
    return {account.identity for account in of.accounts()}


def throttles(of: Ledger, user: str) -> dict[Kind, tuple[int, int]]:
    """Throttled requests and their delays in ms, by the quota that is named as the cause."""
    meters = of.account(user, "c").meters
    return {kind: (meter.throttled, meter.throttle_ms) for kind, meter in meters.items() if meter.throttled}


def translate(nodes: Sequence[NodeAddress], complete: bool) -> list[tuple[str, int]]:
    """Broker n is at sidecar:19000+n."""
    return [("sidecar", 19_000 + node.node_id) for node in nodes]


class Driven(Session):
    """A session whose effects are carried out at once, as by a shell whose sockets are always ready."""

    __slots__ = ("down", "unread", "up", "user_of")

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(SessionState(*arguments, **settings))
        self.up, self.down = bytearray(), bytearray()
        """What was sent to the broker, and to the client, and not taken by the test."""
        self.unread = b""
        """What the client has sent and the session does not read yet."""
        self.user_of: Callable[[Login], str | None] = lambda _login: self.user
        """The user of a login; None: it is being looked up."""

    def carry_out(self, effects: Effects, now_ms: float) -> None:
        """Do what the session wants. Raises the SessionError that the connection ends with."""
        while True:
            for out, into in ((effects.to_broker, self.up), (effects.to_client, self.down)):
                for part in out.parts():
                    into += part
            if effects.close is not None:
                raise effects.close
            login, ask = effects.identified, effects.ask
            user = None if login is None else self.user_of(login)
            if user is not None:
                effects = self.on_identity(user, now_ms)
            elif effects.connect:
                effects = self.on_connected(0.0, now_ms)
            elif ask is not None:
                ask.start(lambda outcome: self.carry_out(self.on_decision(outcome, now_ms), now_ms))
                return
            elif effects.more:
                effects = self.on_turn(now_ms)
            elif effects.read_client and self.unread:
                data, self.unread = self.unread, b""
                effects = self.on_client_bytes(memoryview(bytearray(data)), len(data), now_ms)
            else:
                return

    def client_sends(self, data: bytes, now_ms: float) -> None:
        """It is read as soon as the session lets it be."""
        self.unread += data
        self.carry_out(self.on_deadline(now_ms), now_ms)

    def wake(self, now_ms: float) -> None:
        """What a shell does when it is time: it reads ahead, and reports what is unread."""
        self.carry_out(self.on_deadline(now_ms), now_ms)
        if len(self.unread) > self.read_ahead_over(now_ms):
            data, self.unread = self.unread, b""
            self.carry_out(self.on_client_bytes(memoryview(bytearray(data)), len(data), now_ms), now_ms)
        if self.mute_until_ms > now_ms:
            self.carry_out(self.on_unread(len(self.unread), False, now_ms), now_ms)

    def broker_sends(self, data: bytes, now_ms: float, arrived_ms: float | None = None) -> None:
        """It is read at once, and may have arrived earlier."""
        arrived_ms = now_ms if arrived_ms is None else arrived_ms
        self.carry_out(self.on_broker_bytes(memoryview(bytearray(data)), len(data), now_ms, arrived_ms), now_ms)

    def client_moved(self, count: int, now_ms: float) -> None:
        """Bytes of a request went to the broker unseen."""
        self.carry_out(self.on_client_moved(count, now_ms), now_ms)

    def broker_moved(self, count: int, now_ms: float) -> None:
        """Bytes of a response went to the client unseen."""
        self.carry_out(self.on_broker_moved(count, now_ms), now_ms)

    def identify(self, user: str, now_ms: float = 0.0) -> None:
        self.carry_out(self.on_identity(user, now_ms), now_ms)

    def taken(self) -> bytes:
        sent, self.up = bytes(self.up), bytearray()
        return sent

    def seen(self) -> bytes:
        sent, self.down = bytes(self.down), bytearray()
        return sent

    @property
    def has_backlog(self) -> bool:
        """Whether requests have come that were not taken."""
        return bool(self.unread) or self.requests.reader.keeps()

    @property
    def must_wait(self) -> bool:
        """Whether the client waits for something other than time."""
        return self.state.auth.blocks or self.exchange.state is not Answering.FLOWING


def session(of: Ledger, *, rewrite: bool = True, **settings: Any) -> Driven:
    """A session, of user ANONYMOUS unless `user` is given."""
    settings = {"user": "ANONYMOUS"} | settings
    return Driven(of, Counters(), translate=translate if rewrite else None, **settings)


def identified(of: Ledger, **settings: Any) -> Driven:
    """A session whose user is the one that logged in, and FALLBACK where no login is needed."""
    one = session(of, **settings)
    one.user_of = lambda login: "FALLBACK" if login is NO_LOGIN else login.name or "?"
    return one


def frames(data: bytes) -> Iterator[bytes]:
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        yield data[:size]
        data = data[size:]


Cut = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for value in data:
        yield bytes((value,))


def in_sevens(data: bytes) -> Iterator[bytes]:
    """Parts that fit no boundary of the protocol."""
    for start in range(0, len(data), 7):
        yield data[start : start + 7]


THREE_WAYS: tuple[Cut, ...] = (whole, byte_by_byte, in_sevens)


def from_client(of: Driven, data: bytes, now_ms: float = 0.0, cut: Cut = whole) -> bytes:
    """Feed bytes from the client; what goes to the broker."""
    for part in cut(data):
        of.client_sends(part, now_ms)
    return of.taken()


def from_broker(of: Driven, data: bytes, now_ms: float = 0.0, cut: Cut = whole) -> bytes:
    """Feed bytes from the broker; what goes to the client."""
    for part in cut(data):
        of.broker_sends(part, now_ms)
    return of.seen()


def resumed(of: Driven, now_ms: float) -> bytes:
    """It is `now_ms`; what goes to the broker, and went since the last look."""
    of.carry_out(of.on_deadline(now_ms), now_ms)
    return of.taken()


def finished(result: Any, now_ms: float = 0.0) -> Any:
    """An interceptor's result, once all slices of its work are done."""
    while isinstance(result, Work):
        done = result.advance(now_ms)
        result = result if done is None else done
    return result


class Scripted:
    """An interceptor that wants every request and decides as given."""

    def __init__(self, decide: Callable[[AdminRequest, float], Outcome]) -> None:
        self.decide = decide
        self.given: list[AdminRequest] = []

    def wants(self, _api_key: int, _account: object) -> bool:
        return True

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        self.given.append(request)
        return self.decide(request, now_ms)


@dataclass
class Authority:
    """Of limits that administrators ask for. Does as given; keeps what it was asked to change."""

    rule: AlterRule = "deny"
    table: QuotaTable = field(
        default_factory=lambda: QuotaTable(
            [Entry("alice", producer_byte_rate=1000.0), Entry(client_id=DEFAULT, producer_byte_rate=5.5)]
        )
    )
    principals: Sequence[str] = ("ANONYMOUS",)
    managed: str = "in the file /etc/kquota.yaml"
    applied: list[tuple[str, Changes]] = field(default_factory=list)
    done: list[Callable[[str | None], None]] = field(default_factory=list)
    told_of_the_broker: int = 0

    def may_alter(self, user: str) -> bool:
        return user in self.principals

    def apply(self, user: str, changes: Changes, done: Callable[[str | None], None]) -> None:
        self.applied.append((user, changes))
        self.done.append(done)

    def altered_at_the_broker(self) -> None:
        self.told_of_the_broker += 1
