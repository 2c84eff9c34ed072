"""Secured listeners for a test cluster: SASL, TLS, ACLs, delegation tokens; next to the plain one, which stays.

The plain listener is the operator's: its clients are `User:ANONYMOUS`, a super user. ACLs apply to all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *SCRAM_MECHANISMS, "OAUTHBEARER")
_LOGIN_MODULES: Final = "org.apache.kafka.common.security"


class SecureListener(NamedTuple):
    name: str
    """Letters, digits and underscores, in capitals as Kafka's own listener names are."""
    protocol: str
    """SSL, SASL_PLAINTEXT or SASL_SSL (or PLAINTEXT)."""
    properties: Mapping[str, str] = {}
    """Broker properties of this listener alone, without `listener.name.<name>.` before them."""


DEFAULT_LISTENERS: Final = (
    SecureListener("SASL_PLAINTEXT", "SASL_PLAINTEXT"),
    SecureListener("SASL_SSL", "SASL_SSL", {"ssl.client.auth": "none"}),
    SecureListener("SSL", "SSL", {"ssl.client.auth": "requested"}),
)


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """Every user of `passwords` can log in by PLAIN and SCRAM; OAUTHBEARER takes unsecured JSON web tokens (RFC 7515,
    `alg: none`) of any subject. They may do nothing until ACLs are created through the plain listener."""

    passwords: Mapping[str, str]
    listeners: Sequence[SecureListener] = DEFAULT_LISTENERS
    certificate: Path | None = None
    """PEM file with the brokers' private key (PKCS #8) and certificate chain; needed for listeners with TLS."""
    authority: Path | None = None
    super_users: Sequence[str] = ()
    token_secret: str | None = None
    mechanisms: Sequence[str] = field(default=MECHANISMS)

    def properties(self) -> dict[str, str]:
        supers = ["ANONYMOUS", *self.super_users]
        found = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{user}" for user in supers),
            "sasl.enabled.mechanisms": ",".join(self.mechanisms),
        }
        if self.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate)}
        if self.authority is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        if self.token_secret is not None:
            found["delegation.token.secret.key"] = self.token_secret
        for listener in self.listeners:
            prefix = f"listener.name.{listener.name.lower()}."
            if listener.protocol.startswith("SASL"):
                for mechanism in self.mechanisms:
                    found[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = self._login(mechanism)
            found |= {prefix + name: value for name, value in listener.properties.items()}
        return found

    def format_arguments(self) -> list[str]:
        """Arguments of StorageTool's `format`: users of SCRAM exist from the start."""
        return [
            word
            for mechanism in SCRAM_MECHANISMS
            for user, password in self.passwords.items()
            for word in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
        ]

    def _login(self, mechanism: str) -> str:
        if mechanism == "PLAIN":
            users = " ".join(f'user_{user}="{password}"' for user, password in self.passwords.items())
            return f"{_LOGIN_MODULES}.plain.PlainLoginModule required {users};"
        if mechanism in SCRAM_MECHANISMS:
            return f"{_LOGIN_MODULES}.scram.ScramLoginModule required;"
        return f'{_LOGIN_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
