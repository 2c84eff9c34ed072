"""Queries to the admin port of a running sidecar, from the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final

import trio

from config.visible import visible

ASK_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 32_000_000
REFUSALS = (403, 421)
"""With a sentence on why."""
MAX_REFUSAL_BYTES = 1000
START_TIMEOUT_S: Final = 20.0
ADMIN_PORT: Final = 9404
_POD: Final = re.compile(
    r"(?:(?P<namespace>[a-z0-9][a-z0-9-]*)/)?(?P<name>[a-z0-9][a-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?"
)
_KLOG: Final = re.compile(r"[EFIW][0-9]{4} [0-9:.]+ ")
"""Begins a line of kubectl's own log, which it writes before its error."""
_SERVING: Final = re.compile(r"(?:Forwarding from|Starting to serve on) 127\.0\.0\.1:([0-9]+)\b")


def with_scheme(admin_url: str) -> str:
    """The URL of an admin port given as such or as host:port."""
    return f"http://{admin_url}" if re.fullmatch(r"[^/]+:\d+/?", admin_url) else admin_url


def get_json(
    admin_url: str,
    path: str,
    query: Mapping[str, str],
    timeout_s: float = ASK_TIMEOUT_S,
    of: str = "a kquota admin port",
) -> Any:
    """The JSON that `path` answers, which :func:`understood` must guard; `of`: what is asked. Raises OSError."""
    admin_url = with_scheme(admin_url)
    url = f"{admin_url.rstrip('/')}{path}"
    if query:
        url += f"?{urllib.parse.urlencode(query)}"
    if not re.fullmatch(r"https?://[^\s/]\S*", url):
        raise OSError(f"{admin_url!r} is not a URL, expected something like http://127.0.0.1:9404")

    async def get() -> tuple[int, str, bytes]:
        with trio.fail_after(timeout_s):
            return await trio.to_thread.run_sync(_get, url, timeout_s, abandon_on_cancel=True)

    try:
        status, reason, body = trio.run(get)
        answer = json.loads(body) if status == 200 else None
    except (trio.TooSlowError, TimeoutError) as error:
        raise OSError(f"{url}: no complete answer within {timeout_s:.0f} s") from error
    except (ValueError, RecursionError, HTTPException) as error:
        raise OSError(f"{url}: not {of}: {visible(str(error).strip()) or 'no HTTP'}") from error
    except ConnectionRefusedError as error:
        hint = "is the sidecar running? Set --admin URL, KQUOTA_ADMIN or --pod NAMESPACE/NAME"
        raise OSError(f"{admin_url.rstrip('/')}: cannot connect; {hint}") from error
    except OSError as error:
        raise OSError(f"{url}: {error}") from error
    if answer is None:
        output = body[:MAX_REFUSAL_BYTES].decode(errors="replace") if status in REFUSALS else ""
        status_line = visible(f"HTTP {status} {reason}".strip())
        raise OSError(f"{url}: {status_line}; {visible(output.strip()) or f'is this {of}?'}")
    return answer


def _get(url: str, timeout_s: float) -> tuple[int, str, bytes]:
    """The answer to GET: status, reason and body; may take longer. Raises OSError, ValueError and HTTPException."""
    parts = urllib.parse.urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request("GET", target, headers={"Connection": "close"})
        with connection.getresponse() as answer:
            body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return answer.status, answer.reason, body


@contextmanager
def understood(admin_url: str) -> Iterator[None]:
    """Meanwhile, an answer from there is used, which may be that of another program or version. Raises OSError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = visible(f"{type(error).__name__}: {error}")
        raise OSError(f"{admin_url}: unexpected answer ({why}); does it run the same kquota version?") from error


@contextmanager
def forwarded(pod: str) -> Iterator[str]:
    """Where the admin port of `pod` (NAMESPACE/NAME, NAME, with :PORT unless 9404) answers now. Raises OSError."""
    found = _POD.fullmatch(pod)
    if found is None:
        raise OSError(f"--pod {visible(pod)!r}: expected NAMESPACE/NAME or NAME, such as shop/orders-7c9d8f6b5-x2x7p")
    namespace = () if found["namespace"] is None else ("--namespace", found["namespace"])
    arguments = ["port-forward", *namespace, f"pod/{found['name']}", f":{found['port'] or ADMIN_PORT}"]
    with _kubectl("--pod", arguments) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def proxied(namespace: str) -> Iterator[str]:
    """The URL at which the API server answers meanwhile, to reading pods of `namespace` alone. Raises OSError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", namespace):
        raise OSError(f"--namespace {visible(namespace)!r}: expected a namespace's name, such as shop")
    # No logs or forwarded ports: the page of any of these pods may use what this computer's browser can reach.
    paths = f"^/api/v1/namespaces/{namespace}/pods($|/[^/]+:[0-9]+/proxy/)"
    arguments = ["proxy", "--port=0", f"--accept-paths={paths}", "--reject-methods=^(POST|PUT|PATCH|DELETE)$"]
    with _kubectl("--namespace", arguments) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _kubectl(option: str, arguments: list[str]) -> Iterator[int]:
    program = shutil.which("kubectl")
    if program is None:
        raise OSError(
            f"{option} needs kubectl, which is not on the PATH; on a machine with kubectl run "
            f"`kubectl {' '.join(arguments)}` and give the port that it prints as --admin http://127.0.0.1:PORT"
        )
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield _port(process, " ".join(arguments))
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str], arguments: str) -> int:
    """The local port that kubectl has chosen, once it prints it. Its further output is read and ignored."""
    assert process.stdout is not None
    output: list[str] = []
    too_late = threading.Timer(START_TIMEOUT_S, process.kill)
    too_late.start()
    try:
        for line in process.stdout:
            if port := _SERVING.match(line):
                threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
                return int(port[1])
            if not _KLOG.match(line):
                output.append(line.strip())
    finally:
        too_late.cancel()
    reason = visible(" ".join(output)) or f"it exited, or printed no local port within {START_TIMEOUT_S:.0f} s"
    raise OSError(f"kubectl {arguments}: {reason}")
