"""The admin port: metrics, probes, lists, explanations and the page, in small steps: it shares the traffic's loop."""

from __future__ import annotations

import gzip
import heapq
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from proxy.app.admin import ui
from proxy.app.admin.explain import (
    Moment,
    addresses_of,
    explanation_json,
    fleet_json,
    identity_of_connections,
    throttled_json,
    throttled_row,
    trial_json,
)
from proxy.app.admin.explain_text import explanation_panel, explanation_text
from proxy.app.admin.guard import Guard, Hosts
from proxy.app.admin.history import History
from proxy.app.common.checkpoints import with_checkpoints
from proxy.app.common.text import ascii_json
from proxy.app.common.top_k import Largest
from proxy.app.metrics.gather import CONTENT_TYPE, Exposition
from proxy.app.sources.quota_source import QuotaSource
from proxy.core.telemetry.observer import ConnectionInfo
from proxy.net.listen.server import Proxy
from quota.connections import canonical_address
from quota.counter import QuotaCounter
from quota.ledger import Ledger

LEAST_ZIPPED: Final = 16_384
"""Bytes of metrics from which on they are compressed for a scraper that asks."""
ROWS: Final = 1000
MAX_ROWS: Final = 10_000
ROWS_IN_A_PIECE: Final = 100
MOST_LIST_BYTES: Final = 8_000_000
"""Of a list. 10 000 rows have 4 MB, eight times as much with the longest names; `kquota top` takes 32 MB."""
MOST_UNREAD_BYTES: Final = 32_000_000
"""Of all lists that are being sent: readers may be slow on purpose."""
T = TypeVar("T")


def _takes_gzip(accepted: str) -> bool:
    """Whether the header Accept-Encoding names gzip, and not with weight 0."""
    for one in accepted.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def not_ready(proxy: Proxy, quotas: QuotaSource) -> list[str]:
    """Why the sidecar is not ready; empty when it is."""
    if proxy.state in ("draining", "stopped"):
        return [f"the sidecar is {proxy.state}"]
    reasons = []
    if proxy.state == "starting":
        reasons.append("the listener is not bound")
    if proxy.full is not None:
        reasons.append(proxy.full)
    if not proxy.cluster.reached:
        reasons.append(f"cannot reach the Kafka cluster: {proxy.cluster.last_error or 'no answer yet'}")
    if quotas.not_ready is not None:
        reasons.append(quotas.not_ready)
    return reasons


@dataclass(eq=False)
class AdminApp:
    """The HTTP endpoints."""

    ledger: Ledger
    proxy: Proxy
    metrics: Exposition
    now_ms: Callable[[], float]
    source: QuotaSource
    history: History
    hosts: Hosts
    about: Callable[[], dict[str, Any]]
    """Which sidecar this is, for the page."""

    def __post_init__(self) -> None:
        self._heavy = trio.Lock()  # one long list at a time
        self._unread = _Unread(self.metrics)
        endpoints: dict[str, Callable[..., Awaitable[Any]]] = {
            "/metrics": self._serve_metrics,
            "/healthz": PlainTextResponse("ok\n"),
            "/readyz": self._readyz,
            "/brokers": self._list(self._brokers),
            "/quotas": self._list(self._quotas),
            "/throttled": self._list(self._throttled),
            "/explain": self._explain,
            "/connections": self._list(self._connections),
            "/libraries": self._list(self._libraries),
            "/snapshot": self._list(self._snapshot),
            "/history": self._history_route,
        }
        endpoints["/"] = PlainTextResponse("\n  ".join(["kquota", *endpoints, "/ui\n"]))
        routes = [Route(path, serve, methods=["GET"]) for path, serve in endpoints.items()]
        self.asgi = Guard(Starlette(routes=[*routes, *ui.ROUTES]), self.hosts)

    async def _serve_metrics(self, request: Request) -> Response:
        text = await self.metrics.text(self.now_ms())
        headers = {"content-type": CONTENT_TYPE, "vary": "accept-encoding"}
        if len(text) >= LEAST_ZIPPED and _takes_gzip(request.headers.get("accept-encoding", "")):
            headers["content-encoding"] = "gzip"
            text = await trio.to_thread.run_sync(gzip.compress, text, 1)
        return Response(text, headers=headers)

    async def _readyz(self, request: Request) -> Response:
        reasons = not_ready(self.proxy, self.source)
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    def _moment(self) -> Moment:
        return Moment(self.now_ms(), time.time(), self.history)

    def _list(self, make: Callable[[int, Moment], Awaitable[list[bytes]]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint whose answer `make(most rows, moment)` puts together, in pieces."""

        async def serve(request: Request) -> Response:
            most = ROWS
            with suppress(ValueError):
                most = min(max(int(request.query_params.get("limit", ROWS)), 0), MAX_ROWS)
            async with self._heavy:
                return _Pieces(await make(most, self._moment()), self._unread)

        return serve

    async def _brokers(self, most: int, at: Moment) -> list[bytes]:
        names, brokers = ("id", "host", "port", "local_port"), self.proxy.cluster.all()
        rows = [_row(dict(zip(names, one, strict=True))) async for one in self._steps("/brokers", brokers)]
        return _listed("brokers", rows, {"total": len(rows)})

    async def _snapshot(self, most: int, at: Moment) -> list[bytes]:
        head = {"at": at.iso(), "sidecar": self.about(), "not_ready": not_ready(self.proxy, self.source)}
        pieces = [_row(head)[:-1]]
        lists = {
            b"quotas": self._quotas,
            b"throttled": self._throttled,
            b"connections": self._connections,
            b"libraries": self._libraries,
        }
        for name, make in lists.items():
            pieces += [b',"%b":' % name, *await make(most, at)]
        return [*pieces, b"}"]

    async def _throttled(self, most: int, at: Moment) -> list[bytes]:
        now = int(at.now_ms)
        largest: Largest[QuotaCounter] = Largest(most)
        async for group in self._steps("/throttled", self.ledger.groups()):
            until = max(group.throttled_until, now + group.owed_ms(now))
            if (until > now or group.waiting or at.delayed(group)) and not group.shadow:
                largest.add((max(until, now + group.line(now).newcomer_ms),), group)
        rows = [
            _row(throttled_row(group, self.ledger, at, self.source.origin))
            async for group in self._steps("/throttled", largest.items())
        ]
        return _listed("throttled", rows[::-1], throttled_json(self.ledger, at) | {"total": largest.seen})

    async def _explain(self, request: Request) -> Response:
        """One client. A user that is not given is the one that connections get."""
        query = request.query_params
        given = self.proxy.given_user
        user, client_id = query.get("user") or given[0], query.get("client_id", "")
        address = query.get("ip")
        try:
            addresses = [] if address is None else [canonical_address(address)]
        except ValueError as error:
            return _json({"error": str(error)}, status=400)
        async with self._heavy:
            connections = self._steps("/explain", self.proxy.each_connection())
            mine = [one async for one in connections if one.user == user]
            identity = identity_of_connections(mine, user, client_id, given)
            at = self._moment()
            addresses = addresses or addresses_of(identity["peers"])
            answer = explanation_json(
                self.ledger, user, client_id, identity=identity, at=at, addresses=addresses, origin=self.source.origin
            )
        shape = query.get("format")
        if shape == "text":
            return PlainTextResponse(explanation_text(answer))
        return _json(explanation_panel(answer) if shape == "panel" else answer)

    async def _history_route(self, request: Request) -> Response:
        return _json(self.history.as_json(self.now_ms()))

    async def _quotas(self, most: int, at: Moment) -> list[bytes]:
        now = int(at.now_ms)
        largest: Largest[QuotaCounter] = Largest(most)
        async for group in self._steps("/quotas", self.ledger.groups()):
            used = group.utilisation(now)
            largest.add((-1.0 if used is None else used,), group)
        groups = self._steps("/quotas", largest.items())
        rows = [_row(_group_json(self.ledger, group, at)) async for group in groups]
        return _listed("groups", rows[::-1], {"total": largest.seen})

    async def _connections(self, most: int, at: Moment) -> list[bytes]:
        largest: Largest[ConnectionInfo] = Largest(most)
        states: Counter[str] = Counter()
        async for one in self._steps("/connections", self.proxy.each_connection()):
            states[one.state] += 1
            largest.add((max(one.muted_for_ms, one.waited_ms), one.client_bytes + one.broker_bytes), one)
        rows = [_row(_connection_json(one)) async for one in self._steps("/connections", largest.items())]
        return _listed("connections", rows[::-1], {"total": largest.seen, "states": states})

    def _steps(self, what: str, items: Iterable[T]) -> AsyncIterator[T]:
        return with_checkpoints(items, what, self.metrics.long_turns)

    async def _libraries(self, most: int, at: Moment) -> list[bytes]:
        found = list(self.metrics.libraries)  # at most MAX_LIBRARIES
        best = heapq.nlargest(most, found, key=lambda one: (one.ignored_ms, one.mute_ms))
        rows = [_row({name: getattr(one, name) for name in one.__slots__}) for one in best]
        return _listed("libraries", rows, {"total": len(found)})


def _group_json(ledger: Ledger, group: QuotaCounter, at: Moment) -> dict[str, Any]:
    now = int(at.now_ms)
    user, client_id = group.key
    usage = group.usage
    return {
        "kind": group.kind.value,
        "user": user,
        "client_id": client_id,
        "limit": group.limit,
        "level": None if group.level is None else group.level.label,
        "mode": None if group.entry is None else group.entry.mode,
        "observed": group.observed(now),
        "utilisation": group.utilisation(now),
        "throttled_for_ms": max(group.throttled_until - now, 0),
        "owed_ms": group.owed_ms(now),
        "delayed": at.delayed(group),
        "waiting": group.waiting,
        "paced": group.paced,
        "next_ms": group.line(now).next_ms,
        "fleet": fleet_json(ledger, group),
        "totals": {
            "amount": usage.amount,
            "charges": usage.charges,
            "throttled": usage.throttled,
            "throttle_ms": usage.throttle_ms,
            "held": usage.queued,
            "held_ms": usage.queued_ms,
            "capped": group.capped,
        },
        "shadow": trial_json(group, group.shadowed, now, "utilisation"),
        "candidate": trial_json(group, group.candidate, now, "utilisation"),
    }


def _connection_json(one: ConnectionInfo) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__ if name != "unmuted"} | {"state": one.state}


def _json(value: Any, status: int = 200) -> Response:
    return Response(_row(value) + b"\n", status, {"cache-control": "no-store"}, "application/json")


def _row(value: Any) -> bytes:
    # names come from the wire and may hold lone surrogates: ASCII escapes carry them, UTF-8 could not
    return ascii_json(value, separators=(",", ":")).encode()


def _listed(name: str, rows: list[bytes], rest: dict[str, Any]) -> list[bytes]:
    """The pieces of `{name: rows, **rest}` in JSON; other tasks run between two of them. The last rows are left out if
    all are too long: clients choose the names in them."""
    shown = bisect_right(list(accumulate(map(len, rows))), MOST_LIST_BYTES)
    pieces = [b'{"%b":[' % name.encode()]
    for start in range(0, shown, ROWS_IN_A_PIECE):
        pieces.append((b"," if start else b"") + b",".join(rows[start : min(start + ROWS_IN_A_PIECE, shown)]))
    return [*pieces, b"]," + _row({**rest, "shown": shown})[1:] + b"\n"]


class _Unread:
    """Bounds the memory of lists whose readers are slow: the oldest ends for the newest."""

    def __init__(self, metrics: Exposition) -> None:
        self._metrics = metrics
        self._sizes: dict[trio.CancelScope, int] = {}

    @contextmanager
    def sending(self, size_bytes: int) -> Iterator[None]:
        """While a list of this size is sent. Raises BrokenResourceError if it ends before."""
        while self._sizes and sum(self._sizes.values()) + size_bytes > MOST_UNREAD_BYTES:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            oldest.cancel()
            self._metrics.admin_evicted += 1
        with trio.CancelScope() as scope:
            self._sizes[scope] = size_bytes
            try:
                yield
            finally:
                self._sizes.pop(scope, None)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError


class _Pieces(Response):
    def __init__(self, pieces: list[bytes], unread: _Unread) -> None:
        self._pieces = pieces
        self._unread = unread
        self._size_bytes = sum(map(len, pieces))
        headers = {"cache-control": "no-store", "content-length": str(self._size_bytes)}
        super().__init__(None, 200, headers, "application/json")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._unread.sending(self._size_bytes):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await trio.lowlevel.checkpoint()
            await send({"type": "http.response.body", "body": b""})
