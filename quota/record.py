"""The usage record: what one client used in one interval, as one flat row. Its only definition; docs/usage-records.md.

Written by the sidecar's exporter, read by the analysis jobs and by other readers of the files. Versions: the meaning of
a field never changes; new fields are added at the end, may be null, and raise :data:`SCHEMA_VERSION`. A reader takes
rows of versions up to its own as they are (missing fields are null) and sets newer ones aside.

A row has every field, null where there is no value, so that readers which infer a schema infer the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from quota.entity import Kind

SCHEMA_VERSION: Final = 3

Type = Literal["string", "int", "bigint", "double"]
"""Type names that Spark's DDL and DuckDB both know."""

Row = dict[str, Any]
"""A record: field name -> str, int, float or None."""

CAUSES: Final = (*(kind.value for kind in Kind), "broker")
"""Causes of delay: the four kinds of quota, or a quota of the broker's own."""

FAMILIES: Final[Mapping[str, str]] = {
    "produce": "Produce",
    "fetch": "Fetch and ShareFetch",
    "metadata": "topics, offsets, coordinators and brokers",
    "group": "membership and offsets of consumer, share and streams groups",
    "transaction": "producer ids and transactions",
    "admin": "topics, configurations, ACLs, quotas and other administration",
    "connection": "versions, authentication, delegation tokens and telemetry",
    "other": "brokers' own requests and APIs this version does not know",
}
"""Families of APIs that requests are counted by."""

MAX_NAME_CHARACTERS: Final = 120
"""Longer users and client-ids are cut and end in a hash of the whole, exactly as in /metrics."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column."""

    name: str
    type: Type
    nullable: bool
    unit: str
    """ "" if it has none."""
    meaning: str
    least: float | None = 0.0
    """The minimum of a number; None: may be negative."""
    since: int = 1
    """Schema version that introduced it."""


UNITS: Final[Mapping[str, str]] = {
    "produce": "bytes/s",
    "fetch": "bytes/s",
    "request": "percent of one thread",
    "mutation": "partitions/s",
}
"""Unit of limits and rates, by kind."""


def _fields() -> Iterator[Field]:
    yield Field("schema_version", "int", False, "", "version of this schema", 1.0)
    yield Field("instance", "string", False, "", "random name of the sidecar, new at every start")
    yield Field("sequence", "bigint", False, "", "1, 2, 3 … per instance; (instance, sequence) is the record's id")
    start = "start of the interval: `end_ms` of the previous one, unless the clock was set"
    yield Field("start_ms", "bigint", False, "ms since 1970, UTC", start)
    yield Field("end_ms", "bigint", False, "ms since 1970, UTC", "end of the interval, by the machine's clock")
    yield Field("duration_s", "double", False, "s", "length of the interval, by the monotonic clock")
    yield Field("samples", "int", False, "", "number of one-second samples of the rates below")
    yield Field("cluster_id", "string", True, "", "name of the Kafka cluster (`export.cluster_id`)")
    yield Field("namespace", "string", True, "", "Kubernetes namespace of the sidecar")
    yield Field("pod", "string", True, "", "pod (or host) of the sidecar")
    yield Field("kquota_version", "string", False, "", "version of the sidecar")
    yield Field("user", "string", False, "", "the client's principal, ANONYMOUS without one")
    yield Field("client_id", "string", False, "", "the client-id, may be empty")
    yield Field("client_library", "string", True, "", "the client's library (KIP-511), as last reported")
    yield Field("client_library_version", "string", True, "", "its version")
    yield Field("connections_peak", "int", False, "connections", "most connections open at once")
    yield Field("connections_opened", "int", False, "connections", "connections that the client began to use")
    yield Field("produce_bytes", "bigint", False, "bytes", "produce requests without their 4-byte size")
    yield Field("fetch_bytes", "bigint", False, "bytes", "fetch responses, less refunds", None)
    yield Field("request_seconds", "double", False, "s", "broker time used, less refunds", None)
    yield Field("mutations", "double", False, "partitions", "partitions created or deleted, less refunds", None)
    yield Field("requests", "bigint", False, "requests", "requests of all APIs; the sum of the families")
    for family, apis in FAMILIES.items():
        yield Field(f"requests_{family}", "bigint", False, "requests", apis)
    for cause in CAUSES:
        yield Field(f"throttle_{cause}_count", "bigint", False, "requests", "requests delayed by this quota")
        yield Field(f"throttle_{cause}_seconds", "double", False, "s", "sum of these delays")
    yield Field("mutes", "bigint", False, "mutes", "observed mutes (200 ms or more)")
    yield Field("mutes_ignored", "bigint", False, "mutes", "observed mutes in which the client kept sending")
    for kind, unit in UNITS.items():
        yield from _fields_of(kind, unit)
    for kind in UNITS:
        held = f"requests of `throttle_{kind}_count` that waited before they were forwarded"
        yield Field(f"throttle_{kind}_held_count", "bigint", True, "requests", held, since=2)
        waited = f"how long they waited: part of `throttle_{kind}_seconds`, not in `throttle_time_ms`"
        yield Field(f"throttle_{kind}_held_seconds", "double", True, "s", waited, since=2)
    for kind, unit in UNITS.items():
        whole = f"the fleet's limit, if `{kind}_limit` is a share of it"
        yield Field(f"{kind}_fleet_limit", "double", True, unit, whole, since=3)
        yield Field(f"{kind}_fleet_share", "double", True, "1", "that share at the end of the interval", since=3)


def _fields_of(kind: str, unit: str) -> Iterator[Field]:
    """Rates are of the client alone; limits, utilisation and trials are of the group that shares the limit."""
    yield Field(f"{kind}_rate_p50", "double", False, unit, "median of the client's one-second rates")
    yield Field(f"{kind}_rate_p95", "double", False, unit, "95th percentile of them")
    yield Field(f"{kind}_rate_p99", "double", False, unit, "99th percentile of them")
    yield Field(f"{kind}_rate_max", "double", False, unit, "the highest of them")
    yield Field(f"{kind}_limit", "double", True, unit, "the limit in force at the end; null: none")
    yield Field(f"{kind}_limit_mode", "string", True, "", "enforce or shadow (measured, never applied)")
    yield Field(f"{kind}_limit_level", "string", True, "", "level of its entry, such as `user+client-id`")
    yield Field(
        f"{kind}_group_user", "string", True, "", "user of the group that shares the limit; null: any, or no counter"
    )
    yield Field(f"{kind}_group_client_id", "string", True, "", "client-id of that group; null: any, or no counter")
    peak = "highest utilisation of the limit by the group, sampled once a second"
    yield Field(f"{kind}_group_utilisation_peak", "double", True, "1", peak)
    shadow = "requests that the shadow limit would have delayed"
    yield Field(f"{kind}_group_shadow_count", "bigint", False, "requests", shadow)
    yield Field(f"{kind}_group_shadow_seconds", "double", False, "s", "time that these delays cover")
    yield Field(f"{kind}_candidate_limit", "double", True, unit, "the candidate limit")
    candidate = "requests that the candidate would have delayed"
    yield Field(f"{kind}_group_candidate_count", "bigint", False, "requests", candidate)
    yield Field(f"{kind}_group_candidate_seconds", "double", False, "s", "time that these delays cover")


FIELDS: Final[tuple[Field, ...]] = tuple(_fields())
"""Every column, in the order of writing."""
IDENTITY: Final = ("instance", "sequence")
"""The id of a record: delivery is at least once, readers drop duplicates by it."""

_EMPTY: Final[Row] = {
    field.name: None if field.nullable or field.type == "string" else 0.0 if field.type == "double" else 0
    for field in FIELDS
} | {"schema_version": SCHEMA_VERSION}


def empty() -> Row:
    """A row of this version with no values: null names, zeros. Fill in the fields that :data:`FIELDS` requires."""
    return dict(_EMPTY)


def to_line(row: Mapping[str, Any]) -> bytes:
    """A row as one JSON line with its newline; ASCII only, so that names cannot break a reader."""
    return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def spark_ddl() -> str:
    """The columns as a DDL string, a schema for Spark's readers. All nullable, as files are read."""
    return ", ".join(f"{field.name} {field.type.upper()}" for field in FIELDS)


def duckdb_columns() -> dict[str, str]:
    """The columns for DuckDB's ``read_json(..., columns = {...})``."""
    names = {"string": "VARCHAR", "int": "INTEGER", "bigint": "BIGINT", "double": "DOUBLE"}
    return {field.name: names[field.type] for field in FIELDS}
