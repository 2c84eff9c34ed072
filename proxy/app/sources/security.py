"""What a configuration keeps in other files: certificates and their keys, the static user, the fleet's keys. Loaded,
then followed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.identity import IdentitySection
from config.model import Config
from config.tls import ListenTls, UpstreamTls
from proxy.app.sources.fleet_keys import FleetKeys
from proxy.app.sources.follow import Followed, Follower
from proxy.app.sources.static_user import StaticUser
from proxy.core.auth.identity import IdentityPolicy
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls, TlsSide
from proxy.net.tls.principal import PrincipalRules
from proxy.net.upstream.credentials import Credentials


@dataclass(frozen=True, slots=True)
class Security:
    """Loaded when the sidecar starts; the files are followed from then on."""

    listen_tls: ServerTls | None
    upstream_tls: ClientTls | None
    identity: IdentityPolicy
    follower: Follower
    credentials: Credentials | None = None
    """The sidecar's own login."""
    fleet_keys: FleetKeys | None = None
    """Of the fleet's records; None without a fleet."""

    def producer_settings(self) -> dict[str, Any]:
        """A kafka-python client's settings to reach the brokers in the same way, as of now."""
        login = {} if self.credentials is None else _kafka_python_login(self.credentials)
        if self.upstream_tls is None:
            return {**login, "security_protocol": "SASL_PLAINTEXT"} if login else {}
        protocol = "SASL_SSL" if login else "SSL"
        return {**login, "security_protocol": protocol, "ssl_context": self.upstream_tls.library_context}

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the data path."""
        return {name: getattr(self, name) for name in ("identity", "listen_tls", "upstream_tls", "credentials")}

    @property
    def sides(self) -> list[TlsSide]:
        """The directions that use TLS."""
        return [side for side in (self.listen_tls, self.upstream_tls) if side is not None]


def load_security(config: Config) -> Security:
    """Read all the files. Raises OSError that names the setting, the file and the reason."""
    listen = None if config.listen.tls is None else server_tls(config.listen.tls)
    upstream = None if config.upstream.tls is None else client_tls(config.upstream.tls)
    followed = [Followed(side.setting, side.paths, side.load) for side in (listen, upstream) if side and side.paths]
    identity = _identity(config.identity, followed)
    keys = None
    if config.fleet is not None and config.fleet.key_file is not None:
        keys = FleetKeys(config.fleet.key_file)
        followed.append(Followed(keys.setting, [keys.path], keys.load))
    return Security(listen, upstream, identity, Follower(followed), own_credentials(config), keys)


def own_credentials(config: Config) -> Credentials | None:
    """The login of `upstream.sasl`; None without one."""
    sasl = config.upstream.sasl
    if sasl is None:
        return None
    file = sasl.token_file if sasl.mechanism == "OAUTHBEARER" else sasl.password_file
    assert file is not None  # config validates that
    return Credentials(sasl.mechanism, sasl.username, Path(file))


def _kafka_python_login(credentials: Credentials) -> dict[str, Any]:
    """A kafka-python client's settings for this login; the secret is read now. Raises LoginError."""
    settings: dict[str, Any] = {"sasl_mechanism": credentials.mechanism}
    if credentials.mechanism == "OAUTHBEARER":
        read = credentials.secret

        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return read()

        return settings | {"sasl_oauth_token_provider": Provider()}
    return settings | {"sasl_plain_username": credentials.username, "sasl_plain_password": credentials.secret()}


def server_tls(settings: ListenTls) -> ServerTls:
    """Raises OSError as `load_security`."""
    return ServerTls(
        KeyPair(Path(settings.certificate_file), Path(settings.key_file)),
        client_auth=settings.client_auth,
        client_authorities=None if settings.client_ca_file is None else Path(settings.client_ca_file),
        rules=PrincipalRules(settings.principal_mapping_rules),
        handshake_timeout_s=settings.handshake_timeout_ms / 1000,
    )


def client_tls(settings: UpstreamTls) -> ClientTls:
    """Raises OSError as `load_security`."""
    pair = None
    if settings.certificate_file is not None and settings.key_file is not None:
        pair = KeyPair(Path(settings.certificate_file), Path(settings.key_file))
    return ClientTls(
        authorities=None if settings.ca_file is None else Path(settings.ca_file),
        pair=pair,
        server_name=settings.server_name,
        verify_hostname=settings.verify_hostname,
    )


def _identity(settings: IdentitySection, followed: list[Followed]) -> IdentityPolicy:
    policy = IdentityPolicy(tuple(settings.sources), settings.static_user, settings.sasl.unknown_user)
    if settings.static is not None and settings.static_elsewhere:
        source = StaticUser(settings.static)

        def load() -> None:
            policy.static_user = source.read()

        load()
        followed.append(Followed(source.setting, source.paths, load))
    return policy
