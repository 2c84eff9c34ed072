"""The admin port answers requests for hosts of its own, and no pages of other origins: headers, and a real browser."""

import io
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import structlog

from config.load import load_bytes
from config.problems import ConfigError
from proxy.app.admin.guard import Hosts
from proxy.app.common import logs
from tests.loopback.test_admin_http import Admin
from tests.loopback.test_admin_http import admin as running

OWN = ("shop-0", "", "kquota.lan")
LISTED = ("kquota.example.com", "*.corp.example.com", "Shop-KQuota.shop-prod.svc.other.domain")
PATHS = (
    *("/", "/metrics", "/healthz", "/readyz", "/quotas", "/throttled", "/explain", "/connections"),
    *("/brokers", "/libraries", "/history", "/ui", "/ui/", "/ui/app.js", "/nothing"),
)


@pytest.mark.parametrize(
    "host",
    [
        # what the kubelet and Prometheus ask for: the pod's address and the port
        "10.1.2.3:9404", "10.1.2.3", "[fd00::1]:9404", "[fd00::1]", "[FE80::1%25eth0]:9404",
        "127.0.0.1:41234", "[::1]:9",
        # kubectl port-forward, people on the pod
        "localhost:9404", "localhost", "LOCALHOST:1", "localhost.:9404",
        # names of the pod, as it knows itself and as cluster DNS has them
        "shop-0", "shop-0:9404", "SHOP-0.", "kquota.lan:9404", "shop-0.shop.prod.svc:9404",
        "shop-0.shop.prod.svc.cluster.local", "10-1-2-3.prod.pod.cluster.local:9404", "10-1-2-3.prod.pod",
        "fd00--1.prod.pod.cluster.local", "10-1-2-3.shop.prod.svc.cluster.local.",
        # the list
        "kquota.example.com", "kquota.example.com:443", "KQUOTA.example.com.", "a.corp.example.com",
        "b.a.corp.example.com:80", "shop-kquota.shop-prod.svc.other.domain",
    ],
)  # fmt: skip
def test_accepts_own_hosts(host: str) -> None:
    assert Hosts(LISTED, OWN).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9404", "localhost.evil.example", "shop-0.evil.example", "shop-0.shop.prod",
        "shop-0.shop.prod.svc.evil.example", "shop-0.svc.evil.com", "evil.shop.prod.svc.cluster.local", "shop-0.svc",
        "10-1-2-3.evil.example", "10-1-2-3.prod.pod.evil.example", "10.1.2.3.evil.example",
        "10-1-2.prod.pod.cluster.local",
        "corp.example.com", "evilcorp.example.com", "kquota.example.com.evil.example", "xkquota.example.com",
        "evil.example/localhost", "localhost@evil.example", "evil.example#localhost", "localhost:9404:1", "localhost:x",
        "", ":9404", "[evil]", "[::1", "::1", "127.1", "0x7f.0.0.1", "2130706433",
        "localhost, evil.example", "local host",
        "localhost\n", "locaIhost", "ⅼocalhost", "١٠.1.2.3", "*",
        "*.corp.example.com",
    ],
)  # fmt: skip
def test_refuses_other_hosts(host: str) -> None:
    assert not Hosts(LISTED, OWN).allow(host)
    assert Hosts(["*"]).allow(host)


@pytest.mark.parametrize(
    "entry", ["http://x", "x:9404", "", "*.", "**", "a.*.b", "*x", ".x", "x.", "a b", "-a", "a/b", 7]
)
def test_names_wrong_host_in_the_list(entry: Any) -> None:
    text = json.dumps({"upstream": {"bootstrap": ["k:9092"]}, "admin": {"allowed_hosts": ["fine", entry]}})
    with pytest.raises(ConfigError) as caught:
        load_bytes("k.yaml", text.encode())
    (problem,) = caught.value.problems
    assert problem.place == "admin.allowed_hosts[1]"
    assert problem.expected.startswith("expected a host name without scheme and port, such as kquota.example.com")


def admin(*listed: str) -> AbstractAsyncContextManager[Admin]:
    return running(Hosts(listed, OWN))


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_answers_foreign_hosts(path: str) -> None:
    async with admin() as port:
        status, headers, body = await port.get(path, host="evil.example:9404")
        assert status == 421
        assert body == (
            b"This admin port does not accept requests for the host evil.example:9404: it accepts IP addresses, "
            b"localhost and the pod's own names; add other names to admin.allowed_hosts in its configuration.\n"
        )
        assert headers["content-type"].startswith("text/plain")
        assert "shop-0" not in str(headers), "which who rebinds a name could read"
        assert (await port.get(path, host="shop-0"))[0] == (await port.get(path))[0] in (200, 307, 404)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /healthz HTTP/1.0", 200),
        ("GET /healthz HTTP/1.0\r\nHost: evil.example", 421),
        ("GET /healthz HTTP/1.1", 400),  # which wants exactly one
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET /healthz HTTP/1.1\r\nHost:", 421),
        ("GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example", 421),
    ],
)
async def test_answers_requests_without_host(head: str, status: int) -> None:
    async with admin() as port:
        answer = await port.request(f"{head}\r\nConnection: close\r\n\r\n".encode())
        assert int(answer.split()[1]) == status


async def test_a_refused_host_is_in_the_log_once_and_harmless() -> None:
    out = io.StringIO()
    logs.configure("info", "console", out)
    try:
        async with admin() as port:
            for number in (*([0] * 3), *range(1, 101)):
                await port.get("/quotas", host=f"{number}.evil.example")
            _, _, body = await port.get("/quotas", host="evil\x9b31m\x7f")
    finally:
        structlog.reset_defaults()
    lines = out.getvalue().splitlines()
    assert len(lines) == 20
    assert "admin request refused: host name not allowed host=0.evil.example setting=admin.allowed_hosts" in lines[0]
    assert body.decode().rstrip("\n").isprintable()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
async def test_no_answer_allows_other_origins(path: str, method: str) -> None:
    asks = (
        "",
        "Origin: https://evil.example\r\n",
        "Origin: https://evil.example\r\nAccess-Control-Request-Method: GET\r\n",
    )
    async with admin() as port:
        for more in (*asks, f"Origin: http://127.0.0.1:{port.port}\r\n"):
            status, headers, _ = await port.get(path, method, more, host=f"127.0.0.1:{port.port}")
            assert not any(name.startswith("access-control-") for name in headers)
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"
            assert (status == 403) is ("evil" in more)


def fetched(site: str, mode: str = "cors", dest: str = "empty") -> str:
    return f"Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: {dest}"


@pytest.mark.parametrize(
    ("sent", "method", "status"),
    [
        ("Origin: http://127.0.0.1:{port}", "GET", 200),
        ("Origin: HTTP://127.0.0.1:{port}", "GET", 200),
        ("Origin: https://127.0.0.1:{port}", "GET", 200),  # behind a proxy that ends TLS
        *((f"Origin: {other}", "GET", 403) for other in ("http://127.0.0.1:3000", "https://evil.example", "null", "")),
        ("Origin: http://localhost:{port}", "GET", 403),
        (fetched("none", "navigate", "document"), "GET", 200),  # typed by the person
        (fetched("same-origin"), "GET", 200),  # our own page
        (fetched("cross-site", "navigate", "document"), "GET", 200),  # a link in a chat or a runbook
        (fetched("cross-site", "navigate", "document"), "POST", 403),
        (fetched("cross-site", "navigate", "iframe"), "GET", 403),
        (fetched("cross-site", "no-cors", "script"), "GET", 403),
        (fetched("cross-site"), "GET", 403),
        (fetched("same-site", "no-cors"), "GET", 403),  # another port of the same host
        (fetched("something-new"), "GET", 403),
    ],
)
async def test_answers_no_pages_of_other_origins(sent: str, method: str, status: int) -> None:
    async with admin() as port:
        more = sent.format(port=port.port) + "\r\n"
        found, _, body = await port.get("/quotas", method, more, host=f"127.0.0.1:{port.port}")
        assert found == status
        assert status == 200 or body == b"This admin port does not answer to pages of other origins.\n"
