"""Keeps the configuration, with a namespace's own quotas, in every namespace whose pods get sidecars."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from config.parts import HEADER as PARTS
from deploy.kubernetes.cluster import CONFIGURATIONS, ApiServerError, Cluster, owner_reference
from deploy.kubernetes.distribution import (
    FILE,
    INJECTION_LABEL,
    Distribution,
    Json,
    Known,
    NamespacePlan,
    Observed,
    fault,
    judged,
    metadata_of,
    plans,
)

EVERY_S: Final = 10.0
POLICIES_API: Final = "/apis/networking.k8s.io/v1"
MAX_MESSAGE: Final = 1000
"""Characters of an event's message; Kubernetes accepts 1024."""

log = structlog.get_logger("kquota.webhook")


@dataclass(slots=True)
class Distributor:
    """Distributes for as long as the webhook runs."""

    cluster: Cluster
    settings: Distribution
    _problems: dict[str, str] = field(default_factory=dict)
    _known: Known = field(default_factory=dict)
    _served: set[str] = field(default_factory=set)
    _wake: trio.Event = field(default_factory=trio.Event)

    def pod_of(self, namespace: str) -> None:
        """A pod is created there: if the namespace may have no copy yet, start a round now and not in ten seconds."""
        if namespace not in self._served and namespace != self.settings.namespace:
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled. Failed steps are retried."""
        while True:
            try:
                await self.round()
                self._complain("", None)
            except ApiServerError as error:
                self._complain("", str(error))
            except Exception as error:  # pods are still admitted, and the next round may be better
                if self._complain("", fault(error)):
                    log.exception("configuration not distributed: internal error")
            with trio.move_on_after(EVERY_S):
                await self._wake.wait()
            self._wake = trio.Event()
            await trio.sleep(0.2)  # many pods at once need one round

    async def round(self) -> None:
        """Observe, and correct what is not as it should be. Raises ApiServerError."""
        seen = await self.look()
        self._served = set()
        for key in [one for one in self._known if one[0] not in seen.quotas]:
            del self._known[key]
        found = plans(seen, self.settings, self._known)
        while (plan := await trio.to_thread.run_sync(next, found, None)) is not None:
            await self._carry_out(plan)
        for namespace in self._problems.keys() - seen.namespaces.keys() - {""}:
            del self._problems[namespace]

    async def _carry_out(self, plan: NamespacePlan) -> None:
        """Write one namespace's copy, and say there what is wrong. No exception of one reaches another."""
        namespace = plan.namespace
        try:
            if plan.body is not None:
                where = _config_map(namespace, self.settings.name)
                if plan.immutable:
                    await self.cluster.ask("DELETE", where)
                await self.cluster.apply(where, plan.body)
                log.info("configuration copied to namespace", namespace=namespace)
                if plan.new and self.settings.secrets:
                    text = (
                        f"Pods of this namespace get sidecars, which need Secrets: {', '.join(self.settings.secrets)}."
                    )
                    await self._event(namespace, self.settings.name, "SecretsNeeded", text, kind="Normal")
            await self._limit_admin_port(plan)
        except ApiServerError as error:
            plan.problem = str(error)
        except Exception as error:
            log.exception("namespace configuration failed: internal error", namespace=namespace)
            plan.problem = fault(error)
        if plan.problem is None:
            self._served.add(namespace)
        if self._complain(namespace, " ".join(filter(None, (plan.refused, plan.problem))) or None):
            about = (self.settings.name, "NotDistributed")
            if plan.problem is None:
                about = (self.settings.quotas_name, "QuotasRefused")
            await self._event(namespace, *about, self._problems[namespace])

    async def _limit_admin_port(self, plan: NamespacePlan) -> None:
        """Apply the NetworkPolicy, or delete it because the namespace has its own. Raises ApiServerError."""
        namespace, name = plan.namespace, self.settings.name
        where = f"{POLICIES_API}/namespaces/{namespace}/networkpolicies/{name}"
        if plan.policy is not None:
            await self.cluster.apply(where, plan.policy)
            log.info("NetworkPolicy applied to namespace", namespace=namespace)
        elif plan.other_policies:
            await self.cluster.ask("DELETE", where)
            text = (
                f"NetworkPolicy {name} is deleted: the namespace has its own ({', '.join(plan.other_policies)}). "
                "Allow the admin port there."
            )
            await self._event(namespace, name, "NetworkPolicyDeleted", text, kind="Normal")

    async def judge(self, namespace: str, quotas: str | None) -> str | None:
        """Why quotas that a namespace is about to have would be refused, if so. Raises ApiServerError."""
        if namespace == self.settings.namespace:
            return None
        base = await self._base()
        labels = metadata_of(await self.cluster.ask("GET", f"/api/v1/namespaces/{namespace}"))
        key = (namespace, False)
        return (await trio.to_thread.run_sync(judged, base, labels, quotas, self.settings, {}, key)).refused

    def metrics(self) -> str:
        """The state of the distribution for Prometheus."""
        lines = [
            "# HELP kquota_webhook_namespace_problem 1: a namespace's configuration (no name: all) is not up to date; "
            "see its events.",
            "# TYPE kquota_webhook_namespace_problem gauge",
            *(f'kquota_webhook_namespace_problem{{namespace="{name}"}} 1' for name in sorted(self._problems)),
        ]
        return "\n".join(lines) + "\n"

    async def look(self) -> Observed:
        """The observed state. Raises ApiServerError."""
        settings, cluster = self.settings, self.cluster

        async def config_maps(name: str) -> dict[str, Json]:
            found = await cluster.list("/api/v1/configmaps", fieldSelector=f"metadata.name={name}")
            return {one["metadata"]["namespace"]: one for one in found}

        base = await self._base()
        configuration = await cluster.ask("GET", f"{CONFIGURATIONS}/{settings.configuration}")
        spaces = await cluster.list("/api/v1/namespaces", labelSelector=f"{INJECTION_LABEL}=enabled")
        copies, quotas = await config_maps(settings.name), await config_maps(settings.quotas_name)
        others = copies.keys() - {one["metadata"]["name"] for one in spaces}  # pods created earlier may run there
        found = [await cluster.get(f"/api/v1/namespaces/{name}") for name in sorted(others)]
        spaces += [one for one in found if one is not None]
        policies: dict[str, list[Json]] = {}
        if settings.network_policy is not None:
            for one in await cluster.list(f"{POLICIES_API}/networkpolicies"):
                policies.setdefault(one["metadata"]["namespace"], []).append(one)
        alive = [one for one in spaces if not one["metadata"].get("deletionTimestamp")]
        return Observed(
            base=base,
            owner=owner_reference(configuration),
            namespaces={one["metadata"]["name"]: metadata_of(one) for one in alive},
            copies=copies,
            quotas=quotas,
            policies=policies,
        )

    async def _base(self) -> str:
        """The configuration file that the chart renders. Raises ApiServerError."""
        settings, ask = self.settings, self.cluster.ask
        text = str((await ask("GET", _config_map(settings.namespace, settings.name)))["data"][FILE])
        header = PARTS.match(text.encode())
        if header is None:
            return text
        text = text[header.end() :]
        for number in range(2, int(header[1]) + 1):
            part = await ask("GET", _config_map(settings.namespace, f"{settings.name}-{number}"))
            text += part["data"][f"{FILE}.{number}"]
        if hashlib.sha256(text.encode()).hexdigest() != header[2].decode():
            what = f"ConfigMaps {settings.name} to {settings.name}-{header[1].decode()}"
            raise ApiServerError(what, 0, "they belong to two revisions; the webhook retries until the upgrade ends")
        return text

    def _complain(self, namespace: str, what: str | None) -> bool:
        if what is None:
            if self._problems.pop(namespace, None) is not None:
                log.info("namespace configuration is up to date again", namespace=namespace or None)
            return False
        if self._problems.get(namespace) == what:
            return False
        self._problems[namespace] = what
        log.warning("namespace configuration is not up to date", namespace=namespace or None, error=what)
        return True

    async def _event(self, namespace: str, name: str, reason: str, message: str, kind: str = "Warning") -> None:
        """Where users of the namespace look: `kubectl describe configmap`, `kubectl get events`."""
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": namespace},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "kquota-webhook"},
            "reportingComponent": "kquota.io/webhook",
            "count": 1,
        }
        try:
            await self.cluster.ask("POST", f"/api/v1/namespaces/{namespace}/events", body)
        except Exception as error:
            log.warning("cannot create an event about a namespace's problem", namespace=namespace, error=str(error))


def _config_map(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"
