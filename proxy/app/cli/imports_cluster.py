"""What `kquota import kafka` asks a cluster for, as quota entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from config.load import load, load_limits
from config.model import Config
from config.problems import ConfigError
from config.types import DEFAULT_WORD
from proxy.app.sources.security import load_security
from proxy.net.upstream.cluster import ClusterError, ask_quotas
from quota.admin import Quotas, entity_text


def entries_of_cluster(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Quota entries of the cluster that a configuration file names, and in words what no entry can express.

    Raises ConfigError for the file, and OSError with one readable sentence if the cluster does not answer.
    """
    return cluster_entries(trio.run(_ask_cluster, load(path)))


def cluster_entries(quotas: Quotas) -> tuple[list[dict[str, Any]], list[str]]:
    """Quota entries for a cluster's quotas, and in words what no entry can express."""
    entries: list[dict[str, Any]] = []
    left: list[str] = []
    for entity, limits in quotas.items():
        names = {kind: DEFAULT_WORD if name is None else name for kind, name in entity}
        if any(name == DEFAULT_WORD for _, name in entity):
            left.append(f"{entity_text(entity)}: a name {DEFAULT_WORD} cannot be told from the default")
            continue
        whole = {key: int(value) if value.is_integer() else value for key, value in limits.items()}
        try:
            load_limits(names | whole, entity_text(entity))
        except ConfigError as error:
            left += [f"{entity_text(entity)}: {problem.place}: {problem.expected}" for problem in error.problems]
            continue
        entries.append(names | whole)
    return entries, left


async def _ask_cluster(config: Config) -> Quotas:
    """The quotas as known to the first broker that answers. Raises OSError."""
    security = load_security(config)
    errors = []
    for host, port in config.upstream.bootstrap:
        try:
            timeout_s = config.upstream.connect_timeout_ms / 1000
            return await ask_quotas(host, port, timeout_s, security.upstream_tls, security.credentials)
        except ClusterError as error:
            errors.append(str(error))
    raise OSError("; ".join(errors) or "upstream.bootstrap names no broker")
