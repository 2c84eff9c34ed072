"""Admission of a new pod: the answer to a Kubernetes AdmissionReview (admission.k8s.io/v1), as a JSON patch. The chart
renders the template from the same named templates that other charts include."""

from __future__ import annotations

import base64
import copy
import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from config.problems import first_error
from deploy.kubernetes.distribution import Distribution, Json, metadata_of

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
_PORT: Final = re.compile(r"[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]", re.ASCII)
_IMAGE_NAME: Final = re.compile(r"[\w.:/-]+(@sha256:[0-9a-f]{64})?")
_VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
INJECT_LABEL: Final = "kquota.io/inject"
"""On pods: "false" opts out; with a template that requires it, only "true" opts in."""
SKIPPED_LABEL: Final = "kquota.io/injection-skipped"
"""On pods that were not changed: the reason."""
INJECTED_LABEL: Final = "kquota.io/injected"
NAME: Final = "kquota"
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the kubelet's mirror pods: the node runs them as its file says, whatever is changed here."""
OS: Final = "kubernetes.io/os"
EVICTED: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Annotation with the names of local volumes that do not keep the cluster autoscaler from removing the node."""
_ADMIN: Final = "config.admin.port"
DEFAULT_GRACE_S: Final = 30


class AnnotationError(ValueError):
    """A pod requests something impossible or not allowed; names annotation, value and what was expected."""


def asked(pod: Json) -> dict[str, str]:
    """A pod's annotations for its sidecar."""
    found = metadata_of(pod, "annotations")
    return {name: str(value) for name, value in found.items() if name.startswith(PREFIX) and name not in OURS}


def unknown(names: Iterable[str]) -> list[str]:
    """A sentence about each unknown annotation, for the pod's author."""
    known = [one for names in GROUPS.values() for one in names]
    warnings = []
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        if name == INJECT_LABEL:
            hint = ": set it as a label of the pod"
        warnings.append(f"annotation {name} is unknown to kquota{hint}")
    return warnings


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
            volumes = _configured_by(volumes, value)
    _reconcile(container.get("resources") or {}, wishes)
    return container, volumes


def _configured_by(volumes: list[Json], config_map: str) -> list[Json]:
    """The sidecar's volumes, with the configuration file of this ConfigMap."""
    own = {"name": VOLUME, "configMap": {"name": config_map}}
    return [own if one["name"] == VOLUME else one for one in volumes]


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
        asks = {asked_request, asked_limit} & wishes.keys()
        if request is None or limit is None or not asks or quantity(request) <= quantity(limit):
            continue
        if len(asks) == 2:
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
    _expect(_PORT, ADMIN_PORT, wishes[ADMIN_PORT], "a port from 1 to 65535, such as 9405")
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


class ReviewError(ValueError):
    """The body is not an AdmissionReview for a pod; says what was expected."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The variable of the application's containers that gets the sidecar's address, and this address."""

    variable: str
    address: str


@dataclass(frozen=True, slots=True)
class Template:
    """What is injected into pods; the aliases are the names in the chart's JSON."""

    native: bool
    """An init container with restartPolicy Always; else an ordinary container."""
    opt_in: Annotated[bool, Field(alias="optIn")]
    """Only pods with the label kquota.io/inject: "true"."""
    container: Json
    volumes: list[Json]
    labels: dict[str, str]
    annotations: dict[str, str]
    grace_s: Annotated[int, Field(alias="terminationGracePeriodSeconds")]
    """The minimum termination grace period of the pod, in seconds."""
    pods_may_set: Annotated[frozenset[str], Field(alias="podsMaySet")]
    """What pods may change by annotations (:data:`GROUPS`)."""
    distribution: Distribution
    pull_secrets: Annotated[list[Json], Field(alias="imagePullSecrets")]
    bootstrap: Bootstrap | None
    ports: dict[str, str]
    """Ports and ranges of them (FIRST-LAST) that the sidecar listens on, by the setting."""
    redirect: Json | None = None
    """An init container that sets redirect rules, before all others; None: connections are not redirected."""

    @classmethod
    def parse(cls, data: bytes) -> Template:
        """Parse the chart's JSON. Raises ValueError for anything else."""
        try:
            return _TEMPLATE.validate_json(data)
        except ValidationError as error:
            raise ValueError(f"expected the template that the chart renders: {first_error(error)}") from error

    def in_namespace(self, namespace: str) -> Template:
        """The same with the namespace's own copy of the configuration, which is in one ConfigMap."""
        if namespace == self.distribution.namespace:
            return self
        return replace(self, volumes=_configured_by(self.volumes, self.distribution.name))


_TEMPLATE: Final = TypeAdapter(Template)


@dataclass(frozen=True, slots=True)
class ReviewResult:
    """The answer, and what to log about it."""

    answer: Json
    namespace: str
    pod: str
    """Namespace and name, as far as they are known before the pod exists."""
    skipped: str | None = None
    """Why nothing was injected; None: it was, or the pod was refused."""
    refused: str | None = None
    """What is wrong with the pod's annotations; None: nothing."""


def request_of(body: bytes, kind: str) -> Json:
    """The request of an AdmissionReview for an object of this kind. Raises ReviewError."""
    try:
        given = json.loads(body)
        request: Json = given["request"]
        version, found = given["apiVersion"], (given["kind"], request["kind"]["kind"], request["object"]["kind"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ReviewError(f"expected an AdmissionReview of a {kind}: {error!r}") from error
    if found != ("AdmissionReview", kind, kind):
        raise ReviewError(f"expected an AdmissionReview of a {kind}, got {found[0]} of {found[1]}")
    if version != "admission.k8s.io/v1":
        raise ReviewError(f"expected admission.k8s.io/v1, got {version}")
    return request


def answered(request: Json, refused: str | None, warnings: Iterable[str] = (), **more: str) -> Json:
    """The answer to a request: refused with a sentence for people, or allowed."""
    response: Json = {"uid": str(request.get("uid")), "allowed": refused is None}
    if refused is None:
        response |= more
    else:
        response["status"] = {"code": 400, "reason": "BadRequest", "message": f"kquota: {refused}"}
    if lines := [f"kquota: {one}" for one in warnings]:
        response["warnings"] = lines
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def review(body: bytes, template: Template) -> ReviewResult:
    """Answer an AdmissionReview: allowed, with a patch, unless annotations are impossible. Raises ReviewError."""
    request = request_of(body, "Pod")
    try:
        pod = request["object"]
        metadata = pod.get("metadata") or {}
        name = metadata.get("name") or metadata.get("generateName") or "?"
        skipped, refused, patch = reason_to_skip(pod, template), None, []
        try:
            if skipped:
                labels = metadata_of(pod) | {SKIPPED_LABEL: skipped}
                patch = _patch(pod, pod | {"metadata": metadata | {"labels": labels}})
            else:
                patch = injection(pod, template.in_namespace(str(request.get("namespace"))))
        except AnnotationError as error:
            refused = str(error)
        warnings = misunderstood(pod, skipped)
        if not skipped and not refused:
            warnings += [*unknown(asked(pod)), *clashes(pod, template)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ReviewError(f"expected an AdmissionReview of a Pod: {error!r}") from error
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    answer = answered(request, refused, warnings, patchType="JSONPatch", patch=encoded)
    namespace = str(request.get("namespace", "?"))
    return ReviewResult(answer, namespace, f"{namespace}/{name}", skipped, refused)


def reason_to_skip(pod: Json, template: Template) -> str | None:
    """Why a pod gets no sidecar, as the value of a label; None: it gets one. The chart's selectors say the same."""
    spec, wish = pod["spec"], metadata_of(pod, "labels").get(INJECT_LABEL)
    if wish == "false":
        return "opted-out"
    if template.opt_in and wish != "true":
        return "not-opted-in"
    if NAME in [one["name"] for one in _containers(spec)]:
        return "already-there"
    if spec.get("hostNetwork"):
        return "host-network"  # its loopback is the node's: ports of several sidecars would collide
    if MIRROR in metadata_of(pod, "annotations"):
        return "mirror-pod"
    if {(spec.get("os") or {}).get("name", "linux"), (spec.get("nodeSelector") or {}).get(OS, "linux")} != {"linux"}:
        return "not-linux"
    if not template.native and spec.get("restartPolicy", "Always") != "Always":
        return "job-would-not-end"  # an ordinary container keeps a Job's pod running
    return None


def misunderstood(pod: Json, skipped: str | None) -> list[str]:
    """A sentence about a request in a form that has no meaning, for the pod's author."""
    wish = metadata_of(pod, "labels").get(INJECT_LABEL)
    if wish in (None, "true", "false"):
        return []
    gets = "no sidecar" if skipped else "a sidecar"
    return [f'label {INJECT_LABEL}: expected "true" or "false", got "{wish}": the pod gets {gets}']


def clashes(pod: Json, template: Template) -> Iterator[str]:
    """A sentence about each thing of the pod's own that conflicts with the sidecar."""
    listened = template.ports | {_ADMIN: str(admin_port(asked(pod), int(template.ports[_ADMIN])))}
    for container in _containers(pod["spec"]):
        for declared in container.get("ports") or []:
            port = declared["containerPort"]
            for setting, ports in listened.items():
                if _includes(ports, port):
                    other = f"; annotation {ADMIN_PORT} selects another" if setting == _ADMIN else ""
                    yield (
                        f"container {container['name']} declares port {port}, and the sidecar listens on {ports} "
                        f"({setting}): only one of them can{other}"
                    )
    if template.bootstrap is not None:
        address = template.bootstrap.address
        names = bootstrap_variables(asked(pod), template.bootstrap.variable)
        local = {address, f"localhost:{address.rpartition(':')[2]}"}
        for container in _containers(pod["spec"]):
            for one in container.get("env") or []:
                if (
                    one["name"] in names
                    and "value" in one
                    and not local.issuperset(map(str.strip, one["value"].split(",")))
                ):
                    yield (
                        f"container {container['name']} sets {one['name']} to {one['value']}: "
                        f"this bypasses the sidecar at {address}"
                    )
    if own := _scraped(pod) & template.annotations.keys():
        port = template.annotations["prometheus.io/port"]
        yield f"the pod keeps its own {', '.join(sorted(own))}: Prometheus misses the sidecar's port {port}"


def _includes(ports: str, port: int) -> bool:
    """Whether a port is in FIRST-LAST, or is the only one."""
    first, _, last = ports.partition("-")
    return int(first) <= port <= int(last or first)


def _containers(spec: Json) -> list[Json]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _scraped(pod: Json) -> set[str]:
    return {name for name in metadata_of(pod, "annotations") if name.startswith("prometheus.io/")}


def injection(pod: Json, template: Template) -> list[Json]:
    """The patch that injects the sidecar; its labels replace the pod's. Raises AnnotationError."""
    changed = copy.deepcopy(pod)
    spec, metadata, wishes = changed["spec"], changed.setdefault("metadata", {}), asked(pod)
    _set_addresses(spec, wishes, template)
    secrets = spec.get("imagePullSecrets") or []
    if more := [one for one in template.pull_secrets if one not in secrets]:
        spec["imagePullSecrets"] = [*secrets, *more]
    _check_ports(wishes, template)
    container, volumes = customized(template.container, template.volumes, wishes, template.pods_may_set)
    _grow(spec.get("resources") or {}, container.get("resources") or {})
    first = [] if template.redirect is None else [copy.deepcopy(template.redirect)]
    if {one["name"] for one in first} & {one["name"] for one in _containers(spec)}:
        raise AnnotationError(
            f"container {first[0]['name']}: expected another name, the sidecar's container has this one"
        )
    own = spec.get("volumes") or []
    _rename_volumes(volumes, [container, *first], own)
    if template.native:
        first.append(container)
    else:
        spec["containers"].append(container)
    if first:
        spec["initContainers"] = [*first, *(spec.get("initContainers") or [])]
    spec["volumes"] = own + [one for one in volumes if one not in own]
    grace = spec.get("terminationGracePeriodSeconds")
    if (DEFAULT_GRACE_S if grace is None else grace) < template.grace_s:
        spec["terminationGracePeriodSeconds"] = template.grace_s
    labels = {name: value for name, value in metadata_of(pod).items() if name != SKIPPED_LABEL}
    metadata["labels"] = labels | template.labels | {INJECTED_LABEL: "true"}
    metadata["annotations"] = metadata_of(pod, "annotations") | _annotations(pod, template)
    return _patch(pod, changed)


def _check_ports(wishes: dict[str, str], template: Template) -> None:
    """Raises AnnotationError unless the admin port is free, and protected by the NetworkPolicy if there is one."""
    if ADMIN_PORT not in wishes:
        return
    port, usual = admin_port(wishes, 0), int(template.ports[_ADMIN])
    for setting, ports in template.ports.items():
        if setting != _ADMIN and _includes(ports, port):
            raise AnnotationError(
                f"pod annotation {ADMIN_PORT}: expected a port other than {setting} ({ports}), got '{port}'"
            )
    if port != usual and template.distribution.network_policy is not None:
        raise AnnotationError(
            f"pod annotation {ADMIN_PORT}: expected {usual}, the port that the chart's webhook.networkPolicy protects, "
            f"got '{port}'"
        )


def _rename_volumes(volumes: list[Json], containers: list[Json], own: list[Json]) -> None:
    """Volumes of the sidecar whose name the pod has for a volume of its own get another one."""
    taken = {one["name"]: one for one in own}
    for volume in volumes:
        name = volume["name"]
        if taken.get(name, volume) == volume:
            continue
        while volume["name"] in taken:
            volume["name"] = f"kquota-{volume['name']}"
        for container in containers:
            for mount in container["volumeMounts"]:
                if mount["name"] == name:
                    mount["name"] = volume["name"]


def _set_addresses(spec: Json, wishes: dict[str, str], template: Template) -> None:
    """The sidecar's address for containers that start after it, first so that others can refer to it."""
    if template.bootstrap is None:
        return
    names, address = bootstrap_variables(wishes, template.bootstrap.variable), template.bootstrap.address
    for container in _containers(spec) if template.native else spec["containers"]:
        there = container.get("env") or []
        new = [{"name": name, "value": address} for name in names if name not in {one["name"] for one in there}]
        if new and not container.get("envFrom"):
            container["env"] = new + there


def _grow(pod: Json, sidecar: Json) -> None:
    """Resources of the whole pod (Kubernetes 1.34) grow by the sidecar's: those of its containers must fit in."""
    for kind in ("requests", "limits"):
        for resource, value in (pod.get(kind) or {}).items():
            more = (sidecar.get(kind) or {}).get(resource) or (sidecar.get("requests") or {}).get(resource)
            if more is not None:
                pod[kind][resource] = added(value, more)


def _annotations(pod: Json, template: Template) -> dict[str, str]:
    own, annotations = metadata_of(pod, "annotations"), dict(template.annotations)
    if ADMIN_PORT in own and "prometheus.io/port" in annotations:
        annotations["prometheus.io/port"] = own[ADMIN_PORT]
    if _scraped(pod):
        annotations = {name: value for name, value in annotations.items() if not name.startswith("prometheus.io/")}
    if EVICTED in annotations and own.get(EVICTED):
        volumes_named = [*own[EVICTED].split(","), annotations[EVICTED]]
        annotations[EVICTED] = ",".join(dict.fromkeys(one.strip() for one in volumes_named))
    return annotations


def _patch(before: Json, after: Json) -> list[Json]:
    """A JSON patch (RFC 6902) that sets whatever is new or different in `metadata` and `spec`."""
    return [
        {"op": "add", "path": f"/{part}/{name}", "value": value}
        for part in ("metadata", "spec")
        for name, value in after[part].items()
        if value != (before.get(part) or {}).get(name)
    ]
