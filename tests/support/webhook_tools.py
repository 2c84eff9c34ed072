"""The webhook in tests: what the chart gives it, and how an API server asks it."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trustme
import yaml

from deploy.kubernetes.distribution import Distribution
from tests.lab.chart import CHART
from tests.support.chart_tools import NEWEST, ROOT, documents, injected, of_kind, render_text

REVIEWS = ROOT / "tests/golden/admission.yaml"
"""What an API server asked, without the managed fields: of a pod by itself, of a Deployment and of a Job."""
VALUES = CHART / "ci/webhook-values.yaml"
GENERATED = CHART / "ci/webhook-generated-values.yaml"
MANAGED = CHART / "ci/webhook-cert-manager-values.yaml"

SETTINGS = Distribution(
    namespace="platform",
    name="kquota",
    configuration="kquota-webhook.platform",
    only=frozenset(),
    policy="lower",
    labels={"app.kubernetes.io/name": "kquota"},
    secret="kquota-webhook-certificate",
    host="kquota-webhook.platform.svc",
)
"""What the chart of a release `kquota` in the namespace `platform` says."""


@functools.cache
def rendered(values: Path, kubernetes: str = NEWEST) -> list[dict[str, Any]]:
    """To be read only."""
    return documents(render_text(values, kubernetes=kubernetes))


def sidecar_template(values: Path = VALUES, kubernetes: str = NEWEST, **changes: Any) -> bytes:
    return json.dumps(injected(rendered(values, kubernetes)) | changes).encode()


def admission_review(
    name: str, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    asked: dict[str, Any] = yaml.safe_load(REVIEWS.read_text())[name]
    asked["request"]["object"]["spec"] |= spec
    metadata = asked["request"]["object"]["metadata"]
    for key, given in (("labels", labels), ("annotations", annotations)):
        if given is not None:
            metadata[key] = metadata.get(key, {}) | given
    return asked


@dataclass
class Webhook:
    port: int
    directory: Path
    host: str
    authority: ssl.SSLContext
    process: subprocess.Popen[str]

    def post(self, body: Any, path: str = "/mutate", authority: ssl.SSLContext | None = None) -> httpx.Response:
        """As an API server does: it trusts the caBundle alone and expects the Service's name in the certificate."""
        with httpx.Client(verify=authority or self.authority, timeout=10) as client:
            return client.post(
                f"https://127.0.0.1:{self.port}{path}",
                content=body if isinstance(body, bytes) else json.dumps(body).encode(),
                headers={"content-type": "application/json", "host": self.host},
                extensions={"sni_hostname": self.host},
            )

    def healthy(self) -> bool:
        """As the kubelet asks: it does not look at the certificate."""
        return httpx.get(f"https://127.0.0.1:{self.port}/healthz", verify=False).status_code == 200


def write_certificate(manifests: list[dict[str, Any]], directory: Path) -> ssl.SSLContext:
    (secret,) = of_kind(manifests, "Secret")
    for key in ("tls.crt", "tls.key", "ca.crt"):
        (directory / key).write_bytes(base64.b64decode(secret["data"][key]))
    return ssl.create_default_context(cafile=directory / "ca.crt")


def service_account(folder: Path, authority: str | None = None, token: str = "none") -> Path:
    """What a kubelet would mount: the token of a service account and the authority of the API server (PEM)."""
    account = folder / "serviceaccount"
    account.mkdir(exist_ok=True)
    (account / "token").write_text(token)
    (account / "ca.crt").write_text(authority or trustme.CA().cert_pem.bytes().decode())
    return account
