"""Simulated requests that wait: on muted connections, and before they are forwarded (ADR 0026).

As in the sidecar, a connection's requests are processed one after the other, none while it is muted, and each asks the
ledger repeatedly until it may be forwarded. Only then is it charged. docs/cli.md describes the output.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from quota.counter import FetchAdmission
from quota.entity import Kind
from quota.ledger import Account, Ledger

LATEST_MS: Final = 2**53
"""Beyond it, JSON readers lose milliseconds."""
LONG_MS: Final = 3_600_000
"""A client that has to wait for longer than this is not checked each second, but again in the last hour."""


@dataclass(slots=True)
class Request:
    """One event that charges a quota."""

    line: int
    t_ms: float
    """When it arrives."""
    account: Account
    kind: Kind
    amount: float
    strict: bool
    connection: Hashable
    """Identifies a connection among those of one client."""
    taken_ms: float | None = None
    """When its connection was no longer muted, and all earlier requests on it were forwarded."""
    admission: FetchAdmission | None = None
    """The admission of a fetch."""


@dataclass(slots=True, eq=False)
class _Connection:
    requests: deque[Request] = field(default_factory=deque)
    free_ms: float = 0.0
    """When its mute ends."""


class Waiting:
    """All connections with requests that have not been forwarded. `forward` charges one and returns the result, with
    its `throttle_ms`."""

    def __init__(self, ledger: Ledger, forward: Callable[[Request, float], dict[str, Any]]) -> None:
        self._ledger = ledger
        self._forward = forward
        self._connections: dict[Hashable, _Connection] = {}
        self._turns: list[tuple[float, int, _Connection]] = []  # when, then in order of arrival
        self._count = itertools.count()

    def add(self, request: Request) -> None:
        """A request arrives. Times never run backwards."""
        connection = self._connections.setdefault(request.connection, _Connection())
        connection.requests.append(request)
        if len(connection.requests) == 1:
            self._come(connection, max(request.t_ms, connection.free_ms))

    def until(self, t_ms: float) -> Iterator[tuple[Request, float, dict[str, Any] | None]]:
        """The requests that are forwarded up to then, when, and the result of each; None for one that would have to
        wait until after `LATEST_MS`."""
        while self._turns and self._turns[0][0] <= t_ms:
            at_ms, _, connection = heapq.heappop(self._turns)
            request = connection.requests[0]
            if request.taken_ms is None:
                request.taken_ms = at_ms
            wait_ms = self._wait_ms(request, connection, at_ms)
            if wait_ms and at_ms + wait_ms <= LATEST_MS:
                self._come(connection, at_ms + wait_ms)
                continue
            connection.requests.popleft()
            connection.free_ms = at_ms
            decision = None
            if wait_ms:
                self._ledger.pass_held(request.account, request.kind, connection)
            else:
                decision = self._forward(request, at_ms)
                connection.free_ms += decision["throttle_ms"]
            if connection.requests:
                self._come(connection, max(connection.requests[0].t_ms, connection.free_ms))
            yield request, at_ms, decision

    def _come(self, connection: _Connection, at_ms: float) -> None:
        heapq.heappush(self._turns, (at_ms, next(self._count), connection))

    def _wait_ms(self, request: Request, connection: _Connection, at_ms: float) -> int:
        ledger, account, kind = self._ledger, request.account, request.kind
        if kind is Kind.FETCH:  # never held: the sidecar answers it without the broker, and the consumer asks again
            request.admission = ledger.admit(account, kind, int(request.amount), at_ms)
            return request.admission.throttle_ms
        if kind is Kind.MUTATION and request.strict:
            return 0  # refused, not held
        amount = 0 if kind is Kind.REQUEST else request.amount  # request time is not known before
        wait_ms, group = ledger.hold(account, kind, connection, amount, at_ms, whole=True)
        if not wait_ms or group is None:
            return 0
        return max(wait_ms, group.line(int(at_ms)).next_ms - LONG_MS)
