"""Settings of usage records: destination, interval, and how much is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from config.types import Section, duration_s, size, text, wrong
from config.units import LONG_MAX

_MIB = 1024 * 1024


class Export(Section):
    """Where usage records go (docs/usage-records.md)."""

    directory: Annotated[str, text("a directory")] | None = Field(
        default=None, description="Directory of the JSON-lines files, one per sidecar; null: none."
    )
    kafka_topic: Annotated[str, text("a topic name", most=249)] | None = Field(
        default=None, description="Topic for the same records; null: none."
    )
    interval_s: Annotated[float, duration_s(1000, 300_000)] = Field(
        default=10, description="One record per client and interval."
    )
    rotate_s: Annotated[float, duration_s(1000, 3_600_000)] = Field(
        default=300,
        description="A file is complete after this long, and at the end of its hour.",
    )
    keep_bytes: Annotated[int, size(1, LONG_MAX, "bytes")] | None = Field(
        default=1024 * _MIB,
        description="Size of all complete files; the oldest are deleted. null: unlimited.",
        json_schema_extra={"default": "1GiB"},
    )
    cluster_id: Annotated[str, text("a name", most=255)] | None = Field(
        default=None, description="Cluster name in records; null: KQUOTA_CLUSTER_ID, else none."
    )
    namespace: Annotated[str, text("a name", most=255)] | None = Field(
        default=None, description="Namespace in records; null: KQUOTA_POD_NAMESPACE, else none."
    )
    pod: Annotated[str, text("a name", most=255)] | None = Field(
        default=None, description="Pod in records; null: KQUOTA_POD_NAME, else the host name."
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Export:
        if self.directory is None and self.kafka_topic is None:
            raise wrong("a directory, a kafka_topic, or both")
        return self
