"""Does a sidecar serve Kafka clients? `python -m proxy.app.cli.smoke`, for `helm test`: every broker address that it
reports must be one of its own ports and answer. Before that /readyz and /metrics, if the admin port is given. Where
clients log in or use TLS, it has none of their secrets: brokers that want a login and a TLS handshake are enough."""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from config.types import HOST_PORT, PORT_RANGE, HostPort, Value
from proxy.app.common.text import say
from proxy.net.upstream.cluster import Access, ClusterError, LoginWantedError, ask_brokers

ATTEMPT_TIMEOUT_S = 5.0
PAUSE_S = 1.0


def check_brokers(bootstrap: HostPort, ports: range) -> str:
    """Every broker address that the sidecar reports leads back to the sidecar, and answers. Raises OSError."""
    try:
        brokers = _brokers(bootstrap)
        shown = ", ".join(str(broker) for broker in brokers if broker.port not in ports)
        if shown:
            raise OSError(f"clients bypass the sidecar: they get {shown}, expected ports {ports.start}-{ports[-1]}")
        for broker in brokers:
            _brokers(broker)
    except LoginWantedError:
        return f"a broker answers behind {bootstrap} but requires a login: broker addresses were not checked"
    except ClusterError as error:
        raise OSError(str(error)) from error
    return f"{len(brokers)} brokers, each behind a port of the sidecar"


def _brokers(address: HostPort) -> list[HostPort]:
    return [HostPort(one.host, one.port) for one in trio.run(ask_brokers, *address, Access(ATTEMPT_TIMEOUT_S)).brokers]


def check_tls(bootstrap: HostPort) -> str:
    """Clients can begin TLS, with whichever certificate. Raises OSError."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(bootstrap, ATTEMPT_TIMEOUT_S) as opened:
            context.wrap_socket(opened, server_hostname=bootstrap.host).close()
    except OSError as error:
        raise OSError(f"{bootstrap}: TLS failed: {error}") from error
    return f"{bootstrap} answers with TLS: the addresses of brokers are not checked"


def check_admin(url: str) -> str:
    """The sidecar is ready and serves its metrics. Raises OSError."""
    try:
        for path, expected in (("readyz", b""), ("metrics", b"kquota_")):
            with urllib.request.urlopen(f"{url}/{path}", timeout=ATTEMPT_TIMEOUT_S) as answer:
                if expected not in answer.read():
                    raise OSError(f"/{path} has no kquota metrics")
    except OSError as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        raise OSError(f"{url}: {error} {detail}".strip()) from error
    return f"ready, with metrics at {url}/metrics"


def insist(check: Callable[[], str], limit_s: float) -> str:
    """Try until it works or the time is over; then raise the last error."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return check()
        except OSError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)


def _argument(kind: Value) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind.check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"got {text}, {error}") from None

    return read


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 on success, otherwise 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m proxy.app.cli.smoke", description=__doc__)
    address, ports = _argument(HOST_PORT), _argument(PORT_RANGE)
    parser.add_argument("--bootstrap", required=True, type=address, metavar="HOST:PORT", help="where clients connect")
    parser.add_argument(
        "--broker-ports", required=True, type=ports, metavar="FIRST-LAST", help="the sidecar's ports for brokers"
    )
    parser.add_argument("--admin", metavar="URL", help="the admin port, checked first")
    parser.add_argument("--tls", action="store_true", help="clients connect with TLS")
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds until giving up")
    given = parser.parse_args(arguments)
    try:
        if given.admin is not None:
            say(insist(partial(check_admin, given.admin), given.limit_s))
        check = check_tls if given.tls else partial(check_brokers, ports=given.broker_ports)
        say(insist(partial(check, given.bootstrap), given.limit_s))
    except OSError as error:
        say(f"error: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
