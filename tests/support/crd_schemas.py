"""JSON schemas, in YAML, of the kinds that operators bring, made of the CustomResourceDefinitions that they publish."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.support.apiserver_tools import crds
from tests.support.chart_tools import ci_values, documents, render_text

FOLDER = Path(__file__).parents[1] / "schemas"
SHORT = 100
COPIED = ("type", "format", "enum", "pattern", "required", "minItems", "maxItems", "minLength", "maxLength", "minimum",
          "maximum", "minProperties", "maxProperties")  # fmt: skip


def schemas() -> dict[Path, str]:
    """Each file and what it should be: one of each group, with a schema of each kind and version."""
    found: dict[Path, dict[str, Any]] = {}
    known: dict[str, Any] = {}
    rendered = [one for values in ci_values() for one in documents(render_text(values))]
    for one in crds():
        for version in one["spec"]["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            kind = f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"]
            uses = [each for each in rendered if (each["apiVersion"], each["kind"]) == kind]
            if not uses:
                continue
            schema = _used(schema, uses)
            schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
            file = FOLDER / f"{one['spec']['group']}.yaml"
            found.setdefault(file, {})[f"{version['name']} {one['spec']['names']['kind']}"] = _once(schema, known)
    return {file: yaml.safe_dump(kinds, default_flow_style=None, width=120) for file, kinds in found.items()}


def _once(schema: Any, known: dict[str, Any]) -> Any:
    """The same with one object for what is equal and long: YAML writes it once."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: _once(value, known) for key, value in schema.items()}
    text = json.dumps(schema, sort_keys=True)
    return known.setdefault(text, schema) if len(text) > SHORT else schema


def _closed(given: dict[str, Any]) -> dict[str, Any]:
    schema = {key: given[key] for key in COPIED if key in given}
    if given.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "items" in given:
        schema["items"] = _closed(given["items"])
    if "properties" in given:
        schema["properties"] = {name: _closed(one) for name, one in given["properties"].items()}
    if isinstance(given.get("additionalProperties"), dict):
        schema["additionalProperties"] = _closed(given["additionalProperties"])
    elif "properties" in given and not given.get("x-kubernetes-preserve-unknown-fields"):
        schema["additionalProperties"] = False
    return schema


def _used(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The schema without the properties that none of these values has."""
    found = dict(schema)
    if "properties" in schema:
        found["properties"] = {}
        for name, one in schema["properties"].items():
            given = [value[name] for value in values if isinstance(value, dict) and name in value]
            if given:
                found["properties"][name] = _used(one, given)
    if "items" in schema:
        found["items"] = _used(schema["items"], [one for value in values if isinstance(value, list) for one in value])
    if isinstance(schema.get("additionalProperties"), dict):
        given = [one for value in values if isinstance(value, dict) for one in value.values()]
        found["additionalProperties"] = _used(schema["additionalProperties"], given)
    return found


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for path, text in schemas().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
