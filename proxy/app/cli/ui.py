"""`kquota ui`: the admin port's page for many sidecars, from their `/snapshot`. Only this computer can open it."""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.kubernetes.review import PORT_NAME
from proxy.app.admin import ui
from proxy.app.admin.explain import MAX_DECISIONS, Moment
from proxy.app.admin.guard import Guard, Hosts
from proxy.app.admin.server import AdminServer
from proxy.app.cli.admin_client import get_json, understood
from proxy.app.common.text import ascii_json, say
from proxy.net.listen.listeners import bind

API_SERVER: Final = "the API server of your kubectl context"
ANSWER_TIMEOUT_S: Final = 4.0
"""For a sidecar's answer."""
PAGE_TIMEOUT_S: Final = 7.0
"""For all of them: the page waits 8 s (app.js)."""
ASKED_AT_ONCE: Final = 20
ROWS: Final = 200
LISTS: Final = {"quotas": "groups", "throttled": "throttled", "connections": "connections"}


@dataclass(frozen=True, slots=True)
class Place:
    """A sidecar: a pod's name, and where its admin port answers."""

    pod: str
    url: str


def places_of(proxy: str, namespace: str, selector: str) -> list[Place]:
    """The running pods with a kquota container, by the API server behind `proxy` (`kubectl proxy`). Raises OSError."""
    root = f"/api/v1/namespaces/{namespace}/pods"
    query = {"labelSelector": selector, "fieldSelector": "status.phase=Running"}
    found = []
    for pod in get_json(proxy, root, query, of=API_SERVER).get("items", ()):
        name, spec = pod["metadata"]["name"], pod["spec"]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            ports = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
            if container["name"] == "kquota" and PORT_NAME in ports:
                found.append(Place(name, f"{proxy}{root}/{name}:{ports[PORT_NAME]}/proxy"))
    return found


def joined(title: str, answers: Sequence[tuple[Place, dict[str, Any] | OSError]]) -> dict[str, Any]:
    """One snapshot of all: rows with their pod, the most urgent first; `sidecars` has a row for each place."""
    known = [(place, answer) for place, answer in answers if not isinstance(answer, OSError)]
    most_urgent: dict[str, Callable[[dict[str, Any]], Any]] = {
        "quotas": lambda row: (row["limit"] is not None, row["delayed"] is not None, float(row["utilisation"] or 0)),
        "throttled": lambda row: (float(row["now"]["muted_ms"]), float(row["now"]["wait_ms"])),
        "connections": lambda row: max(float(row["muted_for_ms"]), float(row["waited_ms"])),
    }
    whole: dict[str, Any] = {}
    for name, rows in LISTS.items():
        every = [row | {"pod": place.pod, "url": place.url} for place, one in known for row in one[name][rows]]
        every.sort(key=most_urgent[name], reverse=True)
        whole[name] = {rows: every[:ROWS], "total": sum(one[name]["total"] for _, one in known)}
    whole["throttled"]["decisions"] = sorted(
        (row | {"pod": place.pod, "url": place.url} for place, one in known for row in one["throttled"]["decisions"]),
        key=lambda row: str(row["at"]),
        reverse=True,
    )[:MAX_DECISIONS]
    states: Counter[str] = Counter()
    for _, one in known:
        states.update({state: int(count) for state, count in one["connections"]["states"].items()})
    whole["connections"] |= {"shown": len(whole["connections"]["connections"]), "states": states}
    libraries = _libraries(row for _, one in known for row in one["libraries"]["libraries"])
    whole["libraries"] = {"libraries": libraries, "total": len(libraries), "shown": len(libraries)}
    sidecars = [_sidecar(place, answer) for place, answer in answers]
    sidecars.sort(key=lambda one: (one["error"] is None, not one["not_ready"], -one.get("throttled", 0), one["pod"]))
    return {"at": Moment(0.0, time.time()).iso(), "title": title, "sidecars": sidecars, **whole}


def _sidecar(place: Place, answer: dict[str, Any] | OSError) -> dict[str, Any]:
    row: dict[str, Any] = {"pod": place.pod, "url": place.url, "error": None, "not_ready": []}
    if isinstance(answer, OSError):
        return row | {"error": str(answer)}
    return row | {
        "not_ready": [str(reason) for reason in answer["not_ready"]],
        "throttled": answer["throttled"]["total"],
        "connections": answer["connections"]["total"],
        "muted": answer["connections"]["states"].get("muted", 0),
        "version": answer["sidecar"].get("version"),
        "config_loaded": answer["sidecar"].get("config_loaded"),
    }


def _libraries(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        sums = found.setdefault((row["library"], row["version"]), Counter())
        sums.update({name: float(row[name]) for name in ("mutes", "mute_ms", "ignored", "ignored_ms")})
    every = [{"library": library, "version": version, **sums} for (library, version), sums in found.items()]
    return sorted(every, key=lambda one: (one["ignored_ms"], one["mute_ms"]), reverse=True)


def _json(value: dict[str, Any], status: int = 200) -> Response:
    # Texts of other programs may be no UTF-8; no browser reads NaN.
    return Response(ascii_json(value, allow_nan=False), status, media_type="application/json")


def serve(title: str, places: Callable[[], list[Place]], port: int) -> None:
    """Serve the page on this port of the loopback until a signal; `places()` is asked each time. Raises OSError."""

    def ask(place: Place) -> dict[str, Any] | OSError:
        try:
            answer: dict[str, Any] = get_json(place.url, "/snapshot", {"limit": str(ROWS)}, ANSWER_TIMEOUT_S)
            with understood(place.url):  # what cannot be shown alone hides no others
                _json(joined(title, [(place, answer)]))
            return answer
        except OSError as error:
            return error

    async def snapshot(request: Request) -> Response:
        answers: list[tuple[Place, dict[str, Any] | OSError]] = []
        several = trio.CapacityLimiter(ASKED_AT_ONCE)

        async def add(place: Place) -> None:
            answer: dict[str, Any] | OSError = TimeoutError(f"{place.url}: no answer")
            with trio.move_on_after(PAGE_TIMEOUT_S):
                answer = await trio.to_thread.run_sync(ask, place, limiter=several, abandon_on_cancel=True)
            answers.append((place, answer))

        try:
            found = await trio.to_thread.run_sync(places, abandon_on_cancel=True)
        except OSError as error:
            return _json({"error": str(error)}, 502)
        async with trio.open_nursery() as nursery:
            for place in found:
                nursery.start_soon(add, place)
        return _json(joined(title, answers))

    async def until_signal(listener: socket.socket) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(AdminServer(listener, Guard(pages, Hosts([]))).serve)
                say(f"{title}: http://127.0.0.1:{listener.getsockname()[1]}/ui/ (Ctrl-C ends)")
                await anext(signals)
                nursery.cancel_scope.cancel()

    pages = Starlette(routes=[Route("/", ui.TO_PAGE, methods=["GET"]), Route("/snapshot", snapshot), *ui.ROUTES])
    trio.run(until_signal, bind("127.0.0.1", port))
