"""The page on the admin port: `/ui`. All names, which come from clients, are text; browsers run our files only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
FILES: Final = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in sorted(FOLDER.iterdir())}
"""Read once: a few small files, and no path from a request is ever opened."""
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "cache-control": "no-cache",
}


async def to_folder(request: Request) -> Response:
    """Leads to the page."""
    return RedirectResponse("ui/", 307)  # relative: also right behind `kubectl proxy`


async def _serve(request: Request) -> Response:
    found = FILES.get(request.path_params.get("name") or "index.html")
    if found is None:
        return Response("not found\n", 404, media_type="text/plain")
    return Response(found[0], 200, HEADERS, found[1])


ROUTES: Final = [Route("/ui", to_folder), Route("/ui/", _serve), Route("/ui/{name}", _serve)]
