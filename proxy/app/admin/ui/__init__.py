"""The page on the admin port: `/ui`. All names, which come from clients, are text; browsers run our files only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "cache-control": "no-cache",
}
FILES: Final = {
    f"/ui/{path.name}": Response(path.read_bytes(), 200, HEADERS, TYPES[path.suffix])
    for path in sorted(FOLDER.iterdir())
}
"""Read once: a few small files, and no path from a request is ever opened."""
TO_PAGE: Final = RedirectResponse("ui/", 307)  # relative: also right behind `kubectl proxy`
ROUTES: Final = [
    Route(path, answer, methods=["GET"])
    for path, answer in {"/ui": TO_PAGE, "/ui/": FILES["/ui/index.html"], **FILES}.items()
]
