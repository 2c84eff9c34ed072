"""kubeconform in tests: manifests against Kubernetes' published schemas, and against those of operators' kinds.

Kubernetes' schemas come with the package kubernetes-validate, which keeps what they share in one file of its own;
kubeconform wants each by itself. Those of the operators are in tests/schemas (`python -m tests.support.crd_schemas`).
"""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate

from tests.support import go_tools
from tests.support.chart_tools import documents

OPERATORS = Path(__file__).parents[1] / "schemas"
PUBLISHED = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


def program() -> Path:
    """kubeconform, built by Go the first time."""
    return go_tools.program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform")


@functools.cache
def _shared(kubernetes: str) -> dict[str, Any]:
    return dict(json.loads((PUBLISHED / f"v{kubernetes}-local-strict/_definitions.json").read_text())["$defs"])


def _write_schemas(manifests: list[dict[str, Any]], kubernetes: str, folder: Path) -> None:
    for manifest in manifests:
        *group, version = manifest["apiVersion"].split("/")
        name = "-".join([manifest["kind"].lower(), *(part.split(".")[0] for part in group), version]) + ".json"
        source, target = PUBLISHED / f"v{kubernetes}-local-strict" / name, folder / name
        if source.exists() and not target.exists():
            target.write_text(json.dumps(_alone(json.loads(source.read_text()), kubernetes)))


def _alone(schema: dict[str, Any], kubernetes: str) -> dict[str, Any]:
    """A schema with what it refers to inside it."""
    used: dict[str, Any] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for key, one in value.items():
            if key == "$ref":
                name = one.rpartition("/")[2]
                if name not in used:
                    used[name] = {}
                    used[name] = walk(_shared(kubernetes)[name])
                found[key] = f"#/definitions/{name}"
            else:
                found[key] = walk(one)
        return found

    whole: dict[str, Any] = walk(schema) | {"definitions": used}
    return whole


def conform(files: list[Path], kubernetes: str, folder: Path) -> dict[str, str]:
    """What is wrong with each object that is not valid for this Kubernetes; strictly, a field too many is an error.

    `folder` is for schemas of this version.
    """
    manifests = [one for file in files for one in documents(file.read_text())]
    _write_schemas(manifests, kubernetes, folder)
    done = subprocess.run(
        [program(), "-strict", "-output=json", "-verbose", f"-kubernetes-version={kubernetes}",
         f"-schema-location={folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
         f"-schema-location={OPERATORS}/{{{{.Group}}}}/{{{{.ResourceKind}}}}_{{{{.ResourceAPIVersion}}}}.json", *files],
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    found = json.loads(done.stdout)["resources"]
    assert len(found) == len(manifests), "all of them were looked at"
    wrong = {f"{one['kind']} {one['name']}": one["msg"] for one in found if one["status"] != "statusValid"}
    assert (done.returncode == 0) == (wrong == {}), done.stderr
    return wrong
