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
        description="Instances with the same id and topic are one fleet.",
    )
    key_file: Annotated[str, ABSOLUTE_PATH] | None = Field(
        default=None,
        description="File with the secret that authenticates records; required. One key a line, at least 32 "
        "characters: the first signs, all are accepted. Re-read when it changes.",
    )
    default_scope: Annotated[Scope, choice("a scope", *SCOPES)] = Field(
        default="instance",
        description="Scope of entries without scope: each instance, or the whole fleet.",
    )
    topic: Annotated[str, text("a topic name", most=249)] = Field(
        default="kquota-fleet", description="The fleet's topic."
    )
    create_topic: Annotated[bool, BOOLEAN] = Field(
        default=True,
        description="Create the topic if missing; false: the log has the command.",
    )
    replication_factor: Annotated[int, whole(1, 100, "replicas")] | None = Field(
        default=None, description="Replication factor of a created topic; null: the brokers' default."
    )
    interval_s: Annotated[float, duration_s(500, 60_000)] = Field(
        default=1,
        description="How often an instance publishes its usage; less often with many instances per partition.",
    )
    instances: Annotated[int, whole(1, 1_000_000, "instances")] = Field(
        default=1,
        description="Number of instances assumed until others are known: the limit is divided by it.",
    )

    @field_validator("topic")
    @classmethod
    def _legal(cls, value: str) -> str:
        if not _TOPIC.fullmatch(value) or value in (".", ".."):
            raise wrong("a topic name: letters, digits, . _ -")
        return value
