"""Pods as a cluster's controllers make them, for an API server without controllers."""

from typing import Any

from tests.support.apiserver_tools import ApiServer
from tests.support.chart_tools import manifest

NAMESPACE = "orders"
CONTROLLERS = "system:serviceaccount:kube-system:"
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


def deployment_pod(api: ApiServer) -> dict[str, Any]:
    """What the ReplicaSet controller makes for a Deployment: both are there, with their own uids."""
    labels = {"app": "orders"}
    spec = {"initContainers": [container("migrate", command=["migrate"])], "containers": [APP]}
    template = {"metadata": {"labels": labels, "annotations": {"example.com/team": "orders"}}, "spec": spec}
    made = _workload(api, "Deployment", "orders", {"selector": {"matchLabels": labels}, "template": template})
    labels = labels | {"pod-template-hash": "6d5f8c7b9d"}
    template = {"metadata": template["metadata"] | {"labels": labels}, "spec": spec}
    pods = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    replicas = _workload(api, "ReplicaSet", "orders-6d5f8c7b9d", pods, owner=made)
    metadata = template["metadata"] | {"generateName": "orders-6d5f8c7b9d-", "ownerReferences": [_reference(replicas)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def job_pod(api: ApiServer) -> dict[str, Any]:
    spec = {"containers": [APP], "restartPolicy": "Never", "terminationGracePeriodSeconds": 120}
    made = _workload(api, "Job", "nightly-29381", {"template": {"spec": spec}})
    metadata = {
        "generateName": "nightly-29381-",
        "labels": {**made["spec"]["template"]["metadata"]["labels"]},
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "ownerReferences": [_reference(made)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def bare_pod() -> dict[str, Any]:
    return manifest("Pod", "bare", spec={"containers": [container("app")], "automountServiceAccountToken": False})


def _workload(
    api: ApiServer, kind: str, name: str, spec: dict[str, Any], owner: dict[str, Any] | None = None
) -> dict[str, Any]:
    group = "batch/v1" if kind == "Job" else "apps/v1"
    body = manifest(kind, name, group, spec=spec)
    if owner is not None:
        body["metadata"]["ownerReferences"] = [_reference(owner)]
    return api.create(f"/apis/{group}/namespaces/{NAMESPACE}/{kind.lower()}s", body)


def _reference(owner: dict[str, Any]) -> dict[str, Any]:
    named = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    return named | {"controller": True, "blockOwnerDeletion": True}
