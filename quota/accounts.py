"""Clients as their connections hold them, and how many of those that nobody holds are remembered."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from quota.activity import Activity
from quota.counter import QuotaCounter, Usage
from quota.entity import Identity, Kind

STEP: Final = 250
"""Accounts (or counters) looked at in one step of a sweep: well under a millisecond."""
# Members of the enum by names of this module: to look one up through the enum takes longer than what is done with it.
_PRODUCE: Final = Kind.PRODUCE
_FETCH: Final = Kind.FETCH
_REQUEST: Final = Kind.REQUEST
TRIES: Final = 8
"""Clients looked at to find one that nobody holds."""


class Meter(Usage):
    """What one account used of one kind, and the counter it shares."""

    __slots__ = ("generation", "group")

    def __init__(self) -> None:
        super().__init__()
        self.group: QuotaCounter | None = None  # None: no quota of this kind exists, only totals are kept
        self.generation = -1  # of the table that `group` was looked up in


class Account(Activity):
    """A client, (user, client-id), as its connections hold it: cheap to charge, valid for ever, also over a reload.

    The totals in :attr:`meters` are for metrics. Only the ledger changes them.
    """

    __slots__ = (
        "_fetched",
        "_mutated",
        "_produced",
        "_requested",
        "broker_throttle_ms",
        "broker_throttled",
        "holders",
        "identity",
        "last_ms",
    )

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity: Final = identity
        self._produced, self._fetched, self._requested, self._mutated = Meter(), Meter(), Meter(), Meter()
        self.last_ms = 0
        self.holders = 0
        """How many sessions and requests refer to it; see :meth:`retain`."""
        self.broker_throttled = 0
        """Responses in which the broker itself told the client to wait."""
        self.broker_throttle_ms = 0

    def retain(self) -> None:
        """One more session or request refers to this account: it is not forgotten before :meth:`release`."""
        self.holders += 1

    def release(self) -> None:
        """A reference that was counted by :meth:`retain` is gone."""
        self.holders -= 1

    def meter(self, kind: Kind) -> Meter:
        """What the client used of one kind."""
        if kind is _PRODUCE:
            return self._produced
        if kind is _FETCH:
            return self._fetched
        return self._requested if kind is _REQUEST else self._mutated

    @property
    def meters(self) -> dict[Kind, Meter]:
        """All four, for those who do not look with each request."""
        return {kind: self.meter(kind) for kind in Kind}

    def __repr__(self) -> str:
        return f"Account({self.identity.user!r}, {self.identity.client_id!r})"


class Accounts:
    """Every account that a connection holds, and up to `most` of those that nobody holds (or that are there by then).

    `on_forget` gets each forgotten account.
    """

    def __init__(self, most: int, on_forget: Callable[[Account], None]) -> None:
        self._most = most
        self._on_forget = on_forget
        self._by_identity: OrderedDict[Identity, Account] = OrderedDict()  # the next ones to be looked at come first

    def __len__(self) -> int:
        return len(self._by_identity)

    def __iter__(self) -> Iterator[Account]:
        """All of them; between two steps accounts may come and go."""
        for identity in list(self._by_identity):
            account = self._by_identity.get(identity)
            if account is not None:
                yield account

    def get(self, identity: Identity) -> Account | None:
        """The account of these names, if it is remembered."""
        return self._by_identity.get(identity)

    def get_or_make(self, identity: Identity) -> Account:
        """The account of these names. In place of a new one others are forgotten when there are too many."""
        found = self._by_identity.get(identity)
        if found is None:
            if len(self._by_identity) >= self._most:
                self._make_room()
            found = self._by_identity[identity] = Account(identity)
        return found

    def forget(self, identity: Identity) -> bool:
        """Forget an account, unless it is retained: then it moves to the end. Returns whether it is gone."""
        account = self._by_identity[identity]
        if account.holders > 0:
            self._by_identity.move_to_end(identity)
            return False
        del self._by_identity[identity]
        self._on_forget(account)
        return True

    def sweep(self, horizon: int) -> Iterator[int]:
        """Forget those unused since `horizon`, step by step; how many in each step."""
        identities = list(self._by_identity)
        for start in range(0, len(identities), STEP):
            forgotten = 0
            for identity in identities[start : start + STEP]:
                account = self._by_identity.get(identity)
                if account is not None and account.last_ms <= horizon:
                    forgotten += self.forget(identity)
            yield forgotten

    def _make_room(self) -> None:
        """Up to `TRIES` looks, each at another one. If all of these are held, there are more than `most` for now."""
        for _ in range(min(TRIES, len(self._by_identity))):
            gone = self.forget(next(iter(self._by_identity)))
            if gone and len(self._by_identity) < self._most:
                return
