"""Settings of a fleet: instances of the sidecar that share limits, and the topic through which they do so."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from config.types import ABSOLUTE_PATH, BOOLEAN, Section, choice, duration_s, text, whole, wrong
from quota.table import Scope

SCOPES = ("instance", "fleet")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class FleetSection(Section):
    """Which instances share limits, and how (docs/fleet.md)."""

    id: Annotated[str, text("a name", most=255)] = Field(
        default="default",
        description="Instances with the same id on the same topic are one fleet; others do not mix with it.",
    )
    key_file: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None,
        description="File with the secret that authenticates the instances' records; required. One key a line, of at "
        "least 32 characters: the first signs, all are accepted. Followed while the sidecar runs.",
    )
    default_scope: Annotated[Scope, choice("a scope", *SCOPES)] = Field(
        default="instance",
        description="What a limit applies to if its entry has no scope: each instance, or the fleet.",
    )
    topic: Annotated[str, text("a topic name", most=249)] = Field(
        default="kquota-fleet", description="Topic of the cluster on which the instances tell what they use."
    )
    create_topic: Annotated[bool, BOOLEAN] = Field(
        default=True,
        description="Make the topic where it is missing; false: an error in the log says the command that does.",
    )
    replication_factor: Annotated[int, whole(1, 100, "replicas")] | None = Field(
        default=None, description="Replication factor to create the topic with; null: the brokers' default."
    )
    interval_s: Annotated[float, duration_s(500, 60_000)] = Field(
        default=1,
        description="How often an instance tells what it uses; less often where very many share a partition.",
    )
    instances: Annotated[int, whole(1, 1_000_000, "instances")] = Field(
        default=1,
        description="The least number of instances to assume: until an instance has heard from others, it may use the "
        "limit divided by this number.",
    )

    @field_validator("topic")
    @classmethod
    def _legal(cls, value: str) -> str:
        if not _TOPIC.fullmatch(value) or value in (".", ".."):
            raise wrong("a topic name: letters, digits, . _ -")
        return value
