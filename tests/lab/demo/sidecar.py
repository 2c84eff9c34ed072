"""The real sidecar, `kquota run`, as a child with its own configuration, and the answers of its admin port."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from quota.entity import Kind
from tests.lab.demo.children import start_python, until
from tests.lab.demo.errors import DemoError, tail
from tests.lab.demo.plan import DemoClient
from tests.lab.kafka.ports import free_port_run, free_ports

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0
"""It drains, and has several seconds for its usage records: if killed before, it would leave an open file."""
ASK_LIMIT_S = 1.0
BROKER_PORTS = 8
USAGE_INTERVAL_S = 2


@dataclass(frozen=True, slots=True)
class ClientView:
    """What a sidecar knows about one client."""

    throttles: int = 0
    held_ms: float = 0.0
    muted: bool = False
    share: float | None = None
    """The fraction of a fleet's limit that this sidecar may use."""


def kind_of(plan: DemoClient) -> str:
    """The kind of its byte quota, as /quotas names it."""
    return Kind.PRODUCE.value if plan.role == "producer" else Kind.FETCH.value


def configuration(
    plans: Sequence[DemoClient], upstream: Sequence[str], listen: int, admin: int, key: Path, usage: Path | None = None
) -> dict[str, Any]:
    """The configuration file's content: rewrite mode on 127.0.0.1, and one entry for each client-id with a limit."""
    quotas = {
        plan.client_id: {
            "client-id": plan.client_id,
            plan.quota_name: int(plan.limit),
            **({"scope": "fleet"} if plan.shared else {}),
        }
        for plan in plans
        if plan.limit
    }
    export = {} if usage is None else {"export": {"directory": str(usage.absolute()), "interval_s": USAGE_INTERVAL_S}}
    return {
        "mode": "rewrite",
        "listen": {"host": "127.0.0.1", "port": listen, "broker_ports": f"{listen + 1}-{listen + BROKER_PORTS}"},
        "upstream": {"bootstrap": list(upstream)},
        "quotas": list(quotas.values()),
        "fleet": {"id": "demo", "key_file": str(key)},
        "admin": {"host": "127.0.0.1", "port": admin},
        "drain_timeout_s": 1,
        **export,
    }


class DemoSidecar:
    """A running sidecar; `bootstrap` is what clients connect to, `admin` the URL of its admin port."""

    def __init__(
        self, number: int, plans: Sequence[DemoClient], upstream: Sequence[str], folder: Path, usage: Path | None
    ) -> None:
        """Start it in front of `upstream`; `folder` gets its configuration and log, `usage` its usage records."""
        self._plans = [plan for plan in plans if plan.sidecar == number]
        key = folder / "fleet-key"
        if not key.exists():  # the first one makes it
            key.write_text(secrets.token_urlsafe(32))
        folder = folder / f"sidecar-{number + 1}"
        folder.mkdir()
        listen, (self._admin,) = free_port_run(1 + BROKER_PORTS), free_ports(1)
        self.admin = f"http://127.0.0.1:{self._admin}"
        self.bootstrap = f"127.0.0.1:{listen}"
        config = folder / "kquota.yaml"
        content = configuration(plans, upstream, listen, self._admin, key, usage)
        config.write_text(yaml.safe_dump(content, sort_keys=False))
        self._log = folder / "kquota.log"
        self._process = start_python(
            "proxy.app.cli.main", "run", "--config", str(config), log=self._log, talk=False, orphan_dir=folder
        )

    def wait_until_ready(self) -> None:
        """Wait until it serves."""
        if not until(READY_LIMIT_S, self._ready):
            raise DemoError(
                f"the sidecar is not ready after {READY_LIMIT_S:.0f} s" + tail("the end of its log", self._log)
            )

    def look(self) -> dict[str, ClientView]:
        """The state from /quotas and /connections, by the client's name; empty when the sidecar is too busy to answer.

        Raises:
            DemoError: it has ended.
        """
        self._check()
        quotas, connections = self._ask("/quotas"), self._ask("/connections")
        if quotas is None or connections is None:
            return {}
        muted = {name for one in connections["connections"] if one["muted_for_ms"] > 0 for name in one["client_ids"]}
        groups = {(group["client_id"], group["kind"]): group for group in quotas["groups"]}
        return {
            plan.name: ClientView(
                group["totals"]["throttled"],
                group["totals"]["throttle_ms"],
                plan.client_id in muted,
                None if group["fleet"] is None else group["fleet"]["share"],
            )
            for plan in self._plans
            if (group := groups.get((plan.client_id, kind_of(plan)))) is not None
        }

    def stop(self) -> None:
        """Let it drain, then stop it, by SIGKILL if need be."""
        self._process.stop(STOP_LIMIT_S)

    def _ready(self) -> bool:
        self._check()
        return self._ask("/readyz") is not None

    def _check(self) -> None:
        if (code := self._process.poll()) is not None:
            raise DemoError(f"the sidecar ended with exit code {code}" + tail("the end of its log", self._log))

    def _ask(self, path: str) -> Any:
        """The JSON answer of the admin port; None for no answer or another status than 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._admin, timeout=ASK_LIMIT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            return json.loads(body) if response.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
