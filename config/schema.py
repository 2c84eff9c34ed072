"""The JSON schema of the configuration file, for editors and for the Helm chart's values.schema.json."""

from __future__ import annotations

from typing import Any

from config.model import Config


def json_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    schema = Config.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kquota configuration"}
