"""Which user a connection belongs to: the configured sources of identity, in order, and what each one knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quota.entity import ANONYMOUS

SOURCES: Final = ("tls", "sasl", "static")
"""Kafka's own principal first; a user from the configuration where there is none."""


@dataclass(slots=True)
class IdentityPolicy:
    """Which user is charged for a connection. Names are principal names alone, without `User:` before them."""

    sources: tuple[str, ...] = SOURCES
    """Sources, tried in this order."""
    static_user: str | None = None
    """The user that the source `static` gives every connection; replaced for new connections when its file changes."""

    unknown_user: str | None = None
    """The user that the source `sasl` gives when the broker has accepted a login that shows no name; None: no user."""

    def choose(self, *, tls: str | None = None, sasl: str | None = None) -> tuple[str, str]:
        """(user, source: "tls", "sasl", "static", or "anonymous" when no source knows a user).

        `tls` is the principal of the client's certificate, `sasl` a name that the broker has accepted; None where
        there is none (yet).
        """
        known = {"tls": tls, "sasl": sasl, "static": self.static_user}
        for source in self.sources:
            user = known[source]
            if user:
                return user, source
        return ANONYMOUS, "anonymous"
