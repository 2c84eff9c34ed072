"""Queries to the admin port of a running sidecar, from the command line."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from typing import Any

from config.visible import visible

ASK_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 32_000_000
REFUSALS = (403, 421)
"""With a sentence on why."""
MAX_REFUSAL_BYTES = 1000


def with_scheme(admin_url: str) -> str:
    """The URL of an admin port given as such or as host:port."""
    return f"http://{admin_url}" if re.fullmatch(r"[^/]+:\d+", admin_url) else admin_url


def get_json(
    admin_url: str,
    path: str,
    query: Mapping[str, str],
    expected: Collection[str],
    timeout_s: float = ASK_TIMEOUT_S,
) -> dict[str, Any]:
    """The JSON object that `path` answers, with the keys in `expected`. Raises OSError with one readable sentence."""
    admin_url = with_scheme(admin_url)
    url = f"{admin_url.rstrip('/')}{path}"
    if query:
        url += f"?{urllib.parse.urlencode(query)}"
    if not url.startswith(("http://", "https://")):
        raise OSError(f"{admin_url!r} is not a URL, expected something like http://127.0.0.1:9404")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
        if not isinstance(answer, dict) or not set(expected) <= answer.keys():
            raise ValueError("unexpected answer")
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(MAX_REFUSAL_BYTES).decode(errors="replace").strip() if error.code in REFUSALS else ""
            status = f"HTTP {error.code} {error.reason}".strip()
            raise OSError(f"{url}: {status}; {visible(said) or 'is this a kquota admin port?'}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            raise OSError(
                f"{admin_url}: cannot connect; is the sidecar running? Set --admin URL, "
                "KQUOTA_ADMIN or --pod NAMESPACE/NAME"
            ) from error
        raise OSError(f"{url}: {error.reason}") from error
    except ValueError as error:
        raise OSError(f"{url}: not a kquota admin port: {error}") from error
    return answer
