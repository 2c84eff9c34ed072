"""A real balancer before a sidecar: HAProxy, on the sidecar's ports at another address of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.lab.kafka import GuardedProcess
from tests.support.programs import program
from tests.support.sidecars import Sidecar
from tests.support.waiting import listens, until

ADDRESS = "127.0.0.9"
"""Where it listens, and where it connects from."""


@contextmanager
def haproxy(running: Sidecar, header: str, *others: Sidecar) -> Iterator[str]:
    """Its bootstrap address; `header` is `send-proxy` or `send-proxy-v2`."""
    sections = [yaml.safe_load(one.config.read_text())["listen"] for one in (running, *others)]
    (port, ports), *_ = {(listen["port"], listen["broker_ports"]) for listen in sections}
    hosts = [listen["host"] for listen in sections]
    checked = "".join(f"    server kquota{n} {host}:{port} check-send-proxy\n" for n, host in enumerate(hosts))
    bare = "".join(f"    server kquota{n} {host} port {port} no-check-send-proxy\n" for n, host in enumerate(hosts))
    with TemporaryDirectory(prefix="kquota-haproxy-") as directory:
        file = Path(directory, "haproxy.cfg")
        file.write_text(f"""
global
    nbthread 1
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    source {ADDRESS}
    default-server {header} check inter 100ms fall 1 rise 1
    balance first
    option redispatch 1
listen bootstrap
    bind {ADDRESS}:{port}
{checked}
listen brokers
    bind {ADDRESS}:{ports}
{bare}
""")
        command = [program("haproxy", "haproxy"), "-db", "-f", str(file)]
        with Path(directory, "log").open("w") as log:
            process = GuardedProcess(command, stdout=log, stderr=log)
        try:
            until(lambda: listens(ADDRESS, port) or process.poll() is not None)
            assert process.poll() is None, Path(directory, "log").read_text()
            yield f"{ADDRESS}:{port}"
        finally:
            process.kill()
            process.wait()
