"""What a pod may request for its sidecar by annotations: resources, another image, a configuration of its own."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable
from typing import Any, Final

PREFIX: Final = "kquota.io/"
RESOURCES: Final = {
    f"{PREFIX}{resource}-{kind}": (f"{kind}s", resource)
    for resource in ("cpu", "memory")
    for kind in ("request", "limit")
}
"""The annotation, and the path of its value in a container's resources."""
IMAGE: Final = f"{PREFIX}image"
CONFIG_MAP: Final = f"{PREFIX}config-map"
"""The name of a ConfigMap of the pod's namespace whose `kquota.yaml` is this pod's configuration file."""
BOOTSTRAP: Final = f"{PREFIX}bootstrap-variable"
"""Names of environment variables with the sidecar's address; empty: none."""
OURS: Final = (f"{PREFIX}restart-checksum",)
"""Annotations that the chart sets; they request nothing."""
GROUPS: Final = {
    "resources": tuple(RESOURCES),
    "image": (IMAGE,),
    "environment": (BOOTSTRAP,),
    "config": (CONFIG_MAP,),
}
"""The groups in the chart's `webhook.podsMaySet`."""
VOLUME: Final = "kquota-config"

_CPU: Final = re.compile(r"\d+(\.\d+)?|\d+m")
_MEMORY: Final = re.compile(r"\d+(\.\d+)?([kMGTP]|[KMGTP]i)?")
_IMAGE_NAME: Final = re.compile(r"[\w.:/-]+(@sha256:[0-9a-f]{64})?")
_VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Json = dict[str, Any]


class AnnotationError(ValueError):
    """A pod requests something impossible or not allowed; names annotation, value and what was expected."""


def asked(pod: Json) -> dict[str, str]:
    """A pod's annotations for its sidecar."""
    found = (pod.get("metadata") or {}).get("annotations") or {}
    return {name: str(value) for name, value in found.items() if name.startswith(PREFIX) and name not in OURS}


def unknown(names: Iterable[str]) -> list[str]:
    """A sentence about each unknown annotation, for the pod's author."""
    known = [one for names in GROUPS.values() for one in names]
    said = []
    for name in sorted(set(names) - set(known)):
        if name == f"{PREFIX}inject":
            said.append(f"annotation {name} means nothing to kquota: it is a label of the pod")
            continue
        near = difflib.get_close_matches(name, known, n=1)
        said.append(f"annotation {name} means nothing to kquota" + (f"; did you mean {near[0]}?" if near else ""))
    return said


def customized(
    container: Json, volumes: list[Json], wishes: dict[str, str], allowed: frozenset[str]
) -> tuple[Json, list[Json]]:
    """The sidecar and its volumes with a pod's customizations. Raises AnnotationError."""
    container, volumes = copy.deepcopy(container), copy.deepcopy(volumes)
    for name, value in wishes.items():
        group = next((group for group, names in GROUPS.items() if name in names), None)
        if group is None:
            continue
        if group not in allowed:
            raise AnnotationError(
                f"pod annotation {name}: pods may not set it here (webhook.podsMaySet of the chart has no {group})"
            )
        if name in RESOURCES:
            kind, resource = RESOURCES[name]
            example, form = ("250m or 1", _CPU) if resource == "cpu" else ("256Mi or 1G", _MEMORY)
            _expect(form, name, value, f"{resource} as Kubernetes writes it, such as {example}")
            container.setdefault("resources", {}).setdefault(kind, {})[resource] = value
        elif name == IMAGE:
            _expect(_IMAGE_NAME, name, value, "an image, such as registry.example/kquota:1.2.3")
            container["image"] = value
        elif name == CONFIG_MAP:
            _expect(_NAME, name, value, "the name of a ConfigMap of the pod's namespace")
            for volume in volumes:
                if volume["name"] == VOLUME:
                    volume["configMap"] = {"name": value}
    return container, volumes


def bootstrap_variables(wishes: dict[str, str], usual: str) -> list[str]:
    """Names of the variables that get the sidecar's address: `usual`, unless the pod says others. Raises
    AnnotationError."""
    names = [one.strip() for one in wishes.get(BOOTSTRAP, usual).split(",") if one.strip()]
    for one in names:
        _expect(_VARIABLE, BOOTSTRAP, one, "names of environment variables, separated by commas")
    return names


def _expect(form: re.Pattern[str], name: str, value: str, expected: str) -> None:
    if not form.fullmatch(value):
        raise AnnotationError(f"pod annotation {name}: expected {expected}, got {value!r}")
