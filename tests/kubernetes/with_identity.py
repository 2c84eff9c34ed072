"""Who a pod is, and its certificates: service account tokens and Secrets as the kubelet brings and renews them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.kubernetes import workloads
from tests.kubernetes.installed import RATE, Release, installed, shop_values
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import metrics, statuses
from tests.support.certificates import Authority, Issued
from tests.support.chart_tools import manifest
from tests.support.waiting import until

NAMESPACE: Final = "identity"
SECRET: Final = "kafka-client"
CLIENT: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
EXPIRY: Final = "kquota_tls_certificate_expiry_timestamp_seconds"


@pytest.fixture(scope="module")
def authority(node: Node) -> Authority:
    return workloads.authority(node)


@pytest.fixture(scope="module")
def release(node: Node, shop: Path, authority: Authority) -> Iterator[Release]:
    workloads.namespace(node, NAMESPACE)
    apply_secret(node, authority.issue("before", "client.test"), authority)
    node.kubectl("create", "serviceaccount", "checkout", "--namespace", NAMESPACE)
    files = {f"{what}_file": f"/etc/kquota-tls/{name}" for what, name in FILES.items()}
    static = {"template": "{namespace}/{service_account}", "directory": "/etc/kquota-pod"}
    values = shop_values(
        topic="identity",
        config={
            "upstream": {"bootstrap": ["kafka-0.kafka.kafka:9094"], "tls": files},
            "drain_timeout_s": 20,
            "identity": {"sources": ["static"], "static": static},
        },
        quotas=[{"user": f"{NAMESPACE}/checkout", "producer_byte_rate": RATE}],
        podIdentity={"enabled": True},
        extraVolumes=[{"name": "kquota-tls", "secret": {"secretName": SECRET}}],
        extraVolumeMounts=[{"name": "kquota-tls", "mountPath": "/etc/kquota-tls", "readOnly": True}],
    )
    with installed(node, shop, NAMESPACE, values | {"serviceAccount": "checkout"}) as running:
        yield running


FILES: Final = {"ca": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}


def apply_secret(node: Node, issued: Issued, authority: Authority) -> None:
    files = {"tls.crt": issued.chain, "tls.key": issued.key, "ca.crt": authority.certificate}
    texts = {name: path.read_text() for name, path in files.items()}
    node.apply(manifest("Secret", SECRET, stringData=texts), namespace=NAMESPACE)


def test_the_service_account_is_the_user(node: Node, release: Release) -> None:
    pod = release.pod()

    def throttled() -> list[str]:
        found = [name for name, value in metrics(node, pod).items() if value > 0]
        return [name for name in found if name.startswith("kquota_throttle_seconds_total")]

    (counted,) = until(throttled, lambda: release.sidecar_log(pod), 90)
    assert f'user="{NAMESPACE}/checkout"' in counted
    release.settled_rate(pod, RATE)


def test_rotated_secret_is_taken_over_without_a_restart(node: Node, release: Release, authority: Authority) -> None:
    """The broker asks for a certificate; connections that come after the change show the new one."""
    pod = release.pod()
    release.await_progress(pod)

    def expiry() -> dict[str, float]:
        return {name: value for name, value in metrics(node, pod).items() if name.startswith(EXPIRY)}

    before = expiry()
    assert before
    began = time.monotonic()
    apply_secret(node, authority.issue_subject("after", CLIENT), authority)
    until(lambda: expiry() != before, lambda: release.sidecar_log(pod), 150)
    print(f"new certificate in force {time.monotonic() - began:.1f} s after the Secret")
    (value,) = set(expiry().values()) - set(before.values())
    assert value < time.time() + 2 * 86400  # as issue_subject makes them
    # A new connection of the application makes one to the broker, with the new certificate.
    node.kill(workloads.container_id(pod, "app"), 9)
    until(lambda: statuses(release.pod())["app"]["restartCount"] == 1, limit_s=90)
    release.await_progress(release.pod())
    assert statuses(release.pod())["kquota"]["restartCount"] == 0
    assert statuses(pod)["kquota"]["containerID"] == statuses(release.pod())["kquota"]["containerID"]
