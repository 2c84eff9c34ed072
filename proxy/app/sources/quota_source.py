"""Where the limits in force come from, and how they are altered: what both sources share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from config.model import Config
from proxy.core.interceptors.quota_admin import AlterRule, QuotaAuthority
from quota.admin import Entity
from quota.table import QuotaTable

MAX_LOGGED: Final = 20


@dataclass(slots=True)
class SourceState:
    """What metrics and /readyz say about the source, file or cluster."""

    overlay_entities: int = 0
    overlay_successful: bool = True
    polls: int = 0
    poll_failures: int = 0
    changes: int = 0
    unusable: int = 0
    successful: bool = True
    success_at_s: float = field(default_factory=time.time)
    """When quotas were read last: wall clock."""


class QuotaSource(QuotaAuthority):
    """The limits in force, for the data path."""

    def __init__(self, config: Config, table: QuotaTable) -> None:
        self._settings = config.quota_settings
        self.table = table
        self.state = SourceState()
        self.swap: Callable[[QuotaTable], object] = lambda table: None
        """Called with each table to put in force; the ledger's, once there is one."""

    async def reload(self, config: Config, table: QuotaTable) -> None:
        """Put the limits of a changed configuration in force; another source takes a restart."""
        if config.quota_settings.source != self._settings.source:
            return
        self._settings = config.quota_settings
        await self._reload(table)

    @abstractmethod
    async def _reload(self, table: QuotaTable) -> None:
        """Put these limits of the file in force, with this source's own."""

    @abstractmethod
    async def run(self) -> None:
        """Work until cancelled."""

    @property
    def not_ready(self) -> str | None:
        """Why the sidecar should get no traffic yet; None when it may."""
        return None

    def _put_in_force(self, table: QuotaTable) -> None:
        self.table = table
        self.swap(table)

    # ---- QuotaAuthority ---------------------------------------------------------------------------------------------

    @property
    def rule(self) -> AlterRule:
        """What AlterClientQuotas does, by the configuration file as it is now."""
        return self._settings.alter

    def origin(self, entity: Entity, key: str) -> str:
        """Where one limit in force was set, worded as `managed`."""
        return self.managed

    def may_alter(self, user: str) -> bool:
        """Whether the configuration file, as it is now, lets this user alter quotas."""
        return user in self._settings.alter_principals
