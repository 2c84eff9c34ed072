"""What commands ask a cluster for: its quotas as entries (`kquota import kafka`), its brokers (`check --connect`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import trio

from config.load import ON_PAPER, load_limits
from config.model import Config
from config.problems import ConfigError
from config.types import DEFAULT_WORD, HostPort
from config.units import as_written
from proxy.app.common.text import columns
from proxy.app.sources.security import load_security
from proxy.core.wire.apis import FETCH, PRODUCE
from proxy.core.wire.responses import NodeAddress
from proxy.core.wire.schema import API_NAMES
from proxy.net.listen.addresses import own_ports
from proxy.net.upstream.cluster import (
    Access,
    ClusterError,
    LoginWantedError,
    ask_brokers,
    ask_quotas,
    ask_versions,
    first_answer,
)
from quota.admin import Entity, Quotas, canonical, entity_text


def entries_of_cluster(config: Config) -> tuple[list[dict[str, Any]], list[str]]:
    """Quota entries of a cluster, by the first broker that answers, and what none can express. Raises OSError."""
    ask = partial(ask_quotas, access=_access(config))
    try:
        return cluster_entries(trio.run(first_answer, config.upstream.bootstrap, ask)[1])
    except ClusterError as error:
        raise OSError(str(error)) from error


def cluster_entries(quotas: Quotas) -> tuple[list[dict[str, Any]], list[str]]:
    """Quota entries for a cluster's quotas, and in words what no entry can express."""
    entries: list[dict[str, Any]] = []
    left: list[str] = []
    known: set[Entity] = set()
    for entity, limits in quotas.items():
        names = {kind: DEFAULT_WORD if name is None else name for kind, name in entity}
        if any(name == DEFAULT_WORD for _, name in entity):
            left.append(f"{entity_text(entity)}: a name {DEFAULT_WORD} cannot be distinguished from the default")
            continue
        whole = {key: as_written(value) for key, value in limits.items()}
        try:
            load_limits(names | whole, entity_text(entity))
        except ConfigError as error:
            left += [f"{entity_text(entity)}: {problem.place}: {problem.expected}" for problem in error.problems]
            continue
        if canonical(entity) in known:
            left.append(f"{entity_text(entity)}: another spelling of an address that has an entry")
            continue
        known.add(canonical(entity))
        entries.append(names | whole)
    return entries, left


def connection_json(config: Config) -> dict[str, Any]:
    """What the cluster answers, for `kquota check --connect`: each bootstrap address, the brokers, and what clients get
    instead. `ok`: all of them answered. Raises OSError with one readable sentence."""
    return trio.run(_connect, config)


async def _connect(config: Config) -> dict[str, Any]:
    access = _access(config)
    if not config.upstream.bootstrap or str(config.upstream.bootstrap[0]) == ON_PAPER:
        raise OSError("upstream.bootstrap names no broker to ask")
    bootstrap: list[dict[str, Any]] = []
    known: dict[int, NodeAddress] = {}
    login_wanted = False
    for host, port in config.upstream.bootstrap:
        found: dict[str, Any] = {"address": f"{host}:{port}", "brokers": None, "error": None}
        try:
            brokers = (await ask_brokers(host, port, access)).brokers
            known |= {one.node_id: one for one in brokers}
            found["brokers"] = len(brokers)
        except LoginWantedError as error:  # clients log in themselves, and brokers are learned from their responses
            login_wanted, found["note"] = True, str(error)
        except ClusterError as error:
            found["error"] = str(error)
        bootstrap.append(found)
    each: list[dict[str, Any]] = []
    nodes = [broker for _, broker in sorted(known.items())]
    for broker, advertised in zip(nodes, _given(config, nodes), strict=True):
        found = {"id": broker.node_id, "address": f"{broker.host}:{broker.port}", "clients_get": advertised}
        try:
            versions = await ask_versions(broker.host, broker.port, access)
            found |= {API_NAMES[key].lower(): list(versions.get(key, ())) for key in (PRODUCE, FETCH)}
            found["error"] = None
        except ClusterError as error:
            found["error"] = str(error)
        each.append(found)
    reached = bool(known) or login_wanted
    failed = any(one["error"] for one in (*bootstrap, *each))
    return {"ok": reached and not failed, "bootstrap": bootstrap, "brokers": each}


def _given(config: Config, brokers: Sequence[NodeAddress]) -> Iterator[str]:
    listen = config.listen
    own = own_ports((broker.node_id for broker in brokers), listen.broker_ports, listen.broker_port_map)
    for broker in brokers:
        port = own.get(broker.node_id)
        if config.mode == "transparent":
            yield f"{broker.host}:{broker.port}"
        elif port is None:
            yield "none: listen.broker_ports has fewer ports than the cluster has brokers"
        else:
            advertised = port - listen.broker_ports.start + listen.advertised_ports.start
            yield str(HostPort(listen.advertised.host or listen.host, advertised))


def connection_text(found: dict[str, Any]) -> str:
    """The same for people."""
    rows = [["bootstrap", "answer"]]
    for one in found["bootstrap"]:
        answer = one["error"] or one.get("note") or f"{one['brokers']} broker" + ("s" if one["brokers"] != 1 else "")
        rows.append([one["address"], answer.removeprefix(f"{one['address']}: ")])
    parts = [columns(rows)]
    if found["brokers"]:
        rows = [["broker", "address", "clients get", "answer"]]
        for one in found["brokers"]:
            versions = [f"{api} {'-'.join(map(str, one.get(api, ())))}" for api in ("produce", "fetch")]
            answer = (one["error"] or ", ".join(versions)).removeprefix(f"{one['address']}: ")
            rows.append([str(one["id"]), one["address"], one["clients_get"], answer])
        parts.append(columns(rows))
    return "\n\n".join(parts)


def _access(config: Config) -> Access:
    security = load_security(config)
    return Access(config.upstream.connect_timeout_ms / 1000, security.upstream_tls, security.credentials)
