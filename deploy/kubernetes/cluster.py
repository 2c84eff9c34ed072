"""The Kubernetes API as the webhook uses it: a few requests with its pod's service account."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any, Final

import httpx

MANAGER: Final = "kquota-webhook"
"""The field manager of everything that the webhook writes."""
LIMIT_S: Final = 20.0
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
VALIDATING: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Json = dict[str, Any]


class ApiServerError(OSError):
    """The API server did not carry out a request; says which and why."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {message}")
        self.status = status
        """HTTP status; 0 without an answer."""


class Cluster:
    """An API server. Use it with `async with`."""

    def __init__(self, url: str, account: Path) -> None:
        """`account`: the folder with the service account's token and authority. Raises OSError."""
        self._account = account
        context = ssl.create_default_context(cadata=(account / "ca.crt").read_text(encoding="ascii"))
        names = {"user-agent": MANAGER}  # also the field manager of writes that name none
        self._client = httpx.AsyncClient(base_url=url, verify=context, timeout=LIMIT_S, trust_env=False, headers=names)

    @classmethod
    def of_this_pod(cls, account: Path) -> Cluster:
        """The cluster that this process runs in. Raises OSError with the reason if there is none."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise OSError("KUBERNETES_SERVICE_HOST is not set: the webhook must run in a pod with a service account")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", account)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "json", **query: str) -> Json:
        """Send one request and return the answer's object. `kind` is a patch's type. Raises ApiServerError."""
        what = f"{method} {path}"
        try:
            # Read each time: the kubelet renews it.
            token = (self._account / "token").read_text(encoding="ascii").strip()
            headers = {"authorization": f"Bearer {token}", "content-type": f"application/{kind}"}
            content = None if body is None else json.dumps(body).encode()
            answer = await self._client.request(method, path, content=content, headers=headers, params=query)
        except (httpx.HTTPError, OSError) as error:
            raise ApiServerError(what, 0, str(error) or type(error).__name__) from error
        try:
            found = answer.json()
        except ValueError:
            found = {}
        if answer.is_error or not isinstance(found, dict):
            message = found.get("message") if isinstance(found, dict) else None
            raise ApiServerError(what, answer.status_code, str(message or f"HTTP {answer.status_code}"))
        return found

    async def list(self, path: str, **query: str) -> list[Json]:
        """The objects of a list, page by page. Raises ApiServerError."""
        found: list[Json] = []
        more = ""
        while True:
            page = await self.ask("GET", path, limit="500", **query, **({"continue": more} if more else {}))
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found

    async def get(self, path: str) -> Json | None:
        """An object, None if it does not exist. Raises ApiServerError."""
        try:
            return await self.ask("GET", path)
        except ApiServerError as error:
            if error.status == 404:
                return None
            raise

    async def apply(self, path: str, body: Json) -> Json:
        """Create an object, or set these fields of it (server-side apply). Raises ApiServerError."""
        return await self.ask("PATCH", path, body, "apply-patch+yaml", fieldManager=MANAGER, force="true")


def owner_reference(configuration: Json) -> Json:
    """For objects to be deleted together with this MutatingWebhookConfiguration."""
    metadata = configuration["metadata"]
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    return kind | {"name": metadata["name"], "uid": metadata["uid"]}
