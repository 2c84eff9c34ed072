"""Requests that await their response, in order: a broker answers each connection strictly in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from proxy.core.session.states import EXCHANGE, Answering, Event, step

if TYPE_CHECKING:
    from proxy.core.interceptors.intercept import Hook, Outcome, Reply, Work
    from quota.counter import FetchGrant
    from quota.entity import Kind
    from quota.ledger import Account


MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Administrators' requests whose answers will be changed, and local answers, are kept until they are next in order.
When they use more than this, no further request is inspected until some have been sent."""
_MAX_KEPT_BYTES: Final = MAX_KEPT_BYTES
_FULL: Final = Answering.FULL
_ASKING: Final = Answering.ASKING


class Penalty:
    """The throttle that a request caused (see `Throttle.impose`); most requests have none."""

    __slots__ = ("announced_until_ms", "charged", "delay_ms", "kind", "until_ms")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        """The quota that caused it, the one of several that lasts longest."""
        self.delay_ms = 0
        self.until_ms = 0.0
        """The end of the mute."""
        self.announced_until_ms = 0.0
        """The end of the throttle in the response's throttle field; 0: it has none."""
        self.charged: float | None = None
        """What that quota was charged for this request; None if it was delayed before it was charged."""


class InFlightRequest:
    """A request that has not been answered yet; created by `new_in_flight`.

    `api_version`: the one the client asked for, which determines the response's layout.
    `local_answer`: the whole response frame, made here; the broker never saw the request. It is still sent in order.
    `work_bytes`: what `RequestTime.busy_ms` takes.
    `grant`: of a Fetch that the ledger has admitted; what it reserved is settled when the response comes.
    `hook`: takes the whole response; then the work that it has left. `kept_bytes`: what is kept of the request or its
    answer until it is next in order, if that can be large. `next`: the next request in the queue.
    """

    correlation_id: int
    api_key: int
    api_version: int
    account: Account
    sent_ms: float
    penalty: Penalty | None
    local_answer: bytes | None
    work_bytes: int
    grant: FetchGrant | None
    hook: Hook | Work[Reply] | None
    kept_bytes: int
    next: InFlightRequest | None

    __slots__ = (
        "account",
        "api_key",
        "api_version",
        "correlation_id",
        "grant",
        "hook",
        "kept_bytes",
        "local_answer",
        "next",
        "penalty",
        "sent_ms",
        "work_bytes",
    )


def new_in_flight(
    correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
) -> InFlightRequest:
    """A new entry for a request of `account` that was read at `sent_ms`."""
    # Not by calling the class, which in compiled code would take longer than everything else here.
    pending = InFlightRequest.__new__(InFlightRequest)
    pending.penalty = None
    pending.local_answer = None
    pending.grant = None
    pending.hook = None
    pending.kept_bytes = 0
    pending.next = None
    return _for(pending, correlation_id, api_key, api_version, account, sent_ms)


def _for(
    pending: InFlightRequest, correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
) -> InFlightRequest:
    """The entry, for this request."""
    pending.correlation_id = correlation_id
    pending.api_key = api_key
    pending.api_version = api_version
    pending.account = account
    pending.sent_ms = sent_ms
    pending.work_bytes = 0
    return pending


class Exchange:
    """The requests in flight of one connection, oldest first; and the one whose interceptor has not decided yet."""

    __slots__ = (
        "_most",
        "_spare",
        "count",
        "kept_bytes",
        "newest",
        "oldest",
        "outcome",
        "question",
        "state",
        "waiting",
    )

    def __init__(self, most: int) -> None:
        self._most = most
        """With so many requests in flight no further one is inspected (backpressure)."""
        self._spare: InFlightRequest | None = None
        """One that has been answered, for the next request."""
        self.kept_bytes = 0
        """Kept of requests in flight and of their answers; above a bound no further request is inspected."""
        self.state = Answering.FLOWING
        self.oldest: InFlightRequest | None = None
        """The request whose response comes next."""
        self.newest: InFlightRequest | None = None
        self.count = 0
        self.waiting: tuple[bytes, bytes, InFlightRequest] | None = None
        """Request (header, body) whose interceptor has not decided yet."""
        self.outcome: Outcome | None = None
        """What is to be done about it next: its interceptor has decided, or has more to compute."""
        self.question: InFlightRequest | None = None
        """The request in flight that the client does not know of; its hook decides."""

    def plain(
        self, correlation_id: int, api_key: int, api_version: int, account: Account, sent_ms: float
    ) -> InFlightRequest:
        """As `new_in_flight`, by the entry that `reuse` was given if there is one."""
        pending = self._spare
        if pending is None:
            return new_in_flight(correlation_id, api_key, api_version, account, sent_ms)
        self._spare = None
        return _for(pending, correlation_id, api_key, api_version, account, sent_ms)

    def reuse(self, pending: InFlightRequest) -> None:
        """This request has been answered, and nothing else refers to it. All that `_for` does not set is as in a new
        one."""
        self._spare = pending

    def append(self, pending: InFlightRequest) -> None:
        """A request is forwarded, or answered here."""
        if self.newest is None:
            self.oldest = pending
        else:
            self.newest.next = pending
        self.newest = pending
        self.count += 1
        self.kept_bytes += pending.kept_bytes
        if self._full():
            self._weigh()

    def popleft(self) -> InFlightRequest:
        """The oldest request is answered. Raises IndexError if there is none."""
        pending = self.oldest
        if pending is None:
            raise IndexError("no request is in flight")
        self.oldest = pending.next
        pending.next = None
        if self.oldest is None:
            self.newest = None
        self.count -= 1
        self.kept_bytes -= pending.kept_bytes
        if self.state is _FULL:
            self._weigh()
        return pending

    def answer_due(self) -> bool:
        """Whether the oldest request was answered here."""
        return self.oldest is not None and self.oldest.local_answer is not None

    def ask(self, head: bytes, body: bytes, pending: InFlightRequest) -> None:
        """A whole request waits until its interceptor has decided."""
        self.state = step(EXCHANGE, self.state, Event.ASK)
        self.waiting = (head, body, pending)

    def decide(self, outcome: Outcome) -> None:
        """The interceptor has decided: ignored if the connection has ended since."""
        if self.waiting is not None:
            self.outcome = outcome

    def take_waiting(self) -> tuple[bytes, bytes, InFlightRequest]:
        """The arguments of `ask`: nothing waits any more."""
        assert self.waiting is not None
        waiting, self.waiting = self.waiting, None
        self.state = step(EXCHANGE, self.state, Event.DECIDED)
        self._weigh()
        return waiting

    def clear(self) -> None:
        """Forget all requests."""
        if self.waiting is not None:
            self.take_waiting()
        self.outcome = self.question = self._spare = None
        while self.oldest is not None:
            self.popleft()

    def _full(self) -> bool:
        return self.count >= self._most or self.kept_bytes > _MAX_KEPT_BYTES

    def _weigh(self) -> None:
        full, state = self._full(), self.state
        if (state is _FULL) != full and state is not _ASKING:
            self.state = step(EXCHANGE, state, Event.FILLED if full else Event.FREED)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[InFlightRequest]:
        """From the oldest to the newest."""
        pending = self.oldest
        while pending is not None:
            yield pending
            pending = pending.next
