"""Who a connection is: the configured sources of identity, in order, and what each of them knows about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.auth.sasl import Login
from quota.entity import ANONYMOUS

SOURCES: Final = ("tls", "sasl", "static")
"""Kafka's own principal first; a user from the configuration where there is none."""


@dataclass(slots=True)
class IdentityPolicy:
    """Which user is charged for a connection. Names are principal names alone, without `User:` before them."""

    sources: tuple[str, ...] = SOURCES
    """Asked in this order."""
    static_user: str | None = None
    """What the source `static` knows of every connection; another one for new connections when its file has changed."""

    unknown_user: str | None = None
    """Whom the source `sasl` names when the broker has accepted a login that shows no name; None: nobody."""

    def sasl_user(self, login: Login | None) -> str | None:
        """What the source `sasl` knows after this login (not one by delegation token); None without one."""
        if login is None:
            return None
        return login.name or self.unknown_user

    def choose(self, *, tls: str | None = None, sasl: str | None = None) -> tuple[str, str]:
        """(user, where it comes from: "tls", "sasl", "static", or "anonymous" when no source knows one).

        `tls` is the principal of the client's certificate, `sasl` a name that the broker has accepted; None where
        there is none (yet).
        """
        known = {"tls": tls, "sasl": sasl, "static": self.static_user}
        for source in self.sources:
            user = known[source]
            if user:
                return user, source
        return ANONYMOUS, "anonymous"
