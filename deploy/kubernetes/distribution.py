"""Which namespace gets which configuration, without a cluster. Each with the label gets a copy of the chart's ConfigMap
with its own NAME-quotas merged in; copies are deleted with the MutatingWebhookConfiguration."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import structlog
from pydantic import Field

from config.problems import ConfigError
from deploy.kubernetes import own_quotas
from deploy.kubernetes.own_quotas import POLICIES, Policy

INJECTION_LABEL: Final = "kquota.io/injection"
"""On namespaces, `enabled`: pods get sidecars, and the namespace the configuration."""
POLICY_LABEL: Final = "kquota.io/namespace-quotas"
"""On namespaces: what their own quotas may do, in place of the chart's `webhook.namespaceQuotas`."""
FAILURE_LABEL: Final = "kquota.io/failure-policy"
"""On namespaces, for the API server alone: in place of the chart's `webhook.failurePolicy`."""
COPY_ANNOTATION: Final = "kquota.io/copy-of"
FILE: Final = "kquota.yaml"
MOST_PLAIN: Final = 512 * 1024
"""A longer configuration is compressed in copies (config/parts.py): a ConfigMap holds 1 MiB."""

Json = dict[str, Any]
log = structlog.get_logger("kquota.webhook")


@dataclass(frozen=True, slots=True)
class Distribution:
    """The chart's settings for the distribution; the aliases are their names in its JSON."""

    namespace: str
    name: Annotated[str, Field(alias="configMap")]
    """The name of the release's ConfigMap, and of the copies."""
    configuration: Annotated[str, Field(alias="webhookConfiguration")]
    only: Annotated[frozenset[str], Field(alias="namespaces")]
    """The only namespaces that get a copy; empty: every one with the label."""
    policy: Annotated[Policy, Field(alias="namespaceQuotas")]
    labels: dict[str, str]
    secret: Annotated[str | None, Field(alias="certificateSecret")]
    """The Secret with the webhook's own certificate; None: another program creates it."""
    host: str
    """The name of the webhook's Service, which the certificate is for."""
    secrets: tuple[str, ...] = ()
    """Secrets that pods with a sidecar need in their namespaces."""
    network_policy: Annotated[Json | None, Field(alias="networkPolicy")] = None
    """The spec of the NetworkPolicy for the admin port, for namespaces without policies for ingress."""

    @property
    def original(self) -> str:
        """How copies name their original."""
        return f"{self.namespace}/{self.name}"

    @property
    def quotas_name(self) -> str:
        """The ConfigMap with a namespace's own quotas."""
        return f"{self.name}-quotas"


@dataclass(slots=True)
class Observed:
    """The observed state, as far as it matters."""

    base: str
    owner: Json
    namespaces: dict[str, dict[str, str]]
    """Labels of namespaces with the label or with a copy, unless they are terminating."""
    copies: dict[str, Json]
    quotas: dict[str, Json]
    policies: dict[str, list[Json]]
    """NetworkPolicies by namespace, if they matter."""


@dataclass(slots=True)
class NamespacePlan:
    """What to do for one namespace."""

    namespace: str
    body: Json | None = None
    """The copy as it should be; None: it already is."""
    new: bool = False
    immutable: bool = False
    """The copy was made immutable: it has to be deleted first."""
    refused: str | None = None
    """Which quotas are in force in place of the namespace's new ones, and why."""
    problem: str | None = None
    policy: Json | None = None
    """The NetworkPolicy as it should be; None: it already is, or there should be none."""
    other_policies: list[str] = field(default_factory=list)
    """The namespace's own policies for ingress, because of which ours is to be deleted."""


@dataclass(frozen=True, slots=True)
class QuotasResult:
    """The result for a namespace's quotas: the configuration file with them, or why they are rejected."""

    text: str | None
    refused: str | None


Known = dict[tuple[str, bool], tuple[bytes, QuotasResult]]
"""Results, which may take seconds, by namespace and whether they are in force; with a digest of their input."""


def plans(seen: Observed, settings: Distribution, known: Known) -> Iterator[NamespacePlan]:
    """For each namespace with the label, and for each that has a copy already; worked out when asked for, those with
    the least quotas first. An exception of one is its own problem."""
    ours = {where for where, one in seen.copies.items() if _is_ours(one, settings)}
    for namespace in sorted(seen.namespaces, key=lambda one: (len(_own(seen, one) or ""), one)):
        chosen = seen.namespaces[namespace].get(INJECTION_LABEL) == "enabled" and (
            not settings.only or namespace in settings.only
        )
        if namespace == settings.namespace or not (chosen or namespace in ours):
            continue
        copy = seen.copies.get(namespace)
        if copy is not None and namespace not in ours:
            text = f"ConfigMap {settings.name} exists and is not kquota's: sidecars get no configuration"
            yield NamespacePlan(namespace, problem=f"{text}; rename or delete it")
            continue
        try:
            plan = _plan(namespace, copy, seen, settings, known)
            plan.policy, plan.other_policies = _network_policy(namespace, seen, settings)
        except Exception as error:
            log.exception("namespace configuration failed: internal error", namespace=namespace)
            plan = NamespacePlan(namespace, problem=fault(error))
        yield plan


def _network_policy(namespace: str, seen: Observed, settings: Distribution) -> tuple[Json | None, list[str]]:
    """The NetworkPolicy to apply, or the namespace's own policies for ingress, because of which ours is to be deleted:
    policies add up, so ours would open ports that those close."""
    there = seen.policies.get(namespace, [])
    mine = [one["spec"] for one in there if _is_ours(one, settings)]
    others = [
        one["metadata"]["name"]
        for one in there
        if "Ingress" in one["spec"].get("policyTypes", ["Ingress"]) and not _is_ours(one, settings)
    ]
    if others or settings.network_policy is None:
        return None, others if mine else []
    if mine == [settings.network_policy]:
        return None, []
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return head | {"metadata": _metadata(namespace, seen.owner, settings), "spec": settings.network_policy}, []


def _is_ours(one: Json, settings: Distribution) -> bool:
    return metadata_of(one, "annotations").get(COPY_ANNOTATION) == settings.original


def fault(error: Exception) -> str:
    """The text for a namespace about an exception that nobody expected."""
    return f"internal error, please report it: {type(error).__name__}: {error}"


def _own(seen: Observed, namespace: str) -> str | None:
    """The text of a namespace's own quotas, None without any."""
    return (seen.quotas.get(namespace, {}).get("data") or {}).get(own_quotas.KEY)


def misunderstood(namespace: str, labels: dict[str, str], settings: Distribution) -> Iterator[str]:
    """A sentence about each label of a namespace that does not do what it seems to say."""
    known = {
        INJECTION_LABEL: (("enabled", "disabled"), "pods get no sidecar"),
        FAILURE_LABEL: (("Fail", "Ignore"), "the chart's webhook.failurePolicy applies"),
        POLICY_LABEL: (POLICIES, "quotas of the namespace are refused"),
    }
    for label, (values, means) in known.items():
        if (value := labels.get(label)) is not None and value not in values:
            expected = " or ".join(f'"{one}"' for one in values)
            yield f'label {label}: expected {expected}, got "{value}": {means}'
    if labels.get(INJECTION_LABEL) == "enabled" and settings.only and namespace not in settings.only:
        yield f"label {INJECTION_LABEL}: pods get no sidecar, webhook.namespaces of the chart does not name {namespace}"


def judged(
    base: str, labels: dict[str, str], given: str | None, settings: Distribution, known: Known, key: tuple[str, bool]
) -> QuotasResult:
    """The result for quotas that a namespace with these labels has, or is about to have; `known` keeps it by `key`."""
    wish = labels.get(POLICY_LABEL)
    policy: Policy = next((one for one in POLICIES if one == wish), settings.policy if wish is None else "none")
    file = f"ConfigMap {settings.quotas_name}, {own_quotas.KEY}"
    if given is None:
        return QuotasResult(None, f"{file}: no key {own_quotas.KEY}")
    digest = hashlib.sha256("\0".join((base, given, policy, file)).encode("utf-8", "surrogatepass")).digest()
    if key not in known or known[key][0] != digest:
        try:
            found = QuotasResult(own_quotas.combined(base, given.encode(), policy, file), None)
        except ConfigError as error:
            found = QuotasResult(None, str(error))
        except Exception as error:
            log.exception("cannot check a namespace's quotas: internal error", namespace=key[0])
            found = QuotasResult(None, f"{file}: {fault(error)}")
        known[key] = digest, found
    return known[key][1]


def _plan(namespace: str, copy: Json | None, seen: Observed, settings: Distribution, known: Known) -> NamespacePlan:
    labels = seen.namespaces[namespace]
    text, accepted, refused = seen.base, None, None
    if namespace in seen.quotas:
        given = _own(seen, namespace)
        before = ((copy or {}).get("data") or {}).get(own_quotas.KEY)
        outcome = judged(seen.base, labels, given, settings, known, (namespace, False))
        refused = outcome.refused
        if outcome.text is None and before is not None:  # the last valid ones stay, if they still are valid
            given, outcome = before, judged(seen.base, labels, before, settings, known, (namespace, True))
        if outcome.text is not None:
            text, accepted = outcome.text, given
        if refused is not None:
            rest = "The chart's quotas alone are" if accepted is None else "The former quotas stay"
            refused = f"{rest} in force. {refused}"
    body = _copy(namespace, text, accepted, seen.owner, settings)
    if copy is not None and _is_so(copy, body):
        return NamespacePlan(namespace, refused=refused)
    return NamespacePlan(
        namespace, body, new=copy is None, immutable=bool((copy or {}).get("immutable")), refused=refused
    )


def _copy(namespace: str, text: str, accepted: str | None, owner: Json, settings: Distribution) -> Json:
    data = {} if accepted is None else {own_quotas.KEY: accepted}
    content: Json = {"data": {FILE: text} | data}
    if len(text) > MOST_PLAIN:
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        content = {"data": data, "binaryData": {FILE: packed}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(namespace, owner, settings)} | content


def _metadata(namespace: str, owner: Json, settings: Distribution) -> Json:
    return {
        "name": settings.name,
        "namespace": namespace,
        "labels": settings.labels,
        "annotations": {COPY_ANNOTATION: settings.original},
        "ownerReferences": [owner],
    }


def _is_so(copy: Json, body: Json) -> bool:
    metadata, wanted = copy["metadata"], body["metadata"]
    owners = [one.get("uid") for one in metadata.get("ownerReferences") or []]
    return (
        (copy.get("data") or {}) == body["data"]
        and (copy.get("binaryData") or {}) == body.get("binaryData", {})
        and metadata_of(copy).items() >= wanted["labels"].items()
        and wanted["ownerReferences"][0]["uid"] in owners
    )


def metadata_of(one: Json, key: str = "labels") -> dict[str, str]:
    """The labels, or the annotations, of an object."""
    return (one.get("metadata") or {}).get(key) or {}
