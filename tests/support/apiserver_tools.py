"""A real Kubernetes API server in tests: kube-apiserver and etcd on the loopback, built by Go from pinned modules."""

from __future__ import annotations

import ipaddress
import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import trustme
import yaml

from tests.lab.kafka.ports import free_ports
from tests.support import go_tools
from tests.support.chart_tools import manifest
from tests.support.waiting import answered

VERSION: Final = "1.36.3"
"""As tests/go/apiserver/go.mod pins it."""
SERVICES: Final = ipaddress.ip_network("127.77.0.0/24")
"""Addresses of Services. On the loopback, so that the API server reaches a webhook through its Service without any
proxy: the process that listens on the Service's address is the Service."""
START_LIMIT_S: Final = 180.0
CRDS: Final = {
    "github.com/cert-manager/cert-manager": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
    "github.com/kubeflow/spark-operator/v2": (
        "config/crd/bases/sparkoperator.k8s.io_scheduledsparkapplications.yaml",
        "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
}


def kubernetes_program(name: str) -> Path:
    """One of Kubernetes' own programs, built if need be; it says its version as a released one does."""
    major, minor, _ = VERSION.split(".")
    where = "k8s.io/component-base/version"
    flags = [f"-X {where}.gitVersion=v{VERSION}", f"-X {where}.gitMajor={major}", f"-X {where}.gitMinor={minor}"]
    return go_tools.program("apiserver", f"k8s.io/kubernetes/cmd/{name}", *flags)


def etcd_program() -> Path:
    return go_tools.program("apiserver", "go.etcd.io/etcd/server/v3")


def crds() -> list[dict[str, Any]]:
    """The published definitions of the kinds that the operators of Prometheus, of Spark and cert-manager bring."""
    return [
        yaml.safe_load((go_tools.source("crds", module) / path).read_text())
        for module, paths in CRDS.items()
        for path in paths
    ]


@dataclass
class ApiServer:
    """A running API server; asked as its administrator, or as another user."""

    url: str
    token: str
    kubeconfig: Path
    client: httpx.Client
    authority: Path

    def ask(
        self, method: str, path: str, body: Any = None, as_user: str | None = None, patch: str = "json", **query: str
    ) -> httpx.Response:
        """One request. `as_user` is impersonated (a service account gets its groups); `patch` is the kind of one."""
        given = [("authorization", f"Bearer {self.token}"), ("content-type", f"application/{patch}")]
        if as_user is not None:
            given.append(("impersonate-user", as_user))
            groups = ["system:authenticated"]
            if as_user.startswith("system:serviceaccount:"):
                groups = ["system:serviceaccounts", f"system:serviceaccounts:{as_user.split(':')[2]}", *groups]
            given += [("impersonate-group", group) for group in groups]
        content = None if body is None else json.dumps(body).encode()
        return self.client.request(method, self.url + path, content=content, headers=given, params=query)

    def get(self, path: str) -> Any:
        return self.ask("GET", path).raise_for_status().json()

    def create(self, path: str, body: dict[str, Any], as_user: str | None = None, **query: str) -> dict[str, Any]:
        """Make an object; fails with the API server's own words."""
        answer = self.ask("POST", path, body, as_user, **query)
        assert answer.status_code == 201, (path, body.get("metadata"), answer.text)
        return dict(answer.json())

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """A namespace under the Pod Security Standard "restricted", with the service account that pods run as."""
        enforced = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")}
        self.create("/api/v1/namespaces", manifest("Namespace", name, labels=enforced | (labels or {})))
        self.account(name, "default")

    def label(self, namespace: str, labels: dict[str, str | None]) -> None:
        change = {"metadata": {"labels": labels}}
        self.ask("PATCH", f"/api/v1/namespaces/{namespace}", change, patch="merge-patch+json").raise_for_status()

    def account(self, namespace: str, name: str) -> None:
        """A service account, if it is not there yet: there is no controller that makes the default one."""
        answer = self.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", manifest("ServiceAccount", name))
        assert answer.status_code in (201, 409), answer.text


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    port, clients, peers = free_ports(3)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
    trustme.CA().private_key_pem.write_to_path(str(folder / "accounts.key"))
    store = [
        etcd_program(), f"--data-dir={folder}/etcd", f"--listen-client-urls=http://127.0.0.1:{clients}",
        f"--advertise-client-urls=http://127.0.0.1:{clients}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
        f"--initial-cluster=default=http://127.0.0.1:{peers}", "--unsafe-no-fsync", "--log-level=error",
    ]  # fmt: skip
    server = [
        kubernetes_program("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{clients}",
        "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
        f"--service-cluster-ip-range={SERVICES}", "--endpoint-reconciler-type=none",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder}/accounts.key",
        f"--service-account-signing-key-file={folder}/accounts.key", "--advertise-address=192.0.2.1", "-v=0",
    ]  # fmt: skip
    with ExitStack() as stack:
        for name, command in (("etcd", store), ("kube-apiserver", server)):
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            process = stack.enter_context(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))
            stack.callback(process.terminate)
        client = stack.enter_context(httpx.Client(verify=False, timeout=60))
        url = f"https://127.0.0.1:{port}"
        running = ApiServer(url, token, folder / "kubeconfig", client, folder / "certificates/apiserver.crt")
        deadline = time.monotonic() + START_LIMIT_S
        while not answered(lambda: running.ask("GET", "/readyz").text == "ok"):
            said = (folder / "kube-apiserver.log").read_text()[-4000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        }
        running.kubeconfig.write_text(yaml.safe_dump(kubeconfig))
        yield running


def main() -> None:
    for path in (kubernetes_program("kube-apiserver"), etcd_program()):
        print(f"· {path}")
    crds()


if __name__ == "__main__":
    main()
