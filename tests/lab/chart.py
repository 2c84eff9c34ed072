"""Writes the parts of the Helm chart that are generated from the configuration model (`make chart`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from config.model import LIVE_SETTINGS, json_schema
from deploy.kubernetes.own_quotas import POLICIES
from deploy.kubernetes.review import GROUPS

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = ROOT / "helm" / "kquota"

Schema = dict[str, Any]


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _like(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


_ANY_OBJECT: Final[Schema] = {"type": "object"}
_OBJECTS: Final = _list(_ANY_OBJECT)
_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_LABEL: Final = _like("^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_DNS_NAME: Final = _like("^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")
_NATURAL: Final[Schema] = {"type": "integer", "minimum": 0}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_COUNT_OR_PERCENT: Final[Schema] = {"anyOf": [_NATURAL, _like("^[0-9]+%$")]}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final = _list(_TEXT)
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_DIGEST: Final = _like("^(sha256:[0-9a-f]{64})?$")
_NAMES: Final = _list(_NAME)
_PORT_OR_NONE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 65_535}
_PORTS: Final[Schema] = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, _like("^[0-9]+(-[0-9]+)?$")]}


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _said(description: str, schema: Schema) -> Schema:
    return schema | {"description": description}


def _group(description: str, **properties: Schema) -> Schema:
    return _said(description, _closed(**properties))


def _each(*required: str, **properties: Schema) -> Schema:
    return _list({**_closed(**properties), "required": list(required)})


_SHARED: Final[dict[str, Schema]] = {}


def _shared(name: str, schema: Schema) -> Schema:
    """A reference to a definition, next to which other keywords count."""
    _SHARED[name] = schema
    return {"allOf": [{"$ref": f"#/definitions/{name}"}]}


_QUANTITY: Final[Schema] = {
    "type": ["string", "number"],
    "pattern": r"^([0-9]+\.?[0-9]*|\.[0-9]+)(n|u|m|[kMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$",
    "minimum": 0,
}
_QUANTITIES: Final = _shared("Quantities", {"type": "object", "additionalProperties": _QUANTITY})
_RESOURCES: Final = _shared(
    "Resources", _closed(requests=_QUANTITIES, limits=_QUANTITIES, claims=_each("name", name=_NAME, request=_NAME))
)
_TOLERATIONS: Final = _shared(
    "Tolerations",
    _each(
        key=_TEXT,
        operator={"enum": ["Exists", "Equal", "Lt", "Gt"]},
        value=_TEXT,
        effect={"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
        tolerationSeconds={"type": "integer"},
    ),
)
_LABELS: Final = _shared("Labels", {"type": "object", "additionalProperties": _LABEL})
_SELECTOR: Final = _shared(
    "Selector",
    _closed(
        matchLabels=_LABELS,
        matchExpressions=_each(
            "key",
            "operator",
            key=_NAME,
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=_TEXTS,
        ),
    ),
)
_PEERS: Final = _shared(
    "Peers",
    _each(
        namespaceSelector=_SELECTOR,
        podSelector=_SELECTOR,
        ipBlock={**_closed(cidr=_NAME, **{"except": _NAMES}), "required": ["cidr"]},
    ),
)
_INGRESS: Final = _each(
    **{"from": _PEERS}, ports=_each(port={"type": ["integer", "string"]}, endPort=_COUNT, protocol=_NAME)
)
_VARIABLES: Final = r"^(\s*[-._a-zA-Z][-._a-zA-Z0-9]*\s*(,|$))*$"
_ENV: Final = _shared("Env", _each("name", name=_NAME, value=_TEXT, valueFrom=_ANY_OBJECT))
_VOLUME_NAME: Final = _like("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$") | {
    "not": {"enum": ["kquota-config", "kquota-state", "kquota-pod", "kquota-fleet"]}
}
"""Another than the sidecar's own."""
_VOLUMES: Final = _list({"type": "object", "required": ["name"], "properties": {"name": _VOLUME_NAME}})
_MOUNTS: Final = _each(
    "name",
    "mountPath",
    name=_NAME,
    mountPath=_like("^/.") | {"not": {"pattern": "^/(etc|var/lib)/kquota(/|$)"}},
    readOnly=_BOOLEAN,
    **dict.fromkeys(("recursiveReadOnly", "mountPropagation", "subPath", "subPathExpr"), _TEXT),
)
_SCHEDULING: Final[dict[str, Schema]] = {
    "nodeSelector": _STRINGS,
    "tolerations": _TOLERATIONS,
    "affinity": _closed(nodeAffinity=_ANY_OBJECT, podAffinity=_ANY_OBJECT, podAntiAffinity=_ANY_OBJECT),
    "topologySpreadConstraints": _list({"type": "object", "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"]}),
    "priorityClassName": _TEXT,
}
_HOOK: Final[dict[str, Schema]] = {
    "resources": _RESOURCES,
    "labels": _LABELS,
    "annotations": _STRINGS,
    "nodeSelector": _STRINGS,
    "tolerations": _TOLERATIONS,
}


def _probe(*, path: bool = False, ends: bool = False) -> Schema:
    """`ends`: a failure makes the kubelet restart a container, after a grace period that may be its own."""
    schema = _closed(periodSeconds=_COUNT, timeoutSeconds=_COUNT, failureThreshold=_COUNT)
    if path:
        schema["properties"]["path"] = {"enum": ["/healthz", "/readyz", ""]}
    if ends:
        schema["properties"]["terminationGracePeriodSeconds"] = _COUNT
    return schema


_YAML_WORDS: Final = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
_OWN: Final[dict[str, Schema]] = {
    "global": _said("Helm's global values; not used.", _ANY_OBJECT),
    "enabled": _said("For charts that include this one under a condition.", _BOOLEAN),
    "nameOverride": _said("Replaces the chart's name in names and labels.", _LABEL),
    "fullnameOverride": _said(
        "Replaces the full name, which has the release's and the chart's.",
        _like("^([a-z]([-a-z0-9]*[a-z0-9])?)?$") | {"not": {"enum": _YAML_WORDS}},
    ),
    "mode": _said(
        "sidecar: templates to include in pods; gateway: a Deployment and a Service.", {"enum": ["sidecar", "gateway"]}
    ),
    "image": _group(
        "A digest wins over the tag; without either it is the chart's appVersion.",
        repository=_NAME,
        tag=_TEXT,
        digest=_DIGEST,
        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    ),
    "runAsUser": _said(
        "User of the containers; namespace: the namespace assigns user and groups.",
        {"anyOf": [_COUNT, {"enum": ["namespace"]}]},
    ),
    "commonLabels": _said("Labels of every object, next to the chart's own.", _LABELS),
    "commonAnnotations": _said("Annotations of every object, next to the chart's own.", _STRINGS),
    "namespaceOverride": _said("Namespace of the objects, instead of the release's.", _DNS_NAME),
    "extraObjects": _said(
        "Further objects of the release, as objects or as templates.", _list({"type": ["object", "string"]})
    ),
    "imagePullSecrets": _said("Pull secrets of the chart's pods and of injected pods.", _each("name", name=_NAME)),
    "sidecar": _group(
        "native: an init container with restartPolicy Always; auto: from Kubernetes 1.29 on.",
        native={"enum": ["auto", True, False]},
        preStopSleepSeconds=_NATURAL,
    ),
    "redirect": _group(
        "Only with config.mode: transparent: which connections an init container has redirected.",
        image=_closed(repository=_NAME, tag=_TEXT, digest=_DIGEST),
        ports=_list(_PORTS),
        networks=_NAMES,
        excludePorts=_list(_PORTS),
        excludeNetworks=_NAMES,
        excludeUids=_list(_NATURAL),
        uid=_COUNT,
        whenDown={"enum": ["closed", "open"]},
        resources=_RESOURCES,
    ),
    "resources": _said("Resources of the kquota container.", _RESOURCES),
    "memoryLimit": _group("The computed memory limit of the kquota container.", enabled=_BOOLEAN, connections=_COUNT),
    "extraEnv": _said("Environment variables of the kquota container.", _ENV),
    "extraVolumes": _said("More volumes of the pod, for files that the configuration names.", _VOLUMES),
    "extraVolumeMounts": _said("Mounts of extraVolumes in the kquota container.", _MOUNTS),
    "fleetKey": _group(
        "The Secret with the key that authenticates a fleet's records; empty: the chart makes one.",
        secret=_DNS_NAME,
        entry=_like("^[-._a-zA-Z0-9]+$"),
    ),
    "podIdentity": _group(
        "Files about the pod under /etc/kquota-pod, written by the API server, for identity.static.", enabled=_BOOLEAN
    ),
    "state": _group("The volume at /var/lib/kquota, the only writable directory.", volume=_ANY_OBJECT),
    "probes": _group(
        "Probes of the admin port. Liveness never depends on the brokers.",
        startup=_probe(path=True, ends=True),
        readiness=_probe(path=True),
        liveness=_probe(ends=True),
    ),
    "prometheusAnnotations": _said("prometheus.io/* annotations on pods.", _BOOLEAN),
    "gateway": _group(
        "Only with mode: gateway.",
        replicas=_COUNT,
        preStopSleepSeconds=_NATURAL,
        service=_closed(
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            nodePorts=_closed(bootstrap=_PORT_OR_NONE, firstBroker=_PORT_OR_NONE),
            annotations=_STRINGS,
            labels=_LABELS,
        ),
        serviceAccount=_closed(create=_BOOLEAN, name=_DNS_NAME, annotations=_STRINGS),
        sharedLimits=_BOOLEAN,
        podDisruptionBudget=_closed(enabled=_BOOLEAN, maxUnavailable=_COUNT_OR_PERCENT),
        autoscaling=_closed(
            enabled=_BOOLEAN, minReplicas=_COUNT, maxReplicas=_COUNT, targetCPUUtilizationPercentage=_COUNT
        ),
        podAnnotations=_STRINGS,
        podLabels=_LABELS,
        **_SCHEDULING,
    ),
    "podMonitor": _group(
        "For the Prometheus operator. Sidecars have no Service, hence no ServiceMonitor.",
        enabled=_BOOLEAN,
        interval=_like("^[0-9]+(ms|s|m)$"),
        scrapeTimeout=_like("^[0-9]+(ms|s|m)$"),
        labels=_LABELS,
        relabelings=_OBJECTS,
        metricRelabelings=_OBJECTS,
    ),
    "prometheusRule": _group("The rules in files/rules.", enabled=_BOOLEAN, labels=_LABELS, runbookUrl=_TEXT),
    "dashboards": _group(
        "ConfigMaps for Grafana's sidecar, of the files in files/dashboards.",
        enabled=_BOOLEAN,
        labels=_LABELS,
        annotations=_STRINGS,
    ),
    "networkPolicy": _group(
        "NetworkPolicy for pods with a kquota container.",
        enabled=_BOOLEAN,
        monitoring=_PEERS,
        clients=_PEERS,
        extraIngress=_INGRESS,
    ),
    "demo": _group(
        "A Job that produces through a sidecar.",
        enabled=_BOOLEAN,
        image=_NAME,
        topic=_NAME,
        records=_COUNT,
    ),
    "webhook": _group(
        "Adds sidecars to new pods of labelled namespaces.",
        enabled=_BOOLEAN,
        namespaces=_list(_NAME, uniqueItems=True),
        optIn=_BOOLEAN,
        failurePolicy={"enum": ["Fail", "Ignore"]},
        namespaceQuotas={"enum": list(POLICIES)},
        podsMaySet=_list({"enum": list(GROUPS)}, uniqueItems=True),
        podAnnotations=_said("The former name of podsMaySet.", _list({"enum": list(GROUPS)}, uniqueItems=True)),
        bootstrapVariable=_like(_VARIABLES),
        networkPolicy=_BOOLEAN,
        timeoutSeconds={"type": "integer", "minimum": 1, "maximum": 30},
        replicas=_COUNT,
        certificates={"enum": ["own", "cert-manager", "generated"]},
        generatedDays=_COUNT,
        issuerRef=_closed(name=_NAME, kind=_NAME, group=_NAME),
        resources=_RESOURCES,
        **_SCHEDULING,
    ),
    "analysis": _group(
        "Scheduled reports and a streaming job over usage records.",
        enabled=_BOOLEAN,
        kind={"enum": ["CronJob", "ScheduledSparkApplication"]},
        image=_closed(repository=_NAME, tag=_TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
        schedule=_NAME,
        timeZone=_TEXT,
        input=_TEXT,
        output=_TEXT,
        reports=_each("name", name=_like("^[a-z]+$"), arguments=_TEXTS, schedule=_NAME, input=_NAME, output=_NAME),
        stream=_closed(enabled=_BOOLEAN, input=_TEXT, output=_TEXT, arguments=_TEXTS, metricsPort=_PORT_OR_NONE),
        conf=_STRINGS,
        files=_STRINGS,
        env=_ENV,
        driver=_closed(cores=_COUNT, memory=_NAME, resources=_RESOURCES, serviceAccount=_TEXT),
        executor=_closed(instances=_COUNT, cores=_COUNT, memory=_NAME),
        volumes=_OBJECTS,
        volumeMounts=_OBJECTS,
        nodeSelector=_STRINGS,
        tolerations=_TOLERATIONS,
    ),
    "test": _group("The hook of helm test.", enabled=_BOOLEAN, **_HOOK),
    "check": _group(
        "The hook that checks the configuration before it is deployed.",
        enabled=_BOOLEAN,
        timeoutSeconds=_COUNT,
        **_HOOK,
    ),
}


def values_schema() -> Schema:
    """The JSON schema of the chart's values: draft 7, which Helm 3 and 4 both know."""
    model = _as_draft_7(json_schema())
    definitions: dict[str, Schema] = model["definitions"]
    settings: dict[str, Schema] = dict(model["properties"])
    quotas = settings.pop("quotas")
    definitions |= _SHARED
    definitions["Config"] = {
        "type": "object",
        "additionalProperties": False,
        "description": "The configuration file but for quotas, see docs/configuration.md.",
        "properties": settings,
        # upstream.bootstrap is required in the templates (kquota.config): so the chart lints as it is, and an
        # installation without values says what is missing.
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the kquota chart",
        "description": "GENERATED by `make chart` from the configuration model: do not edit.",
        "type": "object",
        "additionalProperties": False,
        "properties": {**_OWN, "config": {"$ref": "#/definitions/Config"}, "quotas": quotas},
        "definitions": definitions,
    }


def _as_draft_7(value: Any) -> Any:
    """The same schema with draft 7's name for definitions, and without the titles that repeat property names."""
    if isinstance(value, list):
        return [_as_draft_7(item) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "title" and isinstance(inner, str):
            continue
        if key == "$ref":
            found[key] = inner.replace("#/$defs/", "#/definitions/")
        else:
            found["definitions" if key == "$defs" else key] = _as_draft_7(inner)
    return found


def generated() -> dict[Path, str]:
    contents = {
        "values.schema.json": values_schema(),
        "files/live-settings.json": {"paths": LIVE_SETTINGS},
        "files/defaults.json": yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")),
    }
    found = {CHART / name: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in contents.items()}
    found[CHART / "files/rules/rules.yaml"] = (DEPLOY / "prometheus/kquota.rules.yaml").read_text(encoding="utf-8")
    for board in sorted((DEPLOY / "grafana").glob("*.json")):
        found[CHART / "files/dashboards" / board.name] = board.read_text(encoding="utf-8")
    return found


def main() -> None:
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
