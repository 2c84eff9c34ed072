"""What a configuration keeps in other files: certificates, keys, the static user. Loaded, then followed."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.model import Config
from config.problems import Place
from config.sections import IdentitySection, StaticIdentity, template_fields
from proxy.app.sources.follow import Followed, Follower
from proxy.core.auth.identity import IdentityPolicy
from proxy.net.files import read_file
from proxy.net.tls.contexts import ClientTls, KeyPair, ServerTls, TlsSide
from proxy.net.tls.principal import PrincipalRules
from proxy.net.upstream.credentials import Credentials

STATIC: Final = "identity.static"
MAX_IDENTITY_BYTES: Final = 65_536
_LABEL: Final = re.compile(r'([^=\s]+)="([A-Za-z0-9._-]*)"')
"""One line of the downward API's labels; values of labels have no other characters."""
_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Names of namespaces, service accounts, pods, and values of labels. Nothing in them can pass for a separator."""
_SUBJECT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
MAX_KEYS_BYTES: Final = 4096
SHORTEST_KEY: Final = 32
"""Characters of a key. 32 of base64 are 192 bits, if they were drawn at random."""
MOST_KEYS: Final = 4
"""Each is tried on a record that none of them signed."""


class BadFileError(OSError):
    """A file does not define what it should; the message has the setting, the file and the reason."""

    def __init__(self, setting: str, path: Path, reason: str) -> None:
        super().__init__(f"{setting} {path}: {reason}")


def _read(setting: str, path: Path, most_bytes: int) -> bytes:
    try:
        return read_file(path, most_bytes)
    except OSError as error:
        raise BadFileError(setting, path, f"cannot be read: {error.strerror or error}") from None


def _static_paths(settings: StaticIdentity) -> list[Path]:
    if settings.file is not None:
        return [Path(settings.file)]
    fields = template_fields(settings.template or "")
    names = {"labels" if name.startswith("label:") else name for name in fields}
    return [Path(settings.directory or "", name) for name in sorted(names | {"token"})]


def read_static_user(settings: StaticIdentity) -> str:
    """The user that files define. Raises BadFileError."""
    if settings.file is not None:
        return _line(Path(settings.file))
    user = settings.template or ""
    for name in template_fields(user):
        user = user.replace(f"{{{name}}}", _field(Path(settings.directory or ""), name))  # values have no braces
    return user


def _text(path: Path) -> str:
    try:
        return _read(STATIC, path, MAX_IDENTITY_BYTES).decode()
    except UnicodeDecodeError:
        raise BadFileError(STATIC, path, "expected text in UTF-8") from None


def _line(path: Path) -> str:
    line = _text(path).strip()
    if not line or not line.isprintable():
        raise BadFileError(
            STATIC, path, "expected one line of text, the user" if line else "is empty, expected the user"
        )
    return line


def _field(directory: Path, name: str) -> str:
    path, value = directory / name, ""
    if name.startswith("label:"):
        path = directory / "labels"
        labels = dict(_LABEL.findall(_text(path)))
        key = name.removeprefix("label:")
        if key not in labels:
            raise BadFileError(STATIC, path, f"no label {key}")
        value = labels[key]
    elif name in ("service_account", "namespace") and not os.path.lexists(path):
        value = _from_token(directory / "token")[name == "service_account"]
    else:
        value = _text(path).strip()
    if not _VALUE.fullmatch(value):
        raise BadFileError(STATIC, path, f"expected a valid Kubernetes name for {name}, got {value[:80]!r}")
    return value


def _from_token(path: Path) -> tuple[str, str]:
    """(namespace, service account) of a service account's token (RFC 7519), as the kubelet puts it into a projected
    volume. The signature is not verified: a writer of this file could as well write the configuration."""
    parts = _text(path).strip().split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        match = _SUBJECT.fullmatch(claims["sub"])
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        match = None
    if match is None:
        raise BadFileError(STATIC, path, "expected the token of a service account")
    return match[1], match[2]


class FleetKeys:
    """The keys as last read. Each :meth:`load` replaces `current` by a new tuple."""

    setting = "fleet.key_file"

    def __init__(self, path: str) -> None:
        self.path: Final = Path(path)
        self.current: tuple[bytes, ...] = ()
        self.load()

    def load(self) -> None:
        """Read the file. Raises BadFileError."""
        data = _read(self.setting, self.path, MAX_KEYS_BYTES)
        keys = tuple(line.strip() for line in data.splitlines() if line.strip())
        if not 0 < len(keys) <= MOST_KEYS:
            text = f"got {len(keys)} keys, expected 1 to {MOST_KEYS}, one a line"
            raise BadFileError(self.setting, self.path, text)
        for number, key in enumerate(keys, 1):
            if len(key) < SHORTEST_KEY:
                text = f"key {number} has {len(key)} characters, expected at least {SHORTEST_KEY}"
                raise BadFileError(self.setting, self.path, f"{text} (openssl rand -base64 32)")
        self.current = keys


@dataclass(frozen=True, slots=True)
class Security:
    """Loaded when the sidecar starts; the files are followed from then on."""

    listen_tls: ServerTls | None
    upstream_tls: ClientTls | None
    identity: IdentityPolicy
    follower: Follower
    credentials: Credentials | None = None
    fleet_keys: FleetKeys | None = None

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
    listen, upstream, keys = listen_tls(config), upstream_tls(config), fleet_keys(config)
    followed = [Followed(side.setting, side.paths, side.load) for side in (listen, upstream) if side and side.paths]
    identity = _identity(config.identity, followed)
    if keys is not None:
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


def listen_tls(config: Config) -> ServerTls | None:
    """TLS from clients; None without it. Raises OSError as `load_security`."""
    settings = config.listen.tls
    if settings is None:
        return None
    return ServerTls(
        KeyPair(Path(settings.certificate_file), Path(settings.key_file)),
        client_auth=settings.client_auth,
        client_authorities=None if settings.client_ca_file is None else Path(settings.client_ca_file),
        rules=PrincipalRules(settings.principal_mapping_rules),
        handshake_timeout_s=settings.handshake_timeout_ms / 1000,
    )


def upstream_tls(config: Config) -> ClientTls | None:
    """TLS to brokers; None without it. Raises OSError as `load_security`."""
    settings, pair = config.upstream.tls, None
    if settings is None:
        return None
    if settings.certificate_file is not None and settings.key_file is not None:
        pair = KeyPair(Path(settings.certificate_file), Path(settings.key_file))
    return ClientTls(
        authorities=None if settings.ca_file is None else Path(settings.ca_file),
        pair=pair,
        server_name=settings.server_name,
        verify_hostname=settings.verify_hostname,
    )


def fleet_keys(config: Config) -> FleetKeys | None:
    """The fleet's keys; None without any. Raises BadFileError."""
    return None if config.fleet is None or config.fleet.key_file is None else FleetKeys(config.fleet.key_file)


def _in_files(settings: IdentitySection) -> StaticIdentity | None:
    return settings.static if settings.static_elsewhere else None


READERS: Final[tuple[tuple[Place, Callable[[Config], object]], ...]] = (
    (("listen", "tls"), listen_tls),
    (("upstream", "tls"), upstream_tls),
    (("upstream", "sasl"), lambda config: (login := own_credentials(config)) and login.secret()),
    (("identity", "static"), lambda config: (user := _in_files(config.identity)) and read_static_user(user)),
    (("fleet", "key_file"), fleet_keys),
)
"""What reads the files of a section, if it names some. Raises OSError, as `load_security`, and LoginError."""


def _identity(settings: IdentitySection, followed: list[Followed]) -> IdentityPolicy:
    policy = IdentityPolicy(tuple(settings.sources), settings.static_user, settings.sasl.unknown_user)
    if (static := _in_files(settings)) is not None:

        def load() -> None:
            policy.static_user = read_static_user(static)

        load()
        followed.append(Followed(STATIC, _static_paths(static), load))
    return policy
