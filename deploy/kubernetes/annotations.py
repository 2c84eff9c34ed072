"""What a pod may request for its sidecar by annotations: resources, another image or port, its own configuration."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Iterable
from decimal import Decimal
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
ADMIN_PORT: Final = f"{PREFIX}admin-port"
"""The sidecar's admin port, for pods whose application uses the chart's."""
OURS: Final = (f"{PREFIX}restart-checksum",)
"""Annotations that the chart sets; they request nothing."""
GROUPS: Final = {
    "resources": tuple(RESOURCES),
    "image": (IMAGE,),
    "environment": (BOOTSTRAP,),
    "config": (CONFIG_MAP,),
    "ports": (ADMIN_PORT,),
}
"""The groups in the chart's `webhook.podsMaySet`."""
VOLUME: Final = "kquota-config"
PORT_NAME: Final = "kquota-metrics"

_QUANTITY: Final = re.compile(r"(\d+\.?\d*|\.\d+)(n|u|m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?")
_CPU: Final = re.compile(r"(\d+\.?\d*|\.\d+)([mk]|[eE][+-]?\d{1,2})?")
_MEMORY: Final = re.compile(r"(\d+\.?\d*|\.\d+)([kMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?")
_SUFFIXES: Final = (
    {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
    | {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}
    | {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
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
            said.append(f"annotation {name} is unknown to kquota: it is a label of the pod")
            continue
        near = difflib.get_close_matches(name, known, n=1)
        said.append(f"annotation {name} is unknown to kquota" + (f"; did you mean {near[0]}?" if near else ""))
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
        elif name == ADMIN_PORT:
            port = admin_port(wishes, 0)
            container.setdefault("env", []).append({"name": "KQUOTA_ADMIN_PORT", "value": str(port)})
            for one in container["ports"]:
                if one["name"] == PORT_NAME:
                    one["containerPort"] = port
        elif name == CONFIG_MAP:
            _expect(_NAME, name, value, "the name of a ConfigMap of the pod's namespace")
            for volume in volumes:
                if volume["name"] == VOLUME:
                    volume.clear()
                    volume |= {"name": VOLUME, "configMap": {"name": value}}
    _reconcile(container.get("resources") or {}, wishes)
    return container, volumes


def quantity(text: Any) -> Decimal:
    """A resource quantity of Kubernetes, such as `100m`, `.5`, `1e9` or `128Mi`. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"expected a resource quantity, such as 250m or 128Mi, got {text!r}")
    number, suffix = found[1], found[2] or ""
    return Decimal(number) * _SUFFIXES[suffix] if suffix in _SUFFIXES else Decimal(number + suffix)


def added(one: Any, other: Any) -> str:
    """The sum of two quantities, as Kubernetes writes it. Raises ValueError."""
    total = quantity(one) + quantity(other)
    if total != int(total):
        return f"{math.ceil(total * 1000)}m"
    return f"{int(total) >> 20}Mi" if int(total) and int(total) % (1 << 20) == 0 else str(int(total))


def _reconcile(resources: Json, wishes: dict[str, str]) -> None:
    """No request is above its limit: what the pod sets moves the chart's other one. Raises AnnotationError."""
    for resource in ("cpu", "memory"):
        asked_request, asked_limit = f"{PREFIX}{resource}-request", f"{PREFIX}{resource}-limit"
        request, limit = ((resources.get(kind) or {}).get(resource) for kind in ("requests", "limits"))
        if request is None or limit is None or not {asked_request, asked_limit} & wishes.keys():
            continue
        if quantity(request) <= quantity(limit):
            continue
        if {asked_request, asked_limit} <= wishes.keys():
            raise AnnotationError(
                f"pod annotation {asked_request}: expected at most {limit} (annotation {asked_limit}), got {request!r}"
            )
        if asked_limit in wishes:
            resources["requests"][resource] = limit
        else:
            resources["limits"][resource] = request


def admin_port(wishes: dict[str, str], usual: int) -> int:
    """The sidecar's admin port: `usual`, unless the pod says another. Raises AnnotationError."""
    if ADMIN_PORT not in wishes:
        return usual
    _expect(_PORT, ADMIN_PORT, wishes[ADMIN_PORT], "a port, such as 9405")
    return int(wishes[ADMIN_PORT])


def bootstrap_variables(wishes: dict[str, str], usual: str) -> list[str]:
    """Names of variables that get the sidecar's address: `usual`, or what the pod says. Raises AnnotationError."""
    names = [one.strip() for one in wishes.get(BOOTSTRAP, usual).split(",") if one.strip()]
    for one in names:
        _expect(_VARIABLE, BOOTSTRAP, one, "names of environment variables, separated by commas")
    return names


def _expect(form: re.Pattern[str], name: str, value: str, expected: str) -> None:
    if not form.fullmatch(value):
        raise AnnotationError(f"pod annotation {name}: expected {expected}, got {value!r}")
