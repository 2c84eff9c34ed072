"""Pods as a cluster's controllers make them, for an API server without controllers."""

from __future__ import annotations

from typing import Any

NAMESPACE = "orders"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(name: str, **more: Any) -> dict[str, Any]:
    """One that the Pod Security Standard "restricted" lets pass."""
    return {"name": name, "image": "registry.example/orders:1.4.0", "securityContext": RESTRICTED, **more}


APP = container("app", env=[{"name": "KAFKA_BOOTSTRAP_SERVERS", "value": "127.0.0.1:9092"}])


def bare_pod() -> dict[str, Any]:
    """What a person makes by hand."""
    spec = {"containers": [container("app")], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": spec}
