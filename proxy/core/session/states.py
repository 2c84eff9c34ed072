"""The states of a session, each with one owner and one table: what may follow what. Data, not code.

The owners call `step` where something happens. A step that is not in its table is an internal error, which closes the
connection.

| machine  | owner    | the client is not read in                                                                  |
|----------|----------|--------------------------------------------------------------------------------------------|
| CLIENT   | Session  | ENDED, DONE, GONE; LAST: between two requests                                              |
| BROKER   | Session  | DIALLING                                                                                   |
| THROTTLE | Throttle | MUTED, QUEUED, before the deadline                                                         |
| EXCHANGE | Exchange | FULL, ASKING: between two requests, so that one that has begun is read                     |
| AUTH     | Auth     | LOGIN, PROBING, NAMING: between two requests                                               |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeVar


class Client(enum.IntEnum):
    """Whether requests are taken."""

    OPEN = 0
    LAST = 1
    """The sidecar drains: the request that has begun is the last one."""
    DONE = 2
    """Drained: what is owed is still delivered."""
    ENDED = 3
    """The client has closed its side: what it is owed is still delivered."""
    GONE = 4


class Broker(enum.IntEnum):
    """The connection to the broker, which is made for the first request."""

    ABSENT = 0
    DIALLING = 1
    UP = 2
    GONE = 3


class Throttled(enum.IntEnum):
    """Why the client waits for a time."""

    FREE = 0
    MUTED = 1
    """After a request that exceeded a quota (KIP-219)."""
    QUEUED = 2
    """Before a request whose group is in debt for earlier ones (ADR 0026)."""
    REFUSING = 3
    """In a request that is thrown away and answered here, as it has been queued for nearly its `timeout_ms`."""


class Answering(enum.IntEnum):
    """Whether one more request can be taken."""

    FLOWING = 0
    FULL = 1
    """Too many requests are in flight, or too much is kept for them."""
    ASKING = 2
    """An interceptor has asked the broker something, or waits, or computes, before it decides."""


class Proving(enum.IntEnum):
    """How far a login is. (`Auth.expected`: whether a login must precede other requests.)"""

    IDLE = 0
    """No login is under way: before the first, or after one."""
    BETWEEN = 1
    """The client's message is next."""
    LOGIN = 2
    """The broker owes an answer to a message."""
    PROBING = 3
    """The broker is asked whether it needs a login; a request is kept until then."""
    NAMING = 4
    """The broker has accepted the login, or needs none: the user is being looked up."""


Event = enum.Enum(
    "Event",
    "END DRAIN BOUNDARY CLOSE REQUEST CONNECTED MUTE QUEUE DEADLINE ADMIT REFUSE FILLED FREED ASK DECIDED BEGUN SENT "
    "CONTINUED ACCEPTED OVER PROBED NAMED",
)
"""What moves them."""

S = TypeVar("S", bound=enum.IntEnum)
Table = Mapping[S, Mapping[Event, S]]

CLIENT: Final[Table[Client]] = {
    Client.OPEN: {Event.DRAIN: Client.LAST, Event.END: Client.ENDED, Event.CLOSE: Client.GONE},
    Client.LAST: {
        Event.DRAIN: Client.LAST,
        Event.BOUNDARY: Client.DONE,
        Event.END: Client.DONE,
        Event.CLOSE: Client.GONE,
    },
    Client.DONE: {Event.DRAIN: Client.DONE, Event.END: Client.DONE, Event.CLOSE: Client.GONE},
    Client.ENDED: {Event.DRAIN: Client.ENDED, Event.END: Client.ENDED, Event.CLOSE: Client.GONE},
    Client.GONE: {},
}
BROKER: Final[Table[Broker]] = {
    Broker.ABSENT: {Event.REQUEST: Broker.DIALLING, Event.CLOSE: Broker.GONE},
    Broker.DIALLING: {Event.CONNECTED: Broker.UP, Event.CLOSE: Broker.GONE},
    Broker.UP: {Event.END: Broker.GONE, Event.CLOSE: Broker.GONE},
    Broker.GONE: {Event.CLOSE: Broker.GONE},
}
THROTTLE: Final[Table[Throttled]] = {
    Throttled.FREE: {Event.MUTE: Throttled.MUTED, Event.QUEUE: Throttled.QUEUED, Event.REFUSE: Throttled.REFUSING},
    Throttled.MUTED: {
        Event.MUTE: Throttled.MUTED,
        Event.QUEUE: Throttled.QUEUED,
        Event.DEADLINE: Throttled.FREE,
        Event.REFUSE: Throttled.REFUSING,
    },
    # At its deadline a queued request asks again: it is admitted, or goes on waiting. A late response may mute as well.
    Throttled.QUEUED: {
        Event.MUTE: Throttled.QUEUED,
        Event.QUEUE: Throttled.QUEUED,
        Event.DEADLINE: Throttled.QUEUED,
        Event.ADMIT: Throttled.FREE,
        Event.REFUSE: Throttled.REFUSING,
    },
    # A mute resumes afterwards.
    Throttled.REFUSING: {Event.MUTE: Throttled.REFUSING, Event.OVER: Throttled.FREE},
}
EXCHANGE: Final[Table[Answering]] = {
    Answering.FLOWING: {Event.FILLED: Answering.FULL, Event.ASK: Answering.ASKING},
    Answering.FULL: {Event.FREED: Answering.FLOWING, Event.ASK: Answering.ASKING},
    Answering.ASKING: {Event.DECIDED: Answering.FLOWING},
}
AUTH: Final[Table[Proving]] = {
    # A broker may have said before that it needs no login.
    Proving.IDLE: {Event.BEGUN: Proving.BETWEEN, Event.PROBED: Proving.PROBING, Event.ACCEPTED: Proving.NAMING},
    # Raw messages whose end has no answer are accepted where a request begins; a client may give a login up.
    Proving.BETWEEN: {Event.SENT: Proving.LOGIN, Event.ACCEPTED: Proving.NAMING, Event.OVER: Proving.IDLE},
    Proving.LOGIN: {Event.CONTINUED: Proving.BETWEEN, Event.ACCEPTED: Proving.NAMING, Event.OVER: Proving.IDLE},
    Proving.PROBING: {Event.ACCEPTED: Proving.NAMING},
    Proving.NAMING: {Event.NAMED: Proving.IDLE},
}


class StateError(Exception):
    """A step that is not in its table: a bug of kquota. The connection is closed as `internal_error`."""


def step(table: Table[S], state: S, event: Event) -> S:
    """The state after an event. Raises StateError for one that the table does not have."""
    try:
        return table[state][event]
    except KeyError:
        raise StateError(f"no {event.name} in state {type(state).__name__}.{state.name}") from None
