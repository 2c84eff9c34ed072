"""Requests of administrators that are inspected whole: what an interceptor is given, and what it can decide.

An interceptor knows message bodies and quotas. The session does the rest: it keeps the request (and the response, if
asked to), writes headers, sets throttle fields, mutes, and keeps answers in order. Everything is sans-IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from proxy.core.wire.lengths import Slices
from quota.ledger import Account

MAX_INTERCEPTED_BYTES: Final = 16 * 1024 * 1024
"""Such requests and their responses are kept up to this size; larger ones end the connection. (A CreateTopics request
with 100 000 topics has about 4 MB.)"""


T = TypeVar("T")


@dataclass(slots=True)
class Work(Generic[T]):
    """What has to be computed before the decision, in slices: others are served between two of them."""

    steps: Slices[T]
    """May raise WireError, as what returns the work."""
    begun: bool = False

    def advance(self, now_ms: float) -> T | None:
        """Do one slice; the result after the last one, None before."""
        try:
            if self.begun:
                self.steps.send(now_ms)
            else:
                self.begun = True
                next(self.steps)
        except StopIteration as end:
            result: T = end.value
            return result
        return None


def in_slices(steps: Callable[[bytes, float], Slices[T]]) -> Callable[[bytes, float], Work[T]]:
    """A handler of a whole response that works in slices."""
    return lambda body, now_ms: Work(steps(body, now_ms))


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One whole request, of an API and version in `proxy.core.wire.schema`."""

    api_key: int
    api_version: int
    user: str
    account: Account
    body: bytes
    """What follows the request header."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to do with a broker's response."""

    body: bytes | None = None
    """What follows the response header, in the request's version; None: as the broker sent it."""
    delay_ms: int = 0
    """Throttle by the mutation quota, due with this response: the longer of it and the request's counts."""


OnResponse: TypeAlias = Callable[[bytes, float], "Reply | Work[Reply]"]
"""on_response(body after the response header, now_ms). May raise WireError: the connection ends, blaming the broker."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to the broker."""

    body: bytes | None = None
    """Replaces the client's request body, same API and version; None: unchanged."""
    on_response: OnResponse | None = None
    """Receives the whole response."""
    delay_ms: int = 0
    """Throttle by the mutation quota: the mute starts now, and the response reports it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is answered here; the broker never sees it."""

    body: bytes
    """What follows the response header, in the request's version. Its throttle field is set by the session."""
    delay_ms: int = 0
    """Throttle by the mutation quota, reported in the answer; the mute starts now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """First send another request on the same broker connection; the client never learns of it.

    The client's later requests wait meanwhile.
    """

    api_key: int
    api_version: int
    body: bytes
    """What follows the request header."""
    then: Callable[[bytes, float], Outcome]
    """then(body after the response header, now_ms) -> what to do with the request. May raise WireError."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The decision depends on something outside the session, such as a file that has to be written.

    This client's later requests wait meanwhile; other connections do not.
    """

    start: Callable[[Callable[[Outcome], None]], None]
    """Called at once with the function that takes the decision, to be called exactly once, in the event loop, now or
    later. If the connection has ended by then, the decision is ignored."""


Decision: TypeAlias = Forward | Answer | Ask | Wait
Outcome: TypeAlias = Decision | Work[Decision]
Hook: TypeAlias = Callable[[bytes, float], "Reply | Decision | Work[Any]"]
"""What takes a whole response: `on_response`, `then`, or a login."""


class Interceptor(Protocol):
    """Inspects requests of some API keys. One object serves all connections: it keeps no per-request state."""

    def wants(self, api_key: int, account: Account) -> bool:
        """Whether it inspects this client's requests of the API; all others are forwarded unseen."""

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """Inspect a request. Raises WireError ("request_malformed") if it cannot be parsed: its connection ends."""


Interceptors: TypeAlias = Mapping[int, Interceptor]
"""API key -> the interceptor of its requests."""

NO_INTERCEPTORS: Final[Interceptors] = {}
