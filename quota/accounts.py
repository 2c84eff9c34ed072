"""Accounts: the clients that connections refer to, and a bounded number of those that none refers to any more."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from quota.counter import QuotaCounter, Usage
from quota.entity import Identity, Kind

STEP: Final = 40
"""Accounts (or counters) examined in one step of a sweep. Looking at one takes some 2 µs, forgetting it 20 to 50."""
# Aliases of enum members: looking one up through the enum takes longer than what is done with it.
_PRODUCE: Final = Kind.PRODUCE
_FETCH: Final = Kind.FETCH
_REQUEST: Final = Kind.REQUEST
TRIES: Final = 8
"""Accounts, or unused counters, examined to find one that can be evicted."""
# Kafka's keys of the two APIs that make up nearly all traffic: each has its own integer.
_PRODUCE_KEY: Final = 0
_FETCH_KEY: Final = 1


class RequestCounts:
    """Number of requests by API."""

    __slots__ = ("_fetch", "_others", "_produce")

    def __init__(self) -> None:
        self._produce = self._fetch = 0
        self._others: dict[int, int] = {}

    def add(self, api_key: int) -> None:
        """Count a request of this API; -1 for unknown ones."""
        if api_key == _PRODUCE_KEY:
            self._produce += 1
        elif api_key == _FETCH_KEY:
            self._fetch += 1
        else:
            self._others[api_key] = self._others.get(api_key, 0) + 1

    def by_api(self) -> dict[int, int]:
        """The nonzero counts, by API key."""
        both = ((_PRODUCE_KEY, self._produce), (_FETCH_KEY, self._fetch))
        return {key: count for key, count in both if count} | self._others


class Meter(Usage):
    """What one account used of one kind, and the counter it shares."""

    __slots__ = ("generation", "group")

    def __init__(self) -> None:
        super().__init__()
        self.group: QuotaCounter | None = None  # None: no quota of this kind exists, only totals are kept
        self.generation = -1  # of the table that `group` was looked up in

    def may_queue(self, generation: int) -> bool:
        """Whether the quota may queue a request, under a table of this generation. It may if the client or its limit is
        new: it may get a counter that is already in debt."""
        group = self.group
        return self.generation != generation or (group is not None and group.may_queue)


class Account:
    """A client, (user, client-id), as its connections refer to it: cheap to charge, valid across reloads.

    Its running totals are never reset while it lives, except where noted. Those in :attr:`meters` are for metrics, and
    only the ledger changes them.
    """

    __slots__ = (
        "broker_throttle_ms",
        "broker_throttled",
        "connections",
        "connections_opened",
        "connections_peak",
        "counted",
        "fetched",
        "identity",
        "last_ms",
        "mutated",
        "mutes",
        "mutes_ignored",
        "produced",
        "requested",
        "sampled",
        "software",
        "touched",
    )

    def __init__(self, identity: Identity) -> None:
        self.identity: Final = identity
        self.produced, self.fetched, self.requested, self.mutated = Meter(), Meter(), Meter(), Meter()
        self.last_ms = 0
        self.broker_throttled = 0
        """Responses with a throttle time of the broker's own."""
        self.broker_throttle_ms = 0
        self.touched = False
        """Active since the reader last reset this flag (`Ledger.wake`)."""
        self.counted = RequestCounts()
        """Its requests, by API key."""
        self.connections = 0
        """Open now."""
        self.connections_opened = 0
        self.connections_peak = 0
        """Most connections open at once; the reader resets it to those open now."""
        self.software: str | None = None
        """Library and version that a connection gave last (KIP-511), as `name/version`."""
        self.mutes = 0
        """Mutes long enough to see whether the client waits."""
        self.mutes_ignored = 0
        """Those in whose second half the client went on sending."""
        self.sampled: Any = None
        """For the exporter: its previous sample. It goes when the client is evicted."""

    def join(self) -> None:
        """A connection has become this client's."""
        self.connections_opened += 1
        self.connections += 1
        self.connections_peak = max(self.connections_peak, self.connections)

    def leave(self) -> None:
        """A connection that had joined has ended."""
        self.connections -= 1

    def note_mute(self, *, ignored: bool) -> None:
        """A mute has ended during which throttle compliance was watched."""
        self.mutes += 1
        self.mutes_ignored += ignored

    def meter(self, kind: Kind) -> Meter:
        """The client's totals for one kind."""
        if kind is _PRODUCE:
            return self.produced
        if kind is _FETCH:
            return self.fetched
        return self.requested if kind is _REQUEST else self.mutated

    @property
    def meters(self) -> dict[Kind, Meter]:
        """All four, for callers off the data path."""
        return {kind: self.meter(kind) for kind in Kind}

    def __repr__(self) -> str:
        return f"Account({self.identity.user!r}, {self.identity.client_id!r})"


GROWTH: Final = 500


class Accounts:
    """Every account that has connections, and up to `most` accounts in total while those are fewer.

    `on_forget` is called with each evicted account.
    """

    def __init__(self, most: int, on_forget: Callable[[Account], None]) -> None:
        self._most = most
        self._on_forget = on_forget
        self._made = 0
        self.on_growth: Callable[[], object] | None = None
        """Called whenever `GROWTH` more accounts have been made."""
        self._by_identity: OrderedDict[Identity, Account] = OrderedDict()  # the next eviction candidates come first

    def __len__(self) -> int:
        return len(self._by_identity)

    def __iter__(self) -> Iterator[Account]:
        """All accounts; the set may change during the iteration."""
        for identity in list(self._by_identity):
            account = self._by_identity.get(identity)
            if account is not None:
                yield account

    def get(self, identity: Identity) -> Account | None:
        """The account of these names, if it is remembered."""
        return self._by_identity.get(identity)

    def get_or_make(self, identity: Identity) -> Account:
        """The account of these names. If there are too many, creating one evicts others."""
        found = self._by_identity.get(identity)
        if found is None:
            if len(self._by_identity) >= self._most:
                self._evict()
            found = self._by_identity[identity] = Account(identity)
            self._made += 1
            if self._made % GROWTH == 0 and self.on_growth is not None:
                self.on_growth()
        return found

    def forget(self, identity: Identity) -> bool:
        """Evict an account, unless it has connections: then it moves to the end. Returns whether it was evicted."""
        account = self._by_identity[identity]
        if account.connections > 0:
            self._by_identity.move_to_end(identity)
            return False
        del self._by_identity[identity]
        self._on_forget(account)
        return True

    def sweep(self, horizon: int) -> Iterator[int]:
        """Evict those unused since `horizon`, step by step; yields how many in each step."""
        identities = list(self._by_identity)
        for start in range(0, len(identities), STEP):
            forgotten = 0
            for identity in identities[start : start + STEP]:
                account = self._by_identity.get(identity)
                if account is not None and account.last_ms <= horizon:
                    forgotten += self.forget(identity)
            yield forgotten

    def _evict(self) -> None:
        """Examine up to `TRIES` accounts, a different one each time. If all have connections, `most` is exceeded for
        now."""
        for _ in range(min(TRIES, len(self._by_identity))):
            gone = self.forget(next(iter(self._by_identity)))
            if gone and len(self._by_identity) < self._most:
                return
