"""The secured cluster of the tests: who may log in, who may do what, and how clients of each kind are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deploy.kafka import DEFAULT_LISTENERS, KafkaCluster, SecureListener, Security
from tests.certificates import Authority

PASSWORDS: Final = {
    "alice": "pw-alice-8d1f",
    "bob": "pw-bob-51c7",
    "kquota": "pw-kquota-9e02",
}
"""All users; by PLAIN and SCRAM. `kquota` is the sidecar's own, a super user."""
CLOSED: Final = "closed-"
"""Nobody but super users may do anything with topics whose names begin so."""
REAUTH_MS: Final = 4000
"""Clients of the listener SASL_REAUTH have to log in again that often (KIP-368)."""


def security(authority: Authority) -> Security:
    """How the secured cluster is configured."""
    return Security(
        PASSWORDS,
        (
            *DEFAULT_LISTENERS,
            SecureListener("SASL_REAUTH", "SASL_PLAINTEXT", {"connections.max.reauth.ms": str(REAUTH_MS)}),
        ),
        certificate=authority.issue("broker", "127.0.0.1", "localhost", common_name="broker").both,
        authority=authority.certificate,
        super_users=["kquota"],
        token_secret="secret-of-delegation-tokens",
    )


@contextmanager
def secure_cluster(authority: Authority, version: str = "4.2.0") -> Iterator[KafkaCluster]:
    """One broker with everything; ACLs are in force when it is handed over."""
    with KafkaCluster.start(1, version, progress=print, security=security(authority)) as cluster:
        allow_all_but_closed(cluster)
        yield cluster


def allow_all_but_closed(cluster: KafkaCluster) -> None:
    """Everybody may use every topic, group and transaction, save topics that begin with `CLOSED`."""
    from kafka import KafkaAdminClient
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
    from kafka.admin import ACLResourcePatternType as PatternType

    def acl(permission: ACLPermissionType, kind: ResourceType, name: str, how: PatternType) -> ACL:
        pattern = ResourcePattern(kind, name, how)
        return ACL("User:*", "*", ACLOperation.ALL, permission, pattern)

    allow, deny = ACLPermissionType.ALLOW, ACLPermissionType.DENY
    acls = [
        acl(allow, kind, "*", PatternType.LITERAL)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    ]
    acls.append(acl(deny, ResourceType.TOPIC, CLOSED, PatternType.PREFIXED))
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        result = admin.create_acls(acls)
        assert not result["failed"], result
    finally:
        admin.close()
