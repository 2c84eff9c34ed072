"""Requests of administrators that are inspected whole: what an interceptor is given, and what it can decide.

An interceptor knows message bodies and quotas. The session does the rest: it holds the request (and the response, if
asked to), makes headers, sets throttle fields, mutes, and keeps the order of answers. Everything is sans-IO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quota.entity import Kind
from quota.ledger import Account

MAX_INTERCEPTED_BYTES: Final = 16 * 1024 * 1024
"""Such requests and their responses are held at most this far; larger ones end the connection. (A CreateTopics request
of 100 000 topics has about 4 MB.)"""


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One whole request of an API and version that are in `proxy.wire.schema`."""

    api_key: int
    api_version: int
    user: str
    client_id: str
    account: Account
    body: bytes
    """What follows the request header."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of a broker's response."""

    body: bytes | None = None
    """What follows the response header, in the request's version; None: as the broker sent it."""
    delay_ms: int = 0
    """Throttle that has become due with this response, on top of (not added to) that of the request."""
    kind: Kind = Kind.MUTATION
    """The quota that `delay_ms` is due to."""


OnResponse: TypeAlias = Callable[[bytes, float], Reply]
"""on_response(body after the response header, now_ms). May raise WireError: the connection ends, blaming the broker."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes to the broker."""

    body: bytes | None = None
    """In place of the client's own, same API and version; None: as it stands."""
    on_response: OnResponse | None = None
    """Gets the whole response."""
    delay_ms: int = 0
    """Throttle that the request has brought about: muted from now on, told in the response."""
    kind: Kind = Kind.MUTATION
    """The quota that `delay_ms` is due to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is answered here, the broker never sees it."""

    body: bytes
    """What follows the response header, in the request's version. Its throttle field is set by the session."""
    delay_ms: int = 0
    """Throttle told in the answer, muted from now on."""
    kind: Kind = Kind.MUTATION
    """The quota that `delay_ms` is due to."""


@dataclass(frozen=True, slots=True)
class Ask:
    """First something else is asked on the same broker connection; the client never hears of it.

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
    """What becomes of the request depends on something outside: a file has to be written, say.

    The client's later requests wait meanwhile; nobody else does.
    """

    start: Callable[[Callable[[Outcome], None]], None]
    """Called at once with the function that takes the decision: to be called once, in the event loop, now or later. If
    the connection has ended by then, nobody hears it."""


Outcome: TypeAlias = Forward | Answer | Ask | Wait


class Interceptor(Protocol):
    """Inspects requests of some API keys. One object serves all connections: it keeps no state of a request."""

    def request(self, request: AdminRequest, now_ms: float) -> Outcome:
        """Inspect a request. Raises WireError ("request_malformed") if it cannot be read: its connection ends."""


Interceptors: TypeAlias = Mapping[int, Interceptor]
"""API key -> who inspects its requests."""

NO_INTERCEPTORS: Final[Interceptors] = {}
