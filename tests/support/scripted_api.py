"""A scripted Kubernetes API server, for the answers that a real one gives in its bad moments."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from tests.support.web_server import Answering, serving
from tests.support.webhook_tools import service_account

TOKEN = "of the service account"
Json = dict[str, Any]


@dataclass
class ScriptedApi:
    objects: dict[str, Json] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    refuse: Callable[[str, str], int | None] = lambda method, path: None
    """A status to answer instead of doing it."""
    url: str = ""
    account: Path = Path()

    def put(self, path: str, **body: Any) -> None:
        """An object that is there; `path` is that of the real API."""
        *_, collection, name = path.split("/")
        space = path.partition("/namespaces/")[2].partition("/")[0] if collection != "namespaces" else ""
        metadata = {"name": name, "namespace": space, "uid": f"uid of {name}", "resourceVersion": "1"}
        self.objects[path] = body | {"metadata": metadata | body.get("metadata", {})}

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Json]:
        where = urlsplit(target)
        path, query = where.path, {key: value[0] for key, value in parse_qs(where.query).items()}
        self.asked.append((method, path))
        if (status := self.refuse(method, path)) is not None:
            return status, {"kind": "Status", "message": f"scripted: {status}"}
        if method == "GET" and path in self.objects:
            return 200, self.objects[path]
        if method == "GET" and path.rpartition("/")[2] in ("namespaces", "configmaps", "networkpolicies"):
            return 200, {"items": [one for one in self._of(path) if _selected(one, query)]}
        if method == "PATCH" and isinstance(body, list):
            for step in body[1:]:
                hook = self.objects[path]["webhooks"][int(step["path"].split("/")[2])]
                hook["clientConfig"]["caBundle"] = step["value"]
            return 200, self.objects[path]
        if method in ("PATCH", "PUT"):
            self.put(path, **body)
            return 200, self.objects[path]
        if method == "DELETE" and path in self.objects:
            return 200, self.objects.pop(path)
        if method == "POST":
            name = body["metadata"].get("name") or f"{body['metadata']['generateName']}{len(self.objects)}"
            if f"{path}/{name}" in self.objects:
                return 409, {"kind": "Status", "message": "already exists"}
            self.put(f"{path}/{name}", **body)
            return 201, self.objects[f"{path}/{name}"]
        return 404, {"kind": "Status", "message": f"{path} not found"}

    def _of(self, path: str) -> list[Json]:
        kind = path.rpartition("/")[2]
        return [one for where, one in self.objects.items() if where.split("/")[-2] == kind]


def _selected(one: Json, query: dict[str, str]) -> bool:
    label, _, value = query.get("labelSelector", "").partition("=")
    name, about = query.get("fieldSelector", "").partition("=")[2], one["metadata"]
    return (not label or about.get("labels", {}).get(label) == value) and name in ("", about["name"])


@contextmanager
def scripted_api(folder: Path) -> Iterator[ScriptedApi]:
    api = ScriptedApi()

    class Handler(Answering):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = json.loads(self.body() or b"null")
            if self.headers["authorization"] != f"Bearer {TOKEN}":
                status, found = 401, {"kind": "Status", "message": "Unauthorized"}
            else:
                status, found = api.answer(self.command, self.path, body)
            self.answer(status, json.dumps(found).encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    api.url = f"https://127.0.0.1:{server.server_address[1]}"
    api.account = service_account(folder, authority.cert_pem.bytes().decode(), TOKEN)
    with serving(server):
        yield api
