"""Which user each connection belongs to, after its login: asks the identity policy and the connection limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from proxy.core.auth.sasl import NO_LOGIN, Login
from proxy.core.errors import SessionError
from proxy.net.close_log import LogLimiter
from proxy.net.io.connection import Connection
from proxy.net.listen.admission import ConnectionAdmission
from proxy.net.listen.cluster_brokers import ClusterBrokers
from proxy.net.settings import ProxySettings
from proxy.net.upstream.cluster import ClusterError, ask_token_owners, first_answer
from proxy.net.upstream.token_owners import TokenOwners
from quota.connections import Ticket

log = structlog.get_logger("kquota.proxy")

OWNER_LIMIT_S: Final = 5.0
"""How long a client waits at most for its delegation token's owner to be found."""
MAX_WAITING: Final = 1000
"""Clients whose token's owner is being looked up; any further ones get the unknown user at once."""

UNKNOWN: Final = "owner of a delegation token unknown"

Identify = Callable[[str | None], str]


@dataclass(eq=False)
class Identification:
    """One for all connections of a sidecar."""

    settings: ProxySettings
    admission: ConnectionAdmission
    brokers: ClusterBrokers

    def __post_init__(self) -> None:
        self._owners = TokenOwners(self.settings.token_owners, self._ask)
        self._log_limiter = LogLimiter(log.warning, UNKNOWN)
        self._waiting = 0

    def _identify(self, ticket: Ticket, tls_user: str | None, connection: Connection, sasl: str | None) -> str:
        user, source = self.settings.identity.choose(tls=tls_user, sasl=sasl)
        self.admission.identify(ticket, user)
        connection.user_source = source
        return user

    def user_of(self, ticket: Ticket, tls_user: str | None, connection: Connection, login: Login) -> str | None:
        """The user of a connection's login; None: the connection gets it later. `tls_user` is the name in the client's
        certificate. Raises SessionError if the user's limits refuse it."""
        identify = partial(self._identify, ticket, tls_user, connection)
        if login is NO_LOGIN:
            return identify(None)
        self.brokers.login_expected = True
        name = login.name
        if name is not None and login.by_token:
            token_id, name = name, self._owners.known(name)
            if name is None and self.settings.credentials is not None and self._waiting < MAX_WAITING:
                self._waiting += 1
                trio.lowlevel.spawn_system_task(self._find, token_id, connection, identify)
                return None
        return identify(name or self.settings.identity.unknown_user)

    async def _find(self, token_id: str, connection: Connection, identify: Identify) -> None:
        owner, reason = None, f"brokers did not answer within {OWNER_LIMIT_S:g} s"
        try:
            with trio.move_on_after(OWNER_LIMIT_S):
                owner = await self._owners.find(token_id)
                reason = "brokers do not list it: the user of upstream.sasl needs Describe on the owner's tokens"
        except ClusterError as error:
            reason = str(error)
        finally:
            self._waiting -= 1
        if owner is None and self._log_limiter.allows(token_id=token_id, error=reason):
            log.warning(UNKNOWN, token_id=token_id, error=reason)
        if connection.ended:
            return
        try:
            user = identify(owner or self.settings.identity.unknown_user)
        except SessionError as error:
            connection.abort(error.reason)
        else:
            connection.identified(user)

    async def _ask(self) -> dict[str, str]:
        brokers, access = dict.fromkeys([*self.settings.bootstrap, *self.brokers.addresses()]), self.brokers.access
        return (await first_answer(brokers, lambda host, port: ask_token_owners(host, port, access)))[1]
