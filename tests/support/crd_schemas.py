"""JSON schemas of the kinds that operators bring, made of the CustomResourceDefinitions that they publish.

`python -m tests.support.crd_schemas` writes tests/schemas anew from the modules that tests/go/crds pins (Apache-2.0):
without descriptions, and closed, so that a field that the definition does not know is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.apiserver_tools import crds

FOLDER = Path(__file__).parents[1] / "schemas"
COPIED = ("type", "format", "enum", "pattern", "required", "minItems", "maxItems", "minLength", "maxLength", "minimum",
          "maximum", "minProperties", "maxProperties")  # fmt: skip


def schemas() -> dict[Path, str]:
    """Each file and what it should be."""
    found = {}
    for one in crds():
        for version in one["spec"]["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
            name = f"{one['spec']['names']['kind'].lower()}_{version['name']}.json"
            found[FOLDER / one["spec"]["group"] / name] = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    return found


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


def main() -> None:
    """Write them."""
    for path, text in schemas().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
