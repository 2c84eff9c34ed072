"""What the two directions of a session have in common: the requests that wait for their response, and the mute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from proxy.observer import Counters
from quota.entity import Kind
from quota.group import Admission
from quota.ledger import Account, Ledger

AddressTranslator = Callable[[int, str, int, str], tuple[str, int]]
"""(node id, host, port, "broker" or "controller") -> the (host, port) that clients are told instead."""


@dataclass(slots=True)
class Pending:
    """One request without its answer yet."""

    correlation_id: int
    api_key: int
    api_version: int
    """Version the client asked for, and so the version of the response's layout."""
    account: Account
    sent_ms: float
    throttle_until_ms: float = 0.0
    """End of the mute this request has brought about; what is left of it goes into the response's throttle field."""
    local_answer: bytes | None = None
    """The whole response frame, made here; the broker never saw the request. It still waits for its turn."""
    admission: Admission | None = None
    """A Fetch that the ledger has let through: what it reserved is settled when the response comes."""


class Exchange:
    """A broker answers each connection strictly in the order of its requests, so `inflight` is a queue."""

    __slots__ = ("counters", "inflight", "ledger", "mute_until_ms", "translate")

    def __init__(self, ledger: Ledger, counters: Counters, translate: AddressTranslator | None) -> None:
        self.ledger = ledger
        self.counters = counters
        self.translate = translate
        """None: nothing is rewritten."""
        self.inflight: deque[Pending] = deque()
        self.mute_until_ms = 0.0
        """The client is not read before this time."""

    def mute(self, account: Account, kind: Kind, delay_ms: int, now_ms: float) -> float:
        """Do not read the client for `delay_ms`, because of this quota. Returns the deadline."""
        self.ledger.note_throttle(account, kind, delay_ms)
        until_ms = now_ms + delay_ms
        self.mute_until_ms = max(self.mute_until_ms, until_ms)
        return until_ms
