"""Connection limits: how fast they may be created (KIP-612) and how many may be open, per peer address and user.

A network (CIDR) is a default for its addresses: its limits apply to each of them, not to their sum, as Kafka's default
``ip`` entity does for all addresses. The longest prefix wins, for each of the two limits.

The arithmetic is that of ``ConnectionQuotas`` in Kafka's ``SocketServer``: a connection records 1.0 in a sampled rate;
a rate above the limit refuses it and takes the 1.0 back, and the refused socket is left unserved for the delay of
KIP-13's formula, at most one sample long. A cap refuses at once. Kafka has rates and caps per address only; both per
user are our addition. ADR 0011 explains the differences.
"""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from quota.entity import DEFAULT, Default
from quota.rate import SampledRate, throttle_ms

if TYPE_CHECKING:
    from quota.fleet.shares import Shares

FORGET_EACH_TIME: Final = 8
"""Idle names evicted per attempt: more than one attempt can add, so that the tables shrink under traffic."""
MAX_TRACKED: Final = 250_000
"""Rates kept per type, as windows can be a day long; beyond it the longest idle one is evicted early."""
MAX_REMEMBERED: Final = 1000
"""Names whose refusals are remembered, for people; beyond it the one refused longest ago is evicted."""


class EntityType(StrEnum):
    """What a connection limit counts by."""

    IP = "ip"
    """The peer's address, Kafka's entity type ``ip``."""
    USER = "user"
    """The connection's user, once it is known. Not in Kafka."""


class Cause(StrEnum):
    """Which limit refused a connection."""

    IP_RATE = "ip_connection_rate"
    IP_CAP = "ip_max_connections"
    USER_RATE = "user_connection_rate"
    USER_CAP = "user_max_connections"


_RATE_CAUSE: Final = {EntityType.IP: Cause.IP_RATE, EntityType.USER: Cause.USER_RATE}
_CAP_CAUSE: Final = {EntityType.IP: Cause.IP_CAP, EntityType.USER: Cause.USER_CAP}


def canonical_address(text: str) -> str:
    """An IP address in the canonical spelling of limits and peers. ValueError if it is not an address.

    An IPv4 address that an IPv6 socket shows as ``::ffff:10.0.0.1`` is 10.0.0.1, as in Java; zone ids are dropped.
    """
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or str(address).partition("%")[0])
    return str(address)


def canonical_source(text: str) -> str:
    """An address or a network (``10.0.0.0/8``) in the canonical spelling of limits. ValueError if it is neither.

    A network of one address is that address, and one of IPv4-mapped addresses (``::ffff:10.0.0.0/104``) is IPv4.
    """
    address, slash, length = text.partition("/")
    if not slash:
        return canonical_address(text)
    if not (length.isascii() and length.isdigit()):
        raise ValueError(f"the prefix length of {text} is not a number")
    address = address.partition("%")[0]
    network = ipaddress.ip_network(f"{address}/{length}", strict=False)
    if ipaddress.ip_address(address) != network.network_address:
        raise ValueError(f"{text} has host bits set, the network is {network}")
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            network = ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED))
    return canonical_address(str(network.network_address)) if network.num_addresses == 1 else str(network)


_MAPPED: Final = 96
"""The prefix length of all IPv4-mapped IPv6 addresses."""


@dataclass(frozen=True, slots=True)
class ConnectionEntry:
    """The limits of one address or user, of each address of a network, or of all those without limits of their own
    (``DEFAULT``).

    0 refuses every connection: a cap of 0 may be configured, a rate of 0 may not (Kafka's AlterClientQuotas refuses it
    too). Raises ValueError for an invalid address, and for numbers that are negative or infinite.
    """

    entity_type: EntityType
    name: str | Default
    connection_creation_rate: float | None = None
    """Connections per second."""
    max_connections: int | None = None
    """Connections open at once."""
    mode: Literal["enforce", "shadow"] = "enforce"
    scope: Literal["instance", "fleet"] | None = None
    """Whose limit the rate is (:data:`quota.table.Scope`); None: the table's default. A cap is always local."""

    def __post_init__(self) -> None:
        if self.entity_type is EntityType.IP and self.name is not DEFAULT:
            object.__setattr__(self, "name", canonical_source(str(self.name)))
        if self.name == "":
            raise ValueError("expected a non-empty user for a connection limit")
        rate, cap = self.connection_creation_rate, self.max_connections
        if rate is not None and not 0 <= rate < inf:
            raise ValueError(f"connection_creation_rate is {rate}, expected a finite number of at least 0")
        if cap is not None and cap < 0:
            raise ValueError(f"max_connections is {cap}, expected at least 0")

    @property
    def entity(self) -> tuple[EntityType, str | Default]:
        """The entity of the entry. At most one entry of a table has it."""
        return (self.entity_type, self.name)

    @property
    def label(self) -> str:
        """The level as people write it."""
        if self.name is DEFAULT:
            return f"<default {self.entity_type}>"
        return f"{self.entity_type} {self.name}" if self.of_network else str(self.entity_type)

    @property
    def of_network(self) -> bool:
        """Whether the limits are those of each address of a network."""
        return self.entity_type is EntityType.IP and "/" in str(self.name)


class ConnectionLimits:
    """All connection limits at one moment. Immutable, as the :class:`~quota.table.QuotaTable` that contains it.

    Raises ValueError when two entries are about the same entity.
    """

    def __init__(self, entries: Iterable[ConnectionEntry] = ()) -> None:
        self.entries: Final = tuple(entries)
        self._by_entity: Final = {entry.entity: entry for entry in self.entries}
        if len(self._by_entity) < len(self.entries):
            raise ValueError("two connection limits for the same address or user")
        self._networks: Final = _by_prefix(entry for entry in self.entries if entry.of_network)

    def get(self, entity_type: EntityType, name: str | Default) -> ConnectionEntry | None:
        """The entry of exactly this entity."""
        return self._by_entity.get((entity_type, name))

    def rate(self, entity_type: EntityType, name: str) -> ConnectionEntry | None:
        """The entry whose ``connection_creation_rate`` applies; None where there is no limit."""
        found = self._applicable(entity_type, name)
        return next((entry for entry in found if entry.connection_creation_rate is not None), None)

    def cap(self, entity_type: EntityType, name: str) -> ConnectionEntry | None:
        """The entry whose ``max_connections`` applies; None where there is no limit."""
        found = self._applicable(entity_type, name)
        return next((entry for entry in found if entry.max_connections is not None), None)

    def _applicable(self, entity_type: EntityType, name: str) -> Iterator[ConnectionEntry]:
        """Entries of a name (an address, a user; or a network, for each of its addresses), the most specific first."""
        own, default = self._by_entity.get((entity_type, name)), self._by_entity.get((entity_type, DEFAULT))
        if own is not None:
            yield own
        if self._networks and entity_type is EntityType.IP:
            yield from self._containing(name)
        if default is not None:
            yield default

    def _containing(self, name: str) -> Iterator[ConnectionEntry]:
        try:
            found = ipaddress.ip_network(name)
        except ValueError:
            return  # stands for all addresses without an entry
        address, bits = int(found.network_address), found.max_prefixlen
        for length, by_prefix in self._networks.get(found.version, ()):
            entry = by_prefix.get(address >> (bits - length)) if length <= found.prefixlen else None
            if entry is not None:
                yield entry


def _by_prefix(entries: Iterable[ConnectionEntry]) -> dict[int, list[tuple[int, dict[int, ConnectionEntry]]]]:
    """IP version -> (prefix length, network's prefix -> entry), the longest prefix first."""
    found: dict[int, dict[int, dict[int, ConnectionEntry]]] = {}
    for entry in entries:
        network = ipaddress.ip_network(str(entry.name))
        length = network.prefixlen
        prefix = int(network.network_address) >> (network.max_prefixlen - length)
        found.setdefault(network.version, {}).setdefault(length, {})[prefix] = entry
    return {version: sorted(lengths.items(), key=itemgetter(0), reverse=True) for version, lengths in found.items()}


NO_CONNECTION_LIMITS: Final = ConnectionLimits()


class Refusal(NamedTuple):
    """Why a connection is not served."""

    cause: Cause
    name: str
    """The address or the user."""
    limit: float
    observed: float
    """Connections per second in the window, this one included; or connections open, without this one."""
    delay_ms: int
    """How long the refused socket is to be left open and unserved; 0: closed at once."""


@dataclass(frozen=True, slots=True)
class Refused:
    """How often one limit has refused one address or user."""

    count: int
    at_ms: float
    """The last time."""
    last: Refusal


@dataclass(eq=False, slots=True)
class Ticket:
    """An admitted connection: what is released when it ends."""

    address: str
    user: str | None = None
    """None until it is known."""


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """The state of one address or user, for ``explain``."""

    entity_type: EntityType
    name: str
    rate: ConnectionEntry | None
    """The entry that limits the creation rate."""
    observed: float
    """Connections created per second in the window; 0 without a limit, as nothing is recorded then."""
    delay_ms: int
    """How long a connection accepted now would be muted before it is closed; 0: the rate would admit it."""
    cap: ConnectionEntry | None
    """The entry that caps open connections."""
    open: int
    refused: list[Refused]
    """The remembered refusals by limit, the latest first."""


class ConnectionGate:
    """All connection counters. `limits()` is called for each decision, so that reloads take effect.

    Rates are kept for names that have a limit, and only while their window is not empty; open connections are counted
    for all names, so that a cap added by a reload knows them. Times are monotonic milliseconds.
    """

    def __init__(self, limits: Callable[[], ConnectionLimits], *, num_samples: int = 11, window_ms: int = 1000) -> None:
        self._limits = limits
        self.shares: Shares | None = None
        """This instance's shares in the rates of a whole fleet."""
        self._rates: Final = {entity_type: _Rates(num_samples, window_ms) for entity_type in EntityType}
        self._open: Final[dict[EntityType, Counter[str]]] = {entity_type: Counter() for entity_type in EntityType}
        self.refused: Final[Counter[Cause]] = Counter()
        self.shadow_refused: Final[Counter[Cause]] = Counter()
        """Connections that limits in shadow mode would have refused."""
        self._refusals: OrderedDict[tuple[Cause, str], Refused] = OrderedDict()  # the latest last

    def admit(self, address: str, user: str | None, now_ms: float) -> Ticket | Refusal:
        """A connection was accepted from `address`; `user` is None while it is unknown (then call :meth:`identify`).

        First the rates, then the caps, as in Kafka: a rate that refuses takes back what this connection recorded
        anywhere, a cap does not. Give the ticket to :meth:`leave` when the connection ends.
        """
        now = int(now_ms)
        recorded, refusal = self._rate(EntityType.IP, address, now)
        if refusal is None and user is not None:
            _, refusal = self._rate(EntityType.USER, user, now)
            if refusal is not None and recorded:
                self._rates[EntityType.IP].take_back(address, now)
        refusal = refusal or self._cap(EntityType.IP, address)
        if refusal is None and user is not None:
            refusal = self._cap(EntityType.USER, user)
        if refusal is not None:
            self._remember(refusal, now_ms)
            return refusal
        ticket = Ticket(address)
        self._open[EntityType.IP][address] += 1
        if user is not None:
            self._name(ticket, user)
        return ticket

    def identify(self, ticket: Ticket, user: str, now_ms: float) -> Refusal | None:
        """The user of an admitted connection became known (TLS, SASL): charge it now.

        If this refuses, the address keeps its charge, as the connection was served until now. The same user again
        (re-authentication) is not charged.
        """
        if ticket.user == user:
            return None
        _, refusal = self._rate(EntityType.USER, user, int(now_ms))
        refusal = refusal or self._cap(EntityType.USER, user)
        if refusal is not None:
            self._remember(refusal, now_ms)
            return refusal
        self._name(ticket, user)
        return None

    def leave(self, ticket: Ticket) -> None:
        """An admitted connection has ended."""
        _take(self._open[EntityType.IP], ticket.address)
        if ticket.user is not None:
            _take(self._open[EntityType.USER], ticket.user)
            ticket.user = None

    def forget(self, now_ms: float, most: int) -> int:
        """Evict up to `most` names of each entity_type whose window is empty; returns how many."""
        return sum(rates.forget(int(now_ms), most) for rates in self._rates.values())

    def open(self, entity_type: EntityType) -> Mapping[str, int]:
        """Open connections by name; only names that have any. Read only."""
        return self._open[entity_type]

    def tracked(self, entity_type: EntityType) -> int:
        """How many names have a rate."""
        return len(self._rates[entity_type])

    def standing(self, entity_type: EntityType, name: str, now_ms: float) -> ConnectionStatus:
        """The state of an address or a user, without changing anything."""
        limits = self._limits()
        rate, cap = limits.rate(entity_type, name), limits.cap(entity_type, name)
        observed, delay_ms = 0.0, 0
        if rate is not None:
            observed, delay_ms = self._rates[entity_type].peek(name, self._limit(rate, name), int(now_ms))
        causes = (_RATE_CAUSE[entity_type], _CAP_CAUSE[entity_type])
        refused = [found for cause in causes if (found := self._refusals.get((cause, name))) is not None]
        refused.sort(key=lambda one: one.at_ms, reverse=True)
        return ConnectionStatus(
            entity_type, name, rate, observed, delay_ms, cap, self._open[entity_type].get(name, 0), refused
        )

    def refusals(self, most: int) -> list[Refused]:
        """The remembered refusals, the latest first."""
        return list(islice(reversed(self._refusals.values()), most))

    def _remember(self, refusal: Refusal, now_ms: float) -> None:
        self.refused[refusal.cause] += 1
        place = (refusal.cause, refusal.name)
        before = self._refusals.pop(place, None)
        self._refusals[place] = Refused(1 if before is None else before.count + 1, now_ms, refusal)
        if len(self._refusals) > MAX_REMEMBERED:
            self._refusals.popitem(last=False)

    def _rate(self, entity_type: EntityType, name: str, now: int) -> tuple[bool, Refusal | None]:
        """Whether the connection is recorded now, and whether it is refused."""
        rates = self._rates[entity_type]
        rates.forget(now, FORGET_EACH_TIME)
        entry = self._limits().rate(entity_type, name)
        if entry is None:
            return False, None  # as in Kafka, nothing is recorded without a limit
        limit = self._limit(entry, name)
        observed, delay_ms = rates.attempt(name, limit, now)
        if self.shares is not None:
            self.shares.attempted(entry, name, delay_ms > 0)
        if delay_ms <= 0:
            return True, None
        return False, self._refuse(entry, Refusal(_RATE_CAUSE[entity_type], name, limit, observed, delay_ms))

    def move(self, entity_type: EntityType, name: str, old: float, new: float, level: float, now_ms: float) -> None:
        """The limit of a name changed because the instance's share did; see :meth:`SampledRate.move`."""
        self._rates[entity_type].move(name, old, new, level, int(now_ms))

    def observed(self, entity_type: EntityType, name: str, now_ms: float) -> float:
        """The rate of a name in its window, connections/s."""
        return self._rates[entity_type].peek(name, inf, int(now_ms))[0]

    def _limit(self, entry: ConnectionEntry, name: str) -> float:
        rate = entry.connection_creation_rate
        assert rate is not None
        return rate if self.shares is None else rate * self.shares.share(entry, name)

    def _cap(self, entity_type: EntityType, name: str) -> Refusal | None:
        entry = self._limits().cap(entity_type, name)
        if entry is None:
            return None
        most, count = entry.max_connections, self._open[entity_type].get(name, 0)
        assert most is not None
        return None if count < most else self._refuse(entry, Refusal(_CAP_CAUSE[entity_type], name, most, count, 0))

    def _refuse(self, entry: ConnectionEntry, refusal: Refusal) -> Refusal | None:
        if entry.mode == "shadow":
            self.shadow_refused[refusal.cause] += 1
            return None
        return refusal

    def _name(self, ticket: Ticket, user: str) -> None:
        opened = self._open[EntityType.USER]
        if ticket.user is not None:
            _take(opened, ticket.user)
        ticket.user = user
        opened[user] += 1


class _Rates:
    """Creation rates of many names, the longest idle one first.

    A name that was seen once is kept as the time of that one connection; its samples are created at the second one.
    Most of a million addresses would be like that.
    """

    def __init__(self, num_samples: int, window_ms: int) -> None:
        self._num_samples = num_samples
        self._sample_ms = window_ms
        self._expire_ms = num_samples * window_ms
        self._once = 1000.0 / max((num_samples - 1) * window_ms, 1)
        """The rate that a single connection makes."""
        self._by_name: OrderedDict[str, int | SampledRate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def attempt(self, name: str, limit: float, now: int) -> tuple[float, int]:
        """Record one connection; (rate, delay in ms). With a delay it is refused, and the charge taken back."""
        known = self._by_name.get(name)
        if known is None and len(self._by_name) >= MAX_TRACKED:
            self._by_name.popitem(last=False)
        if known is None or now - _last(known) >= self._expire_ms:
            if self._once <= limit:
                self._by_name[name] = now
                self._by_name.move_to_end(name)
                return self._once, 0
            known = None
        rate = self._samples(known)
        rate.record(1.0, max(now, rate.last))
        observed = rate.measure(rate.last)
        delay_ms = self._delay(observed, limit, rate.window_ms)
        if delay_ms > 0:
            rate.record(-1.0, rate.last)
        self._by_name[name] = rate
        self._by_name.move_to_end(name)
        return observed, delay_ms

    def take_back(self, name: str, now: int) -> None:
        """Un-record the connection that :meth:`attempt` recorded just now."""
        rate = self._by_name[name] = self._samples(self._by_name[name])
        rate.record(-1.0, max(now, rate.last))

    def peek(self, name: str, limit: float, now: int) -> tuple[float, int]:
        """(rate now, delay in ms for one more connection), without changing anything."""
        known = self._by_name.get(name)
        if known is None or now - _last(known) >= self._expire_ms:
            return 0.0, self._delay(self._once, limit, round(1000.0 / self._once))
        total, window_ms = self._samples(known).peek(max(now, _last(known)))
        return total * 1000.0 / window_ms, self._delay((total + 1.0) * 1000.0 / window_ms, limit, window_ms)

    def move(self, name: str, old: float, new: float, level: float, now: int) -> None:
        """See :meth:`SampledRate.move`."""
        known = self._by_name.get(name)
        if known is not None or level:
            rate = self._samples(known)
            rate.move(old, new, level, max(now, rate.last))
            self._by_name[name] = rate

    def forget(self, now: int, most: int) -> int:
        """Evict up to `most` names whose samples have all expired."""
        horizon = now - self._expire_ms
        count = 0
        while self._by_name and count < most and _last(self._by_name[next(iter(self._by_name))]) <= horizon:
            self._by_name.popitem(last=False)
            count += 1
        return count

    def _samples(self, known: int | SampledRate | None) -> SampledRate:
        if isinstance(known, SampledRate):
            return known
        rate = SampledRate(self._num_samples, self._sample_ms)
        if known is not None:
            rate.record(1.0, known)
        return rate

    def _delay(self, observed: float, limit: float, window_ms: int) -> int:
        if observed <= limit:
            return 0
        return min(throttle_ms(observed, limit, window_ms), self._sample_ms) if limit else self._sample_ms


def _last(known: int | SampledRate) -> int:
    return known if isinstance(known, int) else known.last


def _take(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
