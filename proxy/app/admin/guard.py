"""Which requests the admin port answers. It has no login, and browsers can reach it: so only those for one of its own
host names (DNS rebinding), and none from a page of another origin."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from proxy.app.common.text import safe

log = structlog.get_logger("kquota.admin")

App = Callable[[Any, Any, Any], Awaitable[None]]

HEADERS: Final = {  # on every answer that does not set them itself
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
MISDIRECTED, FORBIDDEN = 421, 403
MAX_NAMES_LOGGED: Final = 20
SETTING: Final = "admin.allowed_hosts"
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+(?:%25[\w.~-]+)?\]|[a-z0-9_.-]+)(?::[0-9]{0,5})?", re.ASCII)
_CLUSTER: Final = re.compile(r"[^.]+(?:\.[^.]+){1,2}\.(?:svc|pod)(?:\.cluster\.local)?")
"""Suffixes that cluster DNS gives pods. Neither is a public domain, so attackers cannot register one."""


class Hosts:
    """The hosts that requests may be for. Addresses are always allowed: rebinding needs a name."""

    def __init__(self, listed: Iterable[str], own: Iterable[str] = ()) -> None:
        """`listed`: names, `*.suffix` or `*` for any; `own`: names of the pod."""
        names = [name.lower() for name in listed]
        self._any = "*" in names
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))
        self._own = {_plain(name) for name in own if name}
        self._names = {"localhost", *self._own, *names}

    def allow(self, host: str) -> bool:
        """Whether a request with this `Host`, which may contain a port, is answered."""
        if self._any:
            return True
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = _plain(found[1])
        return (
            _is_address(name.strip("[]").partition("%")[0])
            or name in self._names
            or name.endswith(self._suffixes)
            or self._in_cluster(name)
        )

    def _in_cluster(self, name: str) -> bool:
        """The pod by cluster DNS: its own name or its address with dashes, below a namespace or a headless Service."""
        first, _, rest = name.partition(".")
        if _CLUSTER.fullmatch("x." + rest) is None:
            return False
        return first in self._own or _is_address(first.replace("-", ".")) or _is_address(first.replace("-", ":"))


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")  # example.com. is the full form of example.com


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI app in front of the admin port's own."""

    def __init__(self, app: App, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts
        self._logged: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, or refuse."""

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        app = self._app if refusal is None else refusal
        await app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        for host in hosts:  # none: HTTP/1.0, which no browser speaks
            if not self._hosts.allow(host):
                if host not in self._logged and len(self._logged) < MAX_NAMES_LOGGED:
                    self._logged.add(host)
                    log.warning("admin request refused: host name not allowed", host=host, setting=SETTING)
                # The page that asks may be the attacker's, and can read this: it must contain nothing new to it.
                return PlainTextResponse(
                    f"This admin port does not accept requests for the host {safe(host)}: it accepts IP addresses, "
                    f"localhost and the pod's own names; add other names to {SETTING} in its configuration.\n",
                    MISDIRECTED,
                )
        if _from_elsewhere(method, hosts, headers):
            return PlainTextResponse("This admin port does not answer to pages of other origins.\n", FORBIDDEN)
        return None


def _from_elsewhere(method: str, hosts: Sequence[str], headers: Headers) -> bool:
    """Whether a browser says that a page of another origin sent the request. Following a link does not count."""
    origin = headers.get("origin")
    if origin is not None and [origin.lower().partition("://")[2]] != [host.lower() for host in hosts]:
        return True
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return not (link and method in ("GET", "HEAD"))
