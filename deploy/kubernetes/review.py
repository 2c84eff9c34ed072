"""Admission of a new pod: the answer to a Kubernetes AdmissionReview (admission.k8s.io/v1), as a JSON patch. The chart
renders the template from the same named templates that other charts include."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.kubernetes.annotations import (
    ADMIN_PORT,
    VOLUME,
    AnnotationError,
    added,
    admin_port,
    asked,
    bootstrap_variables,
    customized,
    unknown,
)
from deploy.kubernetes.distribution import Distribution

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

Json = dict[str, Any]


class ReviewError(ValueError):
    """The body is not an AdmissionReview for a pod; says what was expected."""


class TemplateError(ValueError):
    """The template is not the chart's; says what was expected."""


@dataclass(frozen=True, slots=True)
class Template:
    """What is injected into pods."""

    native: bool
    """An init container with restartPolicy Always; else an ordinary container."""
    opt_in: bool
    """Only pods with the label kquota.io/inject: "true"."""
    container: Json
    redirect: Json | None
    """An init container that sets redirect rules, before all others; None: connections are not redirected."""
    volumes: list[Json]
    labels: dict[str, str]
    annotations: dict[str, str]
    grace_s: int
    """The minimum termination grace period of the pod, in seconds."""
    pods_may_set: frozenset[str]
    """What pods may change by annotations (`deploy.kubernetes.annotations.GROUPS`)."""
    distribution: Distribution
    pull_secrets: list[Json]
    bootstrap: tuple[str, str] | None
    """The variable of the application's containers that gets the sidecar's address, and this address; None: none."""
    ports: dict[str, str]
    """Ports and ranges of them (FIRST-LAST) that the sidecar listens on, by the setting."""

    @classmethod
    def parse(cls, data: bytes) -> Template:
        """Parse the chart's JSON. Raises TemplateError."""
        try:
            given = json.loads(data)
            return cls(
                native=bool(given["native"]),
                opt_in=bool(given["optIn"]),
                container=dict(given["container"]),
                redirect=dict(given["redirect"]) if given.get("redirect") else None,
                volumes=list(given["volumes"]),
                labels=dict(given["labels"]),
                annotations=dict(given["annotations"]),
                grace_s=int(given["terminationGracePeriodSeconds"]),
                pods_may_set=frozenset(given["podsMaySet"]),
                distribution=Distribution.parse(given["distribution"]),
                pull_secrets=list(given["imagePullSecrets"]),
                bootstrap=(given["bootstrap"]["variable"], given["bootstrap"]["address"])
                if given["bootstrap"]
                else None,
                ports={name: str(value) for name, value in given["ports"].items()},
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TemplateError(f"expected the template that the chart renders: {error!r}") from error

    def in_namespace(self, namespace: str) -> Template:
        """The same with the namespace's own copy of the configuration, which is in one ConfigMap."""
        if namespace == self.distribution.namespace:
            return self
        copy = {"name": VOLUME, "configMap": {"name": self.distribution.name}}
        return replace(self, volumes=[copy if one["name"] == VOLUME else one for one in self.volumes])


@dataclass(frozen=True, slots=True)
class ReviewResult:
    """The answer, and what to log about it."""

    answer: Json
    namespace: str
    pod: str
    """Namespace and name, as far as they are known before the pod exists."""
    skipped: str | None = field(default=None)
    """Why nothing was injected; None: it was, or the pod was refused."""
    refused: str | None = field(default=None)
    """What is wrong with the pod's annotations; None: nothing."""


def request_of(body: bytes, kind: str) -> Json:
    """The request of an AdmissionReview for an object of this kind. Raises ReviewError."""
    try:
        given = json.loads(body)
        request: Json = given["request"]
        found = (given["kind"], request["kind"]["kind"], request["object"]["kind"])
        if found != ("AdmissionReview", kind, kind):
            raise ReviewError(f"expected an AdmissionReview of a {kind}, got {found[0]} of {found[1]}")
        if given["apiVersion"] != "admission.k8s.io/v1":
            raise ReviewError(f"expected admission.k8s.io/v1, got {given['apiVersion']}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, ReviewError):
            raise
        raise ReviewError(f"expected an AdmissionReview of a {kind}: {error!r}") from error
    return request


def answered(request: Json, refused: str | None, warnings: Iterable[str] = (), **more: str) -> Json:
    """The answer to a request: refused with a sentence for people, or allowed."""
    response: Json = {"uid": str(request.get("uid")), "allowed": refused is None}
    if refused is None:
        response |= more
    else:
        response["status"] = {"code": 400, "reason": "BadRequest", "message": f"kquota: {refused}"}
    if said := [f"kquota: {one}" for one in warnings]:
        response["warnings"] = said
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def review(body: bytes, template: Template) -> ReviewResult:
    """Answer one AdmissionReview: allowed, with a patch, unless its annotations ask for the impossible. Raises
    ReviewError."""
    request = request_of(body, "Pod")
    try:
        pod = request["object"]
        metadata = pod.get("metadata") or {}
        name = metadata.get("name") or metadata.get("generateName") or "?"
        skipped, refused, patch = reason_to_skip(pod, template), None, []
        try:
            if skipped:
                patch = _merge(metadata, "labels", {SKIPPED_LABEL: skipped})
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
    spec, wish = pod["spec"], _own(pod, "labels").get(INJECT_LABEL)
    if wish == "false":
        return "opted-out"
    if template.opt_in and wish != "true":
        return "not-opted-in"
    names = [one["name"] for key in ("initContainers", "containers") for one in spec.get(key) or []]
    if NAME in names:
        return "already-there"
    if spec.get("hostNetwork"):
        return "host-network"  # its loopback is the node's: ports of several sidecars would collide
    if MIRROR in _own(pod, "annotations"):
        return "mirror-pod"
    if {(spec.get("os") or {}).get("name", "linux"), (spec.get("nodeSelector") or {}).get(OS, "linux")} != {"linux"}:
        return "not-linux"
    if not template.native and spec.get("restartPolicy", "Always") != "Always":
        return "job-would-not-end"  # an ordinary container keeps a Job's pod running
    return None


def misunderstood(pod: Json, skipped: str | None) -> list[str]:
    """A sentence about a request in a form that has no meaning, for the pod's author."""
    wish = _own(pod, "labels").get(INJECT_LABEL)
    if wish in (None, "true", "false"):
        return []
    gets = "no sidecar" if skipped else "a sidecar"
    return [f'label {INJECT_LABEL}: expected "true" or "false", got "{wish}": the pod gets {gets}']


def clashes(pod: Json, template: Template) -> Iterator[str]:
    """A sentence about each thing of the pod's own that does not go together with the sidecar."""
    listened = template.ports | {_ADMIN: str(admin_port(asked(pod), int(template.ports[_ADMIN])))}
    for _, _, container in _containers(pod["spec"]):
        for declared in container.get("ports") or []:
            port = declared["containerPort"]
            for setting, ports in listened.items():
                first, _, last = ports.partition("-")
                if int(first) <= port <= int(last or first):
                    other = f"; annotation {ADMIN_PORT} selects another" if setting == _ADMIN else ""
                    yield (
                        f"container {container['name']} declares port {port}, and the sidecar listens on {ports} "
                        f"({setting}): only one of them can{other}"
                    )
    if template.bootstrap is not None:
        _, address = template.bootstrap
        names = bootstrap_variables(asked(pod), template.bootstrap[0])
        for _, _, container in _containers(pod["spec"]):
            for one in container.get("env") or []:
                if one["name"] in names and "value" in one and not one["value"].startswith(("localhost", address)):
                    yield (
                        f"container {container['name']} sets {one['name']} to {one['value']}: "
                        f"this bypasses the sidecar at {address}"
                    )
    if own := _scraped(pod) & template.annotations.keys():
        port = template.annotations["prometheus.io/port"]
        yield f"the pod's own {', '.join(sorted(own))} stay: Prometheus does not find the sidecar's port {port} by them"


def _containers(spec: Json) -> Iterator[tuple[str, int, Json]]:
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or []):
            yield key, index, container


def _own(pod: Json, key: str) -> dict[str, str]:
    """The pod's labels or annotations."""
    return (pod.get("metadata") or {}).get(key) or {}


def _scraped(pod: Json) -> set[str]:
    return {name for name in _own(pod, "annotations") if name.startswith("prometheus.io/")}


def _environment(pod: Json, template: Template) -> Iterator[Json]:
    """The sidecar's address for containers that start after it, first so that others can refer to it."""
    if template.bootstrap is None:
        return
    usual, address = template.bootstrap
    names = bootstrap_variables(asked(pod), usual)
    for key, index, container in _containers(pod["spec"]):
        if container.get("envFrom") or (key == "initContainers" and not template.native):
            continue
        there = container.get("env") or []
        new = [{"name": name, "value": address} for name in names if name not in {one["name"] for one in there}]
        if new:
            yield {"op": "add", "path": f"/spec/{key}/{index}/env", "value": new + there}


def _pod_level(pod: Json, sidecar: Json) -> Iterator[Json]:
    """Resources of the whole pod (Kubernetes 1.34) grow by the sidecar's: those of its containers must fit in."""
    for kind in ("requests", "limits"):
        for resource, value in (pod.get(kind) or {}).items():
            more = (sidecar.get(kind) or {}).get(resource) or (sidecar.get("requests") or {}).get(resource)
            if more is not None:
                path = f"/spec/resources/{kind}/{_escape(resource)}"
                yield {"op": "replace", "path": path, "value": added(value, more)}


def injection(pod: Json, template: Template) -> list[Json]:
    """The patch that injects the sidecar; ours replace the pod's own labels and annotations, but for Prometheus'.
    Raises AnnotationError."""
    spec = pod["spec"]
    patch = list(_environment(pod, template))  # before containers are inserted
    secrets = spec.get("imagePullSecrets") or []
    patch += _insert(spec, "imagePullSecrets", "-", [one for one in template.pull_secrets if one not in secrets])
    container, volumes = customized(template.container, template.volumes, asked(pod), template.pods_may_set)
    patch += _pod_level(spec.get("resources") or {}, container.get("resources") or {})
    key, at = ("initContainers", "0") if template.native else ("containers", "-")
    patch += _insert(spec, key, at, [container])
    if template.redirect is not None:
        there = template.native or spec.get("initContainers")  # by now
        path, value = (
            ("/spec/initContainers/0", template.redirect) if there else ("/spec/initContainers", [template.redirect])
        )
        patch.append({"op": "add", "path": path, "value": value})
    taken = {one["name"] for one in spec.get("volumes") or []}
    patch += _insert(spec, "volumes", "-", [one for one in volumes if one["name"] not in taken])
    patch += [
        {"op": "replace", "path": f"/spec/volumes/{index}", "value": one}
        for index, old in enumerate(spec.get("volumes") or [])
        for one in volumes
        if one["name"] == old["name"]
    ]
    grace = spec.get("terminationGracePeriodSeconds")
    if (DEFAULT_GRACE_S if grace is None else grace) < template.grace_s:
        patch.append({"op": "add", "path": "/spec/terminationGracePeriodSeconds", "value": template.grace_s})
    metadata = pod.get("metadata") or {}
    labels = template.labels | {INJECTED_LABEL: "true"}
    patch += _merge(metadata, "labels", labels, remove=SKIPPED_LABEL)
    patch += _merge(metadata, "annotations", _annotations(pod, template))
    return patch


def _annotations(pod: Json, template: Template) -> dict[str, str]:
    own, annotations = _own(pod, "annotations"), dict(template.annotations)
    if ADMIN_PORT in own and "prometheus.io/port" in annotations:
        annotations["prometheus.io/port"] = own[ADMIN_PORT]
    if _scraped(pod):
        annotations = {name: value for name, value in annotations.items() if not name.startswith("prometheus.io/")}
    if EVICTED in annotations and own.get(EVICTED):
        volumes_named = [*own[EVICTED].split(","), annotations[EVICTED]]
        annotations[EVICTED] = ",".join(dict.fromkeys(one.strip() for one in volumes_named))
    return annotations


def _insert(spec: Json, key: str, at: str, items: list[Json]) -> list[Json]:
    if not items:
        return []
    if not spec.get(key):
        return [{"op": "add", "path": f"/spec/{key}", "value": items}]
    return [{"op": "add", "path": f"/spec/{key}/{at}", "value": item} for item in items]


def _merge(metadata: Json, key: str, values: dict[str, str], remove: str | None = None) -> list[Json]:
    old = metadata.get(key)
    if not old:
        return [{"op": "add", "path": f"/metadata/{key}", "value": values}]
    patch: list[Json] = [
        {"op": "add", "path": f"/metadata/{key}/{_escape(name)}", "value": value} for name, value in values.items()
    ]
    if remove in old:
        patch.append({"op": "remove", "path": f"/metadata/{key}/{_escape(str(remove))}"})
    return patch


def _escape(name: str) -> str:
    """Escape for JSON Pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
