"""What both directions of a session share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.core.auth.sasl import DEFAULT_CLAIM
from proxy.core.interceptors.intercept import NO_INTERCEPTORS, Interceptors
from proxy.core.interceptors.reserved_topic import ReservedTopic
from proxy.core.session.auth import PROBE_VERSION, UNAUTHENTICATED, Auth
from proxy.core.session.effects import Effects
from proxy.core.session.exchange import MIN_MS, Exchange, InFlightRequest, RequestTime
from proxy.core.session.sizes import DEFAULT_SIZES, SizeLimits
from proxy.core.session.states import Answering
from proxy.core.session.throttle import Throttle
from proxy.core.telemetry.observer import Counters
from proxy.core.wire.responses import Translate
from quota.entity import Kind
from quota.ledger import Account, Ledger

BUSY: Final = Kind.REQUEST  # an alias, as looking it up in the enum takes longer
_FLOWING: Final = Answering.FLOWING


class SessionState:
    """What both directions of a session share."""

    def __init__(
        self,
        ledger: Ledger,
        counters: Counters,
        *,
        user: str,
        translate: Translate | None,
        effects: Effects | None = None,
        sizes: SizeLimits = DEFAULT_SIZES,
        max_in_flight: int = 1024,
        interceptors: Interceptors = NO_INTERCEPTORS,
        reserved: ReservedTopic | None = None,
        login_expected: bool = False,
        claim: str = DEFAULT_CLAIM,
        probe_version: int = PROBE_VERSION,
        cpu_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`translate` says which addresses clients see instead of brokers'; None: rewrite nothing.

        `effects`: those of the event loop; None: its own. `interceptors` inspect the requests of some APIs whole
        (`proxy.core.interceptors.intercept`). `reserved` refuses requests that name a topic, in whatever pieces they
        come. `login_expected`: the listener is known to need SASL, so what comes before the login is not charged.
        `claim` is the claim of OAUTHBEARER tokens that names the principal. `probe_version` is a version of Metadata
        that the broker has. `cpu_ms()` is the CPU time of the thread, by which answers that are made here are charged;
        the default charges them as the cheapest request.
        """
        self.ledger = ledger
        self.cpu_ms = cpu_ms
        self.counters = counters
        self.counted = counters.counted
        self.translate = translate
        self.effects = effects = Effects() if effects is None else effects
        """What the present door wants of the shell."""
        self.interceptors = interceptors
        self.reserved = reserved
        self.sizes = sizes
        self.exchange = Exchange(max_in_flight)
        self.throttle = Throttle(ledger, counters)
        self.auth = Auth(effects, self.exchange, self.throttle, user, login_expected, claim, probe_version)
        self.request_time = RequestTime()
        self.broker_mute_until_ms = 0.0
        """The broker does not read from us before this time, because of its own quota (KIP-219)."""

    def blocked(self, now_ms: float) -> bool:
        """Whether no further request is inspected, for whatever reason."""
        return self.throttle.blocks(now_ms) or self.auth.blocks or self.exchange.state is not _FLOWING

    def broker_throttled(self, pending: InFlightRequest, broker_throttle_ms: int, now_ms: float) -> None:
        """The broker itself throttles: its response said so, and it does not read this connection meanwhile."""
        self.ledger.note_broker_throttle(pending.account, broker_throttle_ms)
        self.broker_mute_until_ms = max(self.broker_mute_until_ms, now_ms + broker_throttle_ms)

    def charge_own(self, account: Account, began_ms: float, now_ms: float) -> None:
        """Charge what was computed here since `cpu_ms` said `began_ms`, as request time. Unthrottled: the rest of the
        request is yet to be charged."""
        spent_ms = self.cpu_ms() - began_ms
        if spent_ms > 0 and account is not UNAUTHENTICATED:
            self.ledger.charge_no_throttle(account, BUSY, spent_ms, now_ms)

    def answered_here(self, pending: InFlightRequest, began_ms: float, now_ms: float) -> int:
        """Charge an answer that is made here, as `charge_own` and at least as the cheapest request at a broker. Returns
        the throttle in ms that the answer has to carry."""
        if pending.account is UNAUTHENTICATED:
            return 0
        spent_ms = max(self.cpu_ms() - began_ms, MIN_MS)
        delay_ms = self.ledger.charge(pending.account, BUSY, spent_ms, now_ms)
        if delay_ms > 0:
            self.throttle.impose(pending, BUSY, delay_ms, now_ms, spent_ms)
        return delay_ms
