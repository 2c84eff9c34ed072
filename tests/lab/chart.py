"""Writes the parts of the Helm chart that are generated from the configuration model (`make chart`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from config.model import json_schema, live_settings
from deploy.kubernetes.own_quotas import POLICIES
from deploy.kubernetes.review import GROUPS

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
CHART: Final = ROOT / "helm" / "kquota"

Schema = dict[str, Any]

_ANY_OBJECT: Final[Schema] = {"type": "object"}
_OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_LABEL: Final[Schema] = {"type": "string", "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}
_DNS_NAME: Final[Schema] = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
_SECONDS: Final[Schema] = {"type": "integer", "minimum": 0}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_COUNT_OR_PERCENT: Final[Schema] = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]
}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_DIGEST: Final[Schema] = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
_NAMES: Final[Schema] = {"type": "array", "items": _NAME}
_NODE_PORT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 65_535}
_PORTS: Final[Schema] = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, {"type": "string", "pattern": "^[0-9]+(-[0-9]+)?$"}]
}


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _each(*required: str, **properties: Schema) -> Schema:
    return {"type": "array", "items": {**_closed(**properties), "required": list(required)}}


_SHARED: Final[dict[str, Schema]] = {}
"""Definitions by name."""


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
            values={"type": "array", "items": _TEXT},
        ),
    ),
)
_PEERS: Final = _shared(
    "Peers",
    _each(
        namespaceSelector=_SELECTOR,
        podSelector=_SELECTOR,
        ipBlock={**_closed(cidr=_NAME, **{"except": {"type": "array", "items": _NAME}}), "required": ["cidr"]},
    ),
)
_INGRESS: Final = _each(
    **{"from": _PEERS}, ports=_each(port={"type": ["integer", "string"]}, endPort=_COUNT, protocol=_NAME)
)
_VARIABLES: Final = r"^(\s*[-._a-zA-Z][-._a-zA-Z0-9]*\s*(,|$))*$"
_ENV: Final = _shared("Env", _each("name", name=_NAME, value=_TEXT, valueFrom=_ANY_OBJECT))
_VOLUMES: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {
                "type": "string",
                "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
                "not": {"enum": ["kquota-config", "kquota-state", "kquota-pod", "kquota-fleet"]},
            }
        },
    },
}
"""Of other names than the sidecar's own."""
_MOUNTS: Final[Schema] = _each(
    "name",
    "mountPath",
    name=_NAME,
    mountPath={"type": "string", "pattern": "^/.", "not": {"pattern": "^/(etc|var/lib)/kquota(/|$)"}},
    readOnly=_BOOLEAN,
    recursiveReadOnly=_TEXT,
    mountPropagation=_TEXT,
    subPath=_TEXT,
    subPathExpr=_TEXT,
)
_SCHEDULING: Final[dict[str, Schema]] = {
    "nodeSelector": _STRINGS,
    "tolerations": _TOLERATIONS,
    "affinity": _closed(nodeAffinity=_ANY_OBJECT, podAffinity=_ANY_OBJECT, podAntiAffinity=_ANY_OBJECT),
    "topologySpreadConstraints": {
        "type": "array",
        "items": {"type": "object", "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"]},
    },
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


_OWN: Final[dict[str, Schema]] = {
    "global": {**_ANY_OBJECT, "description": "Helm's own; not used."},
    "enabled": {**_BOOLEAN, "description": "For charts that include this one under a condition."},
    "nameOverride": {**_LABEL, "description": "In place of the chart's name in names and labels."},
    "fullnameOverride": {
        "type": "string",
        "pattern": "^([a-z]([-a-z0-9]*[a-z0-9])?)?$",
        "not": {"enum": ["y", "n", "yes", "no", "on", "off", "true", "false", "null"]},
        "description": "In place of release and chart name in names.",
    },
    "mode": {
        "enum": ["sidecar", "gateway"],
        "description": "sidecar: templates to include in pods; gateway: a Deployment of its own.",
    },
    "image": {
        **_closed(
            repository=_NAME, tag=_TEXT, digest=_DIGEST, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}
        ),
        "description": "A digest wins over the tag; without either it is the chart's appVersion.",
    },
    "runAsUser": {
        "anyOf": [_COUNT, {"enum": ["namespace"]}],
        "description": "User of the containers; namespace: the namespace assigns user and groups.",
    },
    "commonLabels": {**_LABELS, "description": "Labels of every object, next to the chart's own."},
    "commonAnnotations": {**_STRINGS, "description": "Annotations of every object, next to the chart's own."},
    "namespaceOverride": {**_DNS_NAME, "description": "In place of the release's namespace."},
    "extraObjects": {
        "type": "array",
        "items": {"type": ["object", "string"]},
        "description": "Further objects of the release, as objects or as templates.",
    },
    "imagePullSecrets": {**_each("name", name=_NAME), "description": "For the pods that this chart makes itself."},
    "sidecar": {
        **_closed(native={"enum": ["auto", True, False]}, preStopSleepSeconds=_SECONDS),
        "description": "native: an init container with restartPolicy Always; auto: from Kubernetes 1.29 on.",
    },
    "redirect": {
        **_closed(
            image=_closed(repository=_NAME, tag=_TEXT, digest=_DIGEST),
            ports={"type": "array", "items": _PORTS},
            networks=_NAMES,
            excludePorts={"type": "array", "items": _PORTS},
            excludeNetworks=_NAMES,
            excludeUids={"type": "array", "items": {"type": "integer", "minimum": 0}},
            uid=_COUNT,
            whenDown={"enum": ["closed", "open"]},
            resources=_RESOURCES,
        ),
        "description": "Only with config.mode: transparent: which connections an init container has redirected.",
    },
    "resources": {**_RESOURCES, "description": "Of the kquota container."},
    "memoryLimit": {
        **_closed(enabled=_BOOLEAN, connections=_COUNT),
        "description": "The memory limit of the kquota container that follows from the settings.",
    },
    "extraEnv": {**_ENV, "description": "More environment of the kquota container."},
    "extraVolumes": {**_VOLUMES, "description": "More volumes of the pod, for files that the configuration names."},
    "extraVolumeMounts": {**_MOUNTS, "description": "Where the kquota container finds them."},
    "fleetKey": {
        **_closed(secret=_DNS_NAME, entry={"type": "string", "pattern": "^[-._a-zA-Z0-9]+$"}),
        "description": "The Secret with the key that authenticates a fleet's records; empty: the chart makes one.",
    },
    "podIdentity": {
        **_closed(enabled=_BOOLEAN),
        "description": "Files about the pod under /etc/kquota-pod, written by the API server, for identity.static.",
    },
    "state": {**_closed(volume=_ANY_OBJECT), "description": "The volume at /var/lib/kquota, the one writable place."},
    "probes": {
        **_closed(startup=_probe(path=True, ends=True), readiness=_probe(path=True), liveness=_probe(ends=True)),
        "description": "On the admin port. Liveness never depends on the brokers.",
    },
    "prometheusAnnotations": {**_BOOLEAN, "description": "prometheus.io/* annotations on pods."},
    "gateway": {
        **_closed(
            replicas=_COUNT,
            preStopSleepSeconds=_SECONDS,
            service=_closed(
                type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                nodePorts=_closed(bootstrap=_NODE_PORT, firstBroker=_NODE_PORT),
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
        "description": "Only with mode: gateway.",
    },
    "podMonitor": {
        **_closed(
            enabled=_BOOLEAN,
            interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
            scrapeTimeout={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
            labels=_LABELS,
            relabelings=_OBJECTS,
            metricRelabelings=_OBJECTS,
        ),
        "description": "For the Prometheus operator. Sidecars have no Service, hence no ServiceMonitor.",
    },
    "prometheusRule": {
        **_closed(enabled=_BOOLEAN, labels=_LABELS, runbookUrl=_TEXT),
        "description": "The rules in files/rules.",
    },
    "dashboards": {
        **_closed(enabled=_BOOLEAN, labels=_LABELS, annotations=_STRINGS),
        "description": "ConfigMaps for Grafana's sidecar, of the files in files/dashboards.",
    },
    "networkPolicy": {
        **_closed(
            enabled=_BOOLEAN,
            monitoring=_PEERS,
            clients=_PEERS,
            extraIngress=_INGRESS,
        ),
        "description": "What may connect to the pods.",
    },
    "demo": {
        **_closed(enabled=_BOOLEAN, image=_NAME, topic=_NAME, records=_COUNT),
        "description": "A Job that produces through a sidecar, throttled, and ends.",
    },
    "webhook": {
        **_closed(
            enabled=_BOOLEAN,
            namespaces={"type": "array", "items": _NAME, "uniqueItems": True},
            optIn=_BOOLEAN,
            failurePolicy={"enum": ["Fail", "Ignore"]},
            namespaceQuotas={"enum": list(POLICIES)},
            podsMaySet={"type": "array", "items": {"enum": list(GROUPS)}, "uniqueItems": True},
            podAnnotations={
                "type": "array",
                "items": {"enum": list(GROUPS)},
                "uniqueItems": True,
                "description": "The former name of podsMaySet.",
            },
            bootstrapVariable={"type": "string", "pattern": _VARIABLES},
            networkPolicy=_BOOLEAN,
            timeoutSeconds={"type": "integer", "minimum": 1, "maximum": 30},
            replicas=_COUNT,
            certificates={"enum": ["own", "cert-manager", "generated"]},
            generatedDays=_COUNT,
            issuerRef=_closed(name=_NAME, kind=_NAME, group=_NAME),
            resources=_RESOURCES,
            **_SCHEDULING,
        ),
        "description": "Puts sidecars into the pods of chosen namespaces.",
    },
    "analysis": {
        **_closed(
            enabled=_BOOLEAN,
            kind={"enum": ["CronJob", "ScheduledSparkApplication"]},
            image=_closed(repository=_NAME, tag=_TEXT, pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]}),
            schedule=_NAME,
            timeZone=_TEXT,
            input=_TEXT,
            output=_TEXT,
            reports={
                "type": "array",
                "items": {
                    **_closed(
                        name={"type": "string", "pattern": "^[a-z]+$"},
                        arguments={"type": "array", "items": _TEXT},
                        schedule=_NAME,
                        input=_NAME,
                        output=_NAME,
                    ),
                    "required": ["name"],
                },
            },
            stream=_closed(
                enabled=_BOOLEAN,
                input=_TEXT,
                output=_TEXT,
                arguments={"type": "array", "items": _TEXT},
                metricsPort={"type": "integer", "minimum": 0, "maximum": 65_535},
            ),
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
        "description": "Reports over usage records by schedule, and the stream.",
    },
    "test": {**_closed(enabled=_BOOLEAN, **_HOOK), "description": "The hook of helm test."},
    "check": {
        **_closed(enabled=_BOOLEAN, timeoutSeconds={"type": "integer", "minimum": 1}, **_HOOK),
        "description": "The hook that checks the configuration before it is deployed.",
    },
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
        "files/live-settings.json": {"paths": live_settings()},
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
