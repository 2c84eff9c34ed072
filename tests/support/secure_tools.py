"""The secured cluster of the tests: its users, their ACLs, and the settings of each client library."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.lab.kafka import DEFAULT_LISTENERS, BrokerSecurity, KafkaCluster, SecureListener
from tests.support.certificates import Authority
from tests.support.sasl_tools import jwt

PASSWORDS: Final = {"alice": "pw-alice-8d1f", "bob": "pw-bob-51c7", "kquota": "pw-kquota-9e02"}
"""All users; by PLAIN and SCRAM. `kquota` is the sidecar's own, a super user."""
CLOSED: Final = "closed-"
REAUTH_MS: Final = 8000
"""Clients of the listener SASL_REAUTH have to log in again that often (KIP-368)."""
RULES = r"RULE:^.*CN=([^,\\]+),OU=(eng|ops)[,+].*$/$1@$2/U, RULE:^CN=(\w+)\.(\w+).*$/$2-$1-$4/L, RULE:^UID=(.*)$/x/"
"""How the listener MAPPED, which insists on certificates, maps their names. The first takes names apart, the second has
a group that there is not, the third replaces what it finds."""


def security(authority: Authority) -> BrokerSecurity:
    return BrokerSecurity(
        PASSWORDS,
        (
            *DEFAULT_LISTENERS,
            SecureListener("SASL_REAUTH", "SASL_PLAINTEXT", {"connections.max.reauth.ms": str(REAUTH_MS)}),
            SecureListener("MAPPED", "SSL", {"ssl.client.auth": "required", "ssl.principal.mapping.rules": RULES}),
        ),
        certificate=authority.issue("broker", "127.0.0.1", "localhost", common_name="broker").both,
        authority=authority.certificate,
        super_users=["kquota"],
        token_secret="secret-of-delegation-tokens",
    )


@contextmanager
def secure_cluster(authority: Authority, **settings: Any) -> Iterator[KafkaCluster]:
    """One broker with everything; ACLs are in force when it is handed over."""
    with KafkaCluster.start(1, progress=print, security=security(authority), **settings) as cluster:
        _allow_all_but_closed(cluster)
        yield cluster


def _allow_all_but_closed(cluster: KafkaCluster) -> None:
    """Every user may use every topic, group and transaction, save topics that begin with `CLOSED`."""
    from kafka import KafkaAdminClient
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
    from kafka.admin import ACLResourcePatternType as PatternType

    def acl(permission: ACLPermissionType, kind: ResourceType, name: str, how: PatternType) -> ACL:
        return ACL("User:*", "*", ACLOperation.ALL, permission, ResourcePattern(kind, name, how))

    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    acls = [acl(ACLPermissionType.ALLOW, kind, "*", PatternType.LITERAL) for kind in kinds]
    acls.append(acl(ACLPermissionType.DENY, ResourceType.TOPIC, CLOSED, PatternType.PREFIXED))
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        result = admin.create_acls(acls)
    assert not result["failed"], result


def token(user: str, **claims: object) -> str:
    """An unsecured JSON web token that the cluster takes for half an hour."""
    now_s = int(time.time())
    return jwt({"sub": user, "iat": now_s, "exp": now_s + 1800, **claims})


def own_login(folder: Path, mechanism: str, user: str = "kquota") -> dict[str, str]:
    """`upstream.sasl` of a sidecar with a login of its own, whose secret is a file in this folder."""
    secret = folder / "secret"
    by_token = mechanism == "OAUTHBEARER"
    secret.write_text((token(user) if by_token else PASSWORDS[user]) + "\n")
    known = {"token_file": str(secret)} if by_token else {"username": user, "password_file": str(secret)}
    return {"mechanism": mechanism, **known}


def login(
    client: str, mechanism: str, user: str, secret: str, protocol: str = "SASL_PLAINTEXT", authority: Path | None = None
) -> dict[str, Any]:
    """Settings of a client of tests/support/clients.py, as it spells them; `secret` is a password or a token."""
    name = "security_protocol" if client in ("kafka-python", "aiokafka") else "security.protocol"
    settings = _LOGINS[client](mechanism, user, secret) | {name: protocol}
    return settings if authority is None else settings | _TRUSTS[client](authority)


_TRUSTS: Final[dict[str, Callable[[Path], dict[str, Any]]]] = {
    "kafka-python": lambda file: {"ssl_cafile": str(file)},
    "aiokafka": lambda file: {"ssl_context": ssl.create_default_context(cafile=file)},
    "confluent-kafka": lambda file: {"ssl.ca.location": str(file)},
    "java-console": lambda file: {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(file)},
}
"""Whom a client of each kind trusts. Host names are checked by all of them, as is their default."""


def _kafka_python(mechanism: str, user: str, secret: str) -> dict[str, Any]:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return secret

    return _python(mechanism, user, secret, Provider())


def _aiokafka(mechanism: str, user: str, secret: str) -> dict[str, Any]:
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return secret

    return _python(mechanism, user, secret, Provider())


def _python(mechanism: str, user: str, secret: str, provider: object) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": provider}
    return {"sasl_mechanism": mechanism, "sasl_plain_username": user, "sasl_plain_password": secret}


def _confluent(mechanism: str, user: str, secret: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return settings | {"oauth_cb": lambda _: (secret, time.time() + 1500)}
    return settings | {"sasl.username": user, "sasl.password": secret}


def _java(mechanism: str, user: str, secret: str) -> dict[str, Any]:
    """Java's own login module makes the unsecured token by itself, from the user alone."""
    modules = "org.apache.kafka.common.security"
    if mechanism == "OAUTHBEARER":
        jaas = f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";'
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = f'{modules}.{module} required username="{user}" password="{secret}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


_LOGINS: Final[dict[str, Callable[[str, str, str], dict[str, Any]]]] = {
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "confluent-kafka": _confluent,
    "java-console": _java,
    "java-perf": _java,
}
