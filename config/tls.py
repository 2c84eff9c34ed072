"""Settings of TLS: from clients (`listen.tls`) and to brokers (`upstream.tls`). Kafka's names where Kafka has one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from config.types import HOST, AbsolutePath, Section, Value, duration_ms, setting, text, wrong
from config.units import HOUR_MS
from proxy.net.tls.principal import DEFAULT_RULES, PrincipalRules, RuleError


def _rules(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ",".join(value)  # as a broker joins a list
    if not isinstance(value, str):
        raise wrong('rules as text, such as "RULE:^CN=([^,]+).*$/$1/L,DEFAULT"')
    try:
        PrincipalRules(value)
    except RuleError as error:
        raise wrong(str(error)) from None
    return value


_RULES = Value(_rules, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})


class ListenTls(Section):
    """TLS from clients. All files are PEM, and read again when they have changed."""

    certificate_file: AbsolutePath = Field(description="The sidecar's certificate chain, PEM.")
    key_file: AbsolutePath = Field(description="The certificate's private key, PEM, without a password.")
    client_auth: Literal["none", "requested", "required"] = setting(
        "none", "Client certificates: none, requested or required, as in Kafka.", alias="ssl.client.auth"
    )
    client_ca_file: AbsolutePath | None = setting(None, "PEM file with the authorities of clients' certificates.")
    principal_mapping_rules: Annotated[str, _RULES] = setting(
        DEFAULT_RULES,
        "Maps a client certificate's subject to its user, as in Kafka.",
        alias="ssl.principal.mapping.rules",
    )
    handshake_timeout_ms: Annotated[int, duration_ms(100, HOUR_MS, bare_unit="ms")] = setting(
        10_000, "Longest handshake of a client."
    )

    def _expected_together(self) -> str | None:
        if self.client_auth != "none" and self.client_ca_file is None:
            return f"client_ca_file too, because ssl.client.auth is {self.client_auth}"
        if self.client_auth == "none" and self.client_ca_file is not None:
            return "ssl.client.auth to be requested or required, because client_ca_file is set"
        return None


class UpstreamTls(Section):
    """TLS to the brokers; `{}` is enough where the system trusts their authority and they ask for no certificate."""

    ca_file: AbsolutePath | None = setting(None, "PEM file with the brokers' authorities; null: the system's.")
    certificate_file: AbsolutePath | None = setting(None, "Certificate chain shown to brokers, PEM; null: none.")
    key_file: AbsolutePath | None = setting(None, "Its private key, PEM, without a password.")
    server_name: Annotated[str, HOST] | None = setting(
        None, "Name sent to every broker (SNI) that its certificate must match; null: the host connected to."
    )
    verify_hostname: StrictBool = setting(
        True, "false: accept any certificate of a trusted authority. Logs a warning at each start."
    )

    def _expected_together(self) -> str | None:
        one_alone = (self.certificate_file is None) != (self.key_file is None)
        return "both certificate_file and key_file, or neither" if one_alone else None


class UpstreamSasl(Section):
    """The sidecar's own login, for its own questions: clients' logins pass through as they are."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = setting(..., "SASL mechanism.")
    username: Annotated[str, text("a user name")] | None = setting(None, "The user; not with OAUTHBEARER.")
    password_file: AbsolutePath | None = setting(None, "File with the password, re-read at every login.")
    token_file: AbsolutePath | None = setting(
        None, "With OAUTHBEARER, the file with the token, re-read at every login."
    )

    def _expected_together(self) -> str | None:
        if self.mechanism == "OAUTHBEARER":
            if self.token_file is None or self.username is not None or self.password_file is not None:
                return "a token_file with OAUTHBEARER, and neither username nor password_file"
        elif self.username is None or self.password_file is None or self.token_file is not None:
            return f"username and password_file with {self.mechanism}, and no token_file"
        return None
