"""The one mutable object: charges, checks, refunds, reloads. Everything else in this package is a value or arithmetic.

Times are monotonic milliseconds from the caller; Kafka counts in whole milliseconds, so they are truncated to integers
here. One thread only: the sidecar's event loop.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from quota.accounts import Account, Accounts, Meter
from quota.bucket import Mutation
from quota.connections import ConnectionGate
from quota.counter import NOT_LIMITED, FetchGrant, LedgerSettings, QuotaCounter
from quota.counter_store import EXPIRE_AFTER_MS, CounterStore
from quota.decisions import Decisions
from quota.entity import ANONYMOUS, Identity, Kind, bounded_name
from quota.gate import Kept
from quota.mutation import BucketCounter
from quota.reservation import FetchCounter
from quota.table import QuotaTable
from quota.window import WindowCounter

if TYPE_CHECKING:
    from quota.fleet.shares import Shares

__all__ = ["MAX_CLIENTS", "Account", "Ledger", "Meter"]

MAX_CLIENTS: Final = 20_000
"""Clients remembered, and counters of each kind, by default."""


class Ledger:
    """All counters and all accounts, under one table of limits.

    `max_clients` bounds what is remembered of clients, whatever names they invent (ADR 0010); `settings` are those of
    :class:`LedgerSettings`.
    """

    # What is used with each request is a C number in compiled code; everything else is in `__dict__`.
    __slots__ = ("__dict__", "generation", "reservations")

    def __init__(self, table: QuotaTable, *, max_clients: int = MAX_CLIENTS, **settings: Any) -> None:
        self.settings: Final = LedgerSettings(**settings)
        self.generation = 0
        """The generation of the table in force: a meter of another one has to be resolved again."""
        self._accounts = Accounts(max_clients, self._forgotten)
        self.counters: Final = CounterStore(self.settings, max_clients, table)
        """The groups."""
        self.on_forget: Final[list[Callable[[Account], None]]] = []
        """Called with each evicted account, so that periodic readers miss no totals."""
        self.awake: dict[Identity, None] | None = None
        """Clients that were active since the reader last replaced this with an empty one; None: no reader. By name: a
        reference to an account would prevent its eviction."""
        self.connections: Final = ConnectionGate(
            lambda: self.table.connections, num_samples=self.settings.num_samples, window_ms=self.settings.window_ms
        )
        """Counters of connections, under the same table of limits."""
        self.reservations = 0
        """Grants with a reservation that were not settled yet, of all groups."""
        self.fleet: Shares | None = None
        """Sets limits of a whole fleet to this instance's share; None: each limit is this instance's own."""
        self.kept: Final = Kept()
        """Queued requests whose clients have gone, of all groups."""
        self.decisions: Final = Decisions()
        """The last throttles and their causes."""

    @property
    def table(self) -> QuotaTable:
        """The limits in force."""
        return self.counters.table

    def account(self, user: str, client_id: str) -> Account:
        """The account of a client; the same object for the same names as long as it is retained. An empty user is
        ANONYMOUS. Very long names are shortened (:func:`quota.entity.bounded_name`)."""
        return self._accounts.get_or_make(_identity(user, client_id))

    def known(self, user: str, client_id: str) -> Account | None:
        """The existing account of a client, if any; for readers."""
        return self._accounts.get(_identity(user, client_id))

    def wake(self, account: Account) -> None:
        """Mark the client as active: it had a request, a throttle, or a connection that ended."""
        if not account.touched:
            account.touched = True
            if self.awake is not None:
                self.awake[account.identity] = None

    def charge(self, account: Account, kind: Kind, amount: float, now_ms: float) -> int:
        """Record `amount` (bytes, busy milliseconds, partitions; not negative), then check.

        Returns the delay in milliseconds, 0 for none. Mutations are charged the permissive way.
        """
        meter = account.meter(kind)
        meter._amount += amount
        meter.charges += 1
        now = int(now_ms)
        account.last_ms = now
        if meter.generation != self.generation:
            self._resolve(account, kind, meter, now)
        group = meter.group
        return 0 if group is None else group.charge(amount, now)

    def charge_no_throttle(self, account: Account, kind: Kind, amount: float, now_ms: float) -> None:
        """Record without checking: for what was admitted before, like the response of a fetch."""
        group = self._use(account, kind, amount, 1, now_ms)
        if group is not None:
            group.record(amount, int(now_ms))

    def is_limited(self, account: Account, kind: Kind) -> bool:
        """Whether a limit of this kind applies to the client, if only in shadow."""
        table = self.table
        return table.records(kind) and table.resolve(kind, *account.identity).limit is not None

    def charge_mutation(self, account: Account, amount: float, strict: bool, now_ms: float) -> Mutation:
        """Charge partition mutations (KIP-599). Strict: refused, and not charged, while the bucket is below zero."""
        group = self._group(account, Kind.MUTATION, int(now_ms))
        outcome = Mutation(True, 0)
        if isinstance(group, BucketCounter):
            outcome = group.charge_mutation(amount, strict=strict, now=int(now_ms))
        if outcome.accepted:
            self._use(account, Kind.MUTATION, amount, 1, now_ms)
        return outcome

    def refund(self, account: Account, kind: Kind, amount: float, now_ms: float) -> None:
        """Take back `amount` of a charge (an unfetched fetch, a topic that the broker refused)."""
        group = self._use(account, kind, -amount, 0, now_ms)
        if group is not None:
            group.refund(amount, int(now_ms))

    def check(self, account: Account, kind: Kind, now_ms: float) -> int:
        """The delay that is due now (over the limit, paced, or in debt), recording nothing; 0 for none."""
        group = self._group(account, kind, int(now_ms))
        return 0 if group is None else group.check(int(now_ms))

    def queue(
        self, account: Account, kind: Kind, connection: object, amount: float, now_ms: float, whole: bool = False
    ) -> int:
        """Whether a request of this connection may be forwarded now, before anything is charged (ADR 0026). 0: it may;
        otherwise ask again after so many milliseconds.

        `amount` is its future charge; 0 for request time, which is not known before. `whole`: it is charged at once, as
        all of it has arrived; otherwise the connection is a :class:`quota.gate.Sender`. The connection keeps a place in
        the group's queue until it passes or :meth:`QuotaCounter.leave_queue` is called.
        """
        group = self._group(account, kind, int(now_ms))
        return 0 if group is None else group.queue(connection, amount, int(now_ms), whole)

    def leave_queue(self, account: Account, kind: Kind, connection: object) -> None:
        """The connection no longer waits, and may never ask again (see :meth:`queue`)."""
        group = account.meter(kind).group
        if group is not None:
            group.leave_queue(connection)

    def admit(self, account: Account, kind: Kind, wanted: int, now_ms: float, head_bytes: int = 0) -> FetchGrant:
        """check() for a fetch asking for `wanted` bytes, and how many may come, with a reservation until settle(). Its
        response would have about `head_bytes` without any records.

        It does not grant the same bytes twice to connections that share a group, and spreads the moments at which they
        ask again. Every grant with throttle_ms == 0 must be passed to settle().
        """
        group = self._group(account, kind, int(now_ms))
        if not isinstance(group, WindowCounter):
            return NOT_LIMITED
        window = group  # gives compiled code the type
        grant = window.admit(wanted, int(now_ms), head_bytes)
        if grant.group is not None:
            self.reservations += 1
        return grant

    def settle(self, account: Account, kind: Kind, grant: FetchGrant, amount: float, now_ms: float) -> None:
        """Charge an admitted fetch with the size of its response; 0 when there will be none."""
        if isinstance(grant.group, FetchCounter):
            self.reservations -= 1
            fetched = grant.group
            fetched.settle(grant, amount)
        if amount:
            self.charge_no_throttle(account, kind, amount, now_ms)

    def note_throttle(
        self,
        account: Account,
        kind: Kind,
        throttle_ms: int,
        *,
        at_ms: float | None = None,
        api_key: int | None = None,
        amount: float | None = None,
        queued: bool = False,
    ) -> None:
        """Count a delay that was imposed, under the quota that caused it; `at_ms` and the following are kept to explain
        it. `queued`: the request was queued that long before it was forwarded, because of its group's debt, and no
        response announces. For metrics and people only."""
        self.wake(account)
        meter = account.meter(kind)
        group = meter.group
        for usage in (meter,) if group is None else (meter, group.usage):
            usage.throttled += 1
            usage.throttle_ms += throttle_ms
            if queued:
                usage.queued += 1
                usage.queued_ms += throttle_ms
        if group is not None and at_ms is not None:
            self.decisions.note(group, account.identity, throttle_ms, at_ms, api_key, amount, queued)

    def note_broker_throttle(self, account: Account, throttle_ms: int) -> None:
        """Count a throttle in a broker's response, besides ours. For metrics only."""
        self.wake(account)
        account.broker_throttled += 1
        account.broker_throttle_ms += throttle_ms

    def swap(self, table: QuotaTable) -> None:
        """Put other limits in force. Counters stay; a client whose levels changed may move to another counter, and
        finds that one's history when it comes back (Kafka's metric tags)."""
        self.generation += 1
        self.counters.swap(table)

    def sweep(self, now_ms: float) -> Iterator[int]:
        """Evict counters and accounts unused for an hour: never a counter with a debt or with charges in its window,
        nor a retained account. In steps, each well under a millisecond, of which each yields how many it has evicted;
        the ledger may be used between two of them."""
        now = int(now_ms)
        for forgotten, lead_anew in self.counters.sweep(now):
            if lead_anew:
                self.generation += 1
            yield forgotten
        yield from self._accounts.sweep(now - EXPIRE_AFTER_MS)

    def when_grown(self, call: Callable[[], object]) -> None:
        """`call()` whenever there are some hundreds of new accounts."""
        self._accounts.on_growth = call

    def accounts(self) -> Iterator[Account]:
        """Every known account, with its totals. The ledger may be used between two of them."""
        return iter(self._accounts)

    @property
    def clients(self) -> int:
        """How many accounts are known."""
        return len(self._accounts)

    def groups(self, kind: Kind | None = None) -> Iterator[QuotaCounter]:
        """The counters themselves (of one kind), for readers. The ledger may be used between two of them."""
        for one in Kind if kind is None else (kind,):
            yield from self.counters.of_kind(one)

    def counter(self, kind: Kind, user: str, client_id: str) -> QuotaCounter | None:
        """The counter that a client shares, if it has been used; for readers."""
        identity = _identity(user, client_id)
        group = self.counters.get(kind, self.table.resolve(kind, *identity).key)
        account = self._accounts.get(identity)
        if group is None and account is not None:
            meter = account.meter(kind)  # not resolved here: that would make a counter
            group = meter.group if meter.generation == self.generation else None  # an overflow counter, if any
        return group

    def observed(self, account: Account, kind: Kind, now_ms: float) -> float:
        """The value that the limit applies to: bytes/s, percent, or tokens left; 0 where nothing is recorded."""
        group = self._group(account, kind, int(now_ms))
        return 0.0 if group is None else group.observed(int(now_ms))

    def _use(self, account: Account, kind: Kind, amount: float, charges: int, now_ms: float) -> QuotaCounter | None:
        meter = account.meter(kind)
        meter._amount += amount
        meter.charges += charges
        account.last_ms = int(now_ms)
        return self._group(account, kind, int(now_ms))

    def _group(self, account: Account, kind: Kind, now: int) -> QuotaCounter | None:
        meter = account.meter(kind)
        if meter.generation != self.generation:
            self._resolve(account, kind, meter, now)
        return meter.group

    def _resolve(self, account: Account, kind: Kind, meter: Meter, now: int) -> None:
        """Look the account's counter up in the table in force, creating it when it is new."""
        user, client_id = account.identity
        self.counters.attach(meter, kind, user, client_id, now)
        meter.generation = self.generation

    def _forgotten(self, account: Account) -> None:
        for meter in account.meters.values():
            self.counters.leave(meter)
        for listener in self.on_forget:
            listener(account)


def _identity(user: str, client_id: str) -> Identity:
    return Identity(bounded_name(user or ANONYMOUS), bounded_name(client_id))
