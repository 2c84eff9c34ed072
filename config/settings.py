"""A configuration as settings of the data path and of the ledger, which have the names that the file has."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from pydantic import BaseModel

from config.model import Config
from proxy.core.session.sizes import SizeLimits
from proxy.net.settings import Advertised, ConnectionBounds, ProxySettings, StallLimits, TransparentSettings
from quota.ledger import Ledger
from quota.table import QuotaTable

_Settings = TypeVar("_Settings")


def settings_of(kind: type[_Settings], *sections: BaseModel, **more: Any) -> _Settings:
    """A dataclass with these sections' values of the same names, and `more`; what is `_ms` there may be `_s` here."""
    known = {name: value for section in sections for name, value in section} | more
    known |= {f"{name[:-2]}s": value / 1000 for name, value in known.items() if name.endswith("_ms")}
    return kind(**{one.name: known[one.name] for one in fields(kind) if one.name in known})  # type: ignore[arg-type]


def proxy_settings(config: Config, **loaded: Any) -> ProxySettings:
    """The data path's settings; `loaded` are those that the configuration keeps in other files."""
    transparent = None
    if config.mode == "transparent":
        allowed = config.transparent
        ports, networks = tuple(allowed.ports), tuple(allowed.networks)
        transparent = settings_of(TransparentSettings, allowed, networks=networks, ports=ports)
    sections = (config, config.listen, config.upstream, config.limits, config.identity.sasl)
    return settings_of(
        ProxySettings,
        *sections,
        advertised=settings_of(Advertised, config.listen, config.listen.advertised),
        bootstrap=tuple(config.upstream.bootstrap),
        proxy_protocol_from=tuple(config.listen.proxy_protocol_from),
        sizes=settings_of(SizeLimits, config.limits),
        stalls=settings_of(StallLimits, config.limits),
        bounds=settings_of(ConnectionBounds, config, config.limits),
        transparent=transparent,
        **loaded,
    )


def windows(config: Config) -> dict[str, Any]:
    """How quotas count, by the names of the ledger's settings."""
    return {
        "num_samples": config.window_num,
        "window_ms": config.window_size_seconds * 1000,
        "mutation_num_samples": config.controller_window_num,
        "mutation_window_ms": config.controller_window_size_seconds * 1000,
        "mutation_algorithm": config.controller_mutation_algorithm,
    }


def new_ledger(config: Config, table: QuotaTable, **instead: Any) -> Ledger:
    """The ledger of a sidecar with this configuration, but for the arguments `instead`."""
    smooth = instead.setdefault("smooth", config.pacing == "smooth")
    known = windows(config) | {
        # A capped mute needs the gate behind it; with Kafka's exact behaviour there is neither.
        "max_throttle_ms": (config.max_mute or None) if smooth else None,
        "max_clients": config.limits.max_clients,
    }
    return Ledger(table, **(known | instead))
