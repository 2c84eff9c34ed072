"""The JSON schema of the configuration file, for editors and for the Helm chart's values.schema.json."""

from __future__ import annotations

from typing import Any

from config.model import _LIVE, Config


def json_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    schema = Config.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kquota configuration"}


def live_settings() -> list[list[str]]:
    """Settings that a running sidecar applies from a changed file, as paths of keys as in the file."""
    paths = []
    for name, info in Config.model_fields.items():
        written = info.alias or name
        if name in _LIVE:
            paths.append([written])
        paths += [[written, one.removeprefix(f"{written}.")] for one in sorted(_LIVE) if one.startswith(f"{written}.")]
    return paths
