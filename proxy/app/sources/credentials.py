"""The sidecar's own login, from the configuration to the code that sends requests to the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from config.model import Config
from proxy.net.upstream.credentials import Credentials


def own_credentials(config: Config) -> Credentials | None:
    """The login of `upstream.sasl`; None without one."""
    sasl = config.upstream.sasl
    if sasl is None:
        return None
    file = sasl.token_file if sasl.mechanism == "OAUTHBEARER" else sasl.password_file
    assert file is not None  # config validates that
    return Credentials(sasl.mechanism, sasl.username, Path(file))


def kafka_python_login(credentials: Credentials | None) -> dict[str, Any]:
    """A kafka-python client's settings for this login; the secret is read now. Raises LoginError."""
    if credentials is None:
        return {}
    settings: dict[str, Any] = {"sasl_mechanism": credentials.mechanism}
    if credentials.mechanism == "OAUTHBEARER":
        read = credentials.secret

        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return read()

        return settings | {"sasl_oauth_token_provider": Provider()}
    return settings | {"sasl_plain_username": credentials.username, "sasl_plain_password": credentials.secret()}
