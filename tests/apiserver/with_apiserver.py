"""The chart and the webhook with a real Kubernetes API server (`make test-apiserver`; not a part of `make test`)."""

import base64
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from tests.apiserver import pods
from tests.lab.chart import CHART
from tests.lab.kafka.ports import free_ports
from tests.support.apiserver_tools import VERSION, ApiServer, api_server, crds
from tests.support.chart_tools import (
    EXAMPLES,
    HELM_3,
    HELM_4,
    PLAIN,
    HelmRelease,
    ci_values,
    documents,
    helm,
    manifest,
    of_kind,
    pod_specs,
    render_example,
    render_text,
)
from tests.support.waiting import answered, until
from tests.support.web_server import Answering, serving
from tests.support.webhook_tools import GENERATED, REVIEWS, VALUES, admission_review, service_account

GROUPS = {
    "v1": ("ConfigMap", "Pod", "Secret", "Service", "ServiceAccount"),
    "admissionregistration.k8s.io/v1": ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("CronJob", "Job"),
    "cert-manager.io/v1": ("Certificate", "Issuer"),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "sparkoperator.k8s.io/v1beta2": ("ScheduledSparkApplication", "SparkApplication"),
}
"""Where each kind that the chart makes is kept; a kind that is not here fails the test."""
OPERATORS = ("cert-manager.io/v1", "monitoring.coreos.com/v1", "sparkoperator.k8s.io/v1beta2")
EVERYWHERE = {"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
REDIRECT = "kquota-redirect"
"""The one container that is root, with NET_ADMIN: only where namespaces do not enforce "restricted" (docs)."""
NAMES = [path.name.removesuffix("-values.yaml") for path in ci_values()]


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        for one in crds():
            running.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
        for kind in (kind for group, kinds in GROUPS.items() if group in OPERATORS for kind in kinds):
            until(lambda kind=kind: running.ask("GET", path(kind, "default")).status_code == 200, kind)
        running.namespace(pods.NAMESPACE, {"kquota.io/injection": "enabled"})
        for name in ("invoices", "monitoring"):
            running.namespace(name)
        running.account("default", "default")
        yield running


def path(kind: str, namespace: str) -> str:
    (group,) = (group for group, kinds in GROUPS.items() if kind in kinds)
    plural = f"{kind.lower()}s".replace("ys", "ies")
    root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
    return f"{root}/{plural}" if kind in EVERYWHERE else f"{root}/namespaces/{namespace}/{plural}"


def install(
    api: ApiServer, namespace: str, values: Path, *extra: str, what: str = "install", release: HelmRelease = HELM_4
) -> str:
    done = helm(
        what, "shop", CHART, "--namespace", namespace, "--kubeconfig", api.kubeconfig, "--values", values, *extra,
        "--no-hooks", release=release,  # nothing runs a pod here, see test_hook_checks_the_deployed_configuration
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "violate PodSecurity" in line]
    assert [line for line in warned if REDIRECT not in line] == []
    return done.stdout + done.stderr


def manifests() -> list[Any]:
    """What Helm renders of each file of values, and the manifests for people without Helm; Spark names its template."""
    rendered = {name: render_text(CHART / f"ci/{name}-values.yaml", kubernetes=VERSION) for name in NAMES}
    written = {f.name: f.read_text() for f in sorted(PLAIN.glob("*.yaml")) if f.stem != "spark-pod-template"}
    examples = {f"examples/{name}": render_example(name, VERSION) for name in EXAMPLES}
    return [pytest.param(text, id=name) for name, text in (rendered | written | examples).items()]


@pytest.mark.parametrize("text", manifests())
def test_every_object_is_accepted_strictly(api: ApiServer, text: str) -> None:
    """A field that the API server does not know is an error, also in the operators' kinds; nothing is warned of."""
    for one in documents(text):
        where = path(one["kind"], one["metadata"].get("namespace", "default"))
        answer = api.ask("POST", where, one, dryRun="All", fieldValidation="Strict")
        assert answer.status_code == 201, (one["kind"], answer.text)
        assert "warning" not in answer.headers, answer.headers["warning"]


@pytest.mark.parametrize("text", manifests())
def test_every_pod_is_admitted_where_only_restricted_pods_are(api: ApiServer, text: str) -> None:
    """Workloads are only warned about; pods are refused. So each is made as its controller would make it."""
    for name, spec in pod_specs(documents(text)).items():
        api.account("monitoring", spec.get("serviceAccountName", "default"))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "one-"}, "spec": spec}
        answer = api.ask("POST", path("Pod", "monitoring"), pod, dryRun="All", fieldValidation="Strict")
        if any(one["name"] == REDIRECT for one in spec.get("initContainers", [])):
            assert answer.status_code == 403, (name, answer.text)
            others = {one["name"] for key in ("initContainers", "containers") for one in spec[key]} - {REDIRECT}
            assert not [one for one in others if f'\\"{one}\\"' in answer.text], "nothing else is in the way"
            continue
        assert answer.status_code == 201, (name, answer.text)


@pytest.mark.parametrize("release", [HELM_4, HELM_3], ids=lambda release: release.version)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("webhook")])
def test_helm_installs_upgrades_and_leaves_nothing(api: ApiServer, name: str, release: HelmRelease) -> None:
    namespace = f"{name}-{release.version[1]}"
    values = CHART / f"ci/{name}-values.yaml"
    api.namespace(namespace)
    install(api, namespace, values, release=release)
    there = api.get(path("ConfigMap", namespace))["items"]
    assert any("kquota.yaml" in one["data"] for one in there)
    changed = ["--set", "config.drain_timeout_s=41", "--set", "image.tag=next"]
    install(api, namespace, values, *changed, what="upgrade", release=release)
    done = helm("uninstall", "shop", "--namespace", namespace, "--kubeconfig", api.kubeconfig, release=release)
    assert done.returncode == 0, done.stderr
    for kind in ("ConfigMap", "Deployment", "PodMonitor", "PrometheusRule", "Service", "NetworkPolicy"):
        left = [one["metadata"]["name"] for one in api.get(path(kind, namespace))["items"]]
        assert [name for name in left if name != "kube-root-ca.crt"] == [], kind


RELEASED = "shop-prod"
CERTIFICATE = "shop-kquota-webhook-certificate"


class Recorder(http.server.ThreadingHTTPServer):
    """Stands on the Service's address in front of the webhook, and keeps what the API server asks."""

    def __init__(self, address: tuple[str, int], folder: Path, webhook: str) -> None:
        self.asked: list[dict[str, Any]] = []
        self.webhook = webhook
        super().__init__(address, _Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.socket = tls.wrap_socket(self.socket, server_side=True)


class _Handler(Answering):
    def do_POST(self) -> None:  # noqa: N802 - as the server asks for it
        assert isinstance(self.server, Recorder)
        self.server.asked.append(json.loads(body := self.body()))
        answer = httpx.post(self.server.webhook + self.path, content=body, verify=False, timeout=10)
        self.answer(answer.status_code, answer.content)


@pytest.fixture(scope="module")
def installed(api: ApiServer) -> ApiServer:
    api.namespace(RELEASED)
    install(api, RELEASED, VALUES)
    return api


@contextmanager
def served(api: ApiServer, folder: Path) -> Iterator[Recorder]:
    """`kquota webhook` as below, reached by its Service through a recorder of what it is asked."""
    (port,) = free_ports(1)
    with running(api, folder, "127.0.0.1", port):
        write_secret(api, CERTIFICATE, folder)
        recorder = Recorder(address_of(api), folder, f"https://127.0.0.1:{port}")
        with serving(recorder):
            yield recorder


def write_secret(api: ApiServer, name: str, folder: Path) -> None:
    for key, value in api.get(f"{path('Secret', RELEASED)}/{name}")["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))


def address_of(api: ApiServer) -> tuple[str, int]:
    service = api.get(path("Service", RELEASED) + "/shop-kquota-webhook")["spec"]
    return service["clusterIP"], service["ports"][0]["port"]


@contextmanager
def running(api: ApiServer, folder: Path, host: str, port: int, *more: str) -> Iterator[None]:
    """`kquota webhook` with what a kubelet would mount, in the name of its service account."""
    for key, value in api.get(path("ConfigMap", RELEASED) + "/shop-kquota-webhook")["data"].items():
        (folder / key).write_text(value)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.create(f"{path('ServiceAccount', RELEASED)}/shop-kquota-webhook/token", asked)["status"]["token"]
    account = service_account(folder, api.authority.read_text(), token)
    _, _, own_port = api.url.rpartition(":")
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy.app.cli.main", "webhook", f"--template={folder}/sidecar.json",
         f"--host={host}", f"--port={port}", f"--service-account={account}", *more],
        env=os.environ | {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": own_port},
    )  # fmt: skip
    try:
        health = partial(httpx.get, f"https://{host}:{port}/healthz", verify=False)
        until(lambda: answered(lambda: health().status_code == 200), "the webhook")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def shape(value: Any) -> Any:
    """Which fields there are, whatever stands in them."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else type(value).__name__


def test_pods_are_created_through_the_webhook(installed: ApiServer, tmp_path: Path) -> None:
    """With the chart's own Service, certificate and configuration; the injected pod passes "restricted"."""
    api, here = installed, path("Pod", pods.NAMESPACE)
    made = {
        "deployment": (pods.deployment_pod(api), f"{pods.CONTROLLERS}replicaset-controller"),
        "job": (pods.job_pod(api), f"{pods.CONTROLLERS}job-controller"),
        "bare": (pods.bare_pod(), None),
    }
    with served(api, tmp_path) as recorder:
        template = json.loads((tmp_path / "sidecar.json").read_text())
        reviews = {}
        for name, (pod, user) in made.items():
            stored = api.create(here, pod, as_user=user)
            first = stored["spec"]["initContainers"][0]
            assert (first["name"], first["restartPolicy"]) == ("kquota", "Always")
            assert first["args"] == template["container"]["args"]
            assert [one["name"] for one in stored["spec"]["containers"]] == ["app"]
            tokens = ["kube-api-access" in str(one["volumeMounts"]) for one in stored["spec"]["initContainers"]]
            assert not tokens[0], "no token of the pod's service account"
            assert all(tokens[1:]), "the pod's own containers keep theirs"
            assert stored["metadata"]["labels"]["kquota.io/injected"] == "true"
            assert {"kquota-config"} <= {volume["name"] for volume in stored["spec"]["volumes"]}
            asked = recorder.asked.pop()
            assert recorder.asked == []
            del asked["request"]["object"]["metadata"]["managedFields"]  # which have names made of values
            reviews[name] = asked
        if os.environ.get("KQUOTA_RECORD"):
            REVIEWS.write_text(yaml.safe_dump(reviews, default_flow_style=None, width=120, sort_keys=False))
        for name, asked in reviews.items():
            assert shape(admission_review(name)) == shape(asked), f"{name}: record it again (KQUOTA_RECORD=1)"

        skipped = pods.bare_pod()
        skipped["metadata"] = {"name": "skipped", "labels": {"kquota.io/inject": "false"}}
        assert "initContainers" not in api.create(here, skipped)["spec"]

        # A namespace without the label, and the webhook's own pods, do not come by here.
        api.create(path("Pod", "invoices"), pods.bare_pod())
        (own,) = api.get(path("Deployment", RELEASED))["items"]
        api.account(pods.NAMESPACE, "shop-kquota-webhook")
        own_pod = {"apiVersion": "v1", "kind": "Pod"} | own["spec"]["template"]
        own_pod["metadata"] = {**own_pod["metadata"], "name": "own"}
        api.create(here, own_pod, dryRun="All")
        assert recorder.asked == []


OPEN = "open"
"""A labelled namespace that enforces no Pod Security Standard."""
CLIENT = {"name": "app", "image": "registry.example/orders:1.4.0"}
NEED_NO_WEBHOOK: dict[str, dict[str, Any]] = {
    "opted out": {"metadata": {"labels": {"kquota.io/inject": "false"}}},
    "host network": {"spec": {"hostNetwork": True}},
    "Windows": {"spec": {"os": {"name": "windows"}}},
    "Windows nodes": {"spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}},
    "mirror pod": {"metadata": {"annotations": {"kubernetes.io/config.mirror": "0"}}, "spec": {"nodeName": "node-1"}},
    "own sidecar": {"spec": {"initContainers": [{"name": "kquota", "image": "own", "restartPolicy": "Always"}]}},
    "own container": {"spec": {"containers": [CLIENT, {"name": "kquota", "image": "own"}]}},
}
NEED_IT: dict[str, dict[str, Any]] = {
    "plain": {},
    "Linux": {"spec": {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "linux", "zone": "a"}}},
    "no host network": {"spec": {"hostNetwork": False, "initContainers": [{"name": "migrate", "image": "own"}]}},
    "misunderstood": {"metadata": {"labels": {"kquota.io/inject": "False"}, "annotations": {"a": "b"}}},
}


def test_pods_without_a_sidecar_need_no_webhook(installed: ApiServer) -> None:
    """Nobody answers: the API server decides by selectors and matchConditions, and asks about the other pods only."""
    api = installed
    api.namespace(OPEN, {"kquota.io/injection": "enabled", "pod-security.kubernetes.io/enforce": "privileged"})

    def created(given: dict[str, Any]) -> bool:
        metadata = {"generateName": "one-"} | given.get("metadata", {})
        spec = {"containers": [CLIENT]} | given.get("spec", {})
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        answer = api.ask("POST", path("Pod", OPEN), pod, dryRun="All")
        assert answer.status_code == 201 or "failed calling webhook" in answer.text, answer.text
        return answer.status_code == 201

    assert {name: created(given) for name, given in NEED_NO_WEBHOOK.items()} == dict.fromkeys(NEED_NO_WEBHOOK, True)
    assert {name: created(given) for name, given in NEED_IT.items()} == dict.fromkeys(NEED_IT, False)
    # The pods of a release that is repaired: its own, and those of Helm's hooks.
    rendered = documents(render_text(VALUES))
    for one in of_kind(rendered, "Pod"):
        assert created({"metadata": {"labels": one["metadata"]["labels"]}}), one["metadata"]["name"]
    install(api, RELEASED, VALUES, "--set", "webhook.optIn=true", what="upgrade")
    wanted = {"metadata": {"labels": {"kquota.io/inject": "true"}}}
    assert [created(given) for given in ({}, NEED_NO_WEBHOOK["opted out"], wanted)] == [True, True, False]
    install(api, RELEASED, VALUES, what="upgrade")


def ask_for_pod(api: ApiServer, metadata: dict[str, Any] | None = None, **spec: Any) -> httpx.Response:
    pod = pods.bare_pod() | {"metadata": {"generateName": "one-"} | (metadata or {})}
    pod["spec"] |= spec
    return api.ask("POST", path("Pod", pods.NAMESPACE), pod, dryRun="All")


ACCEPTED: dict[str, dict[str, Any]] = {
    "a low CPU limit": {"metadata": {"annotations": {"kquota.io/cpu-limit": "50m"}}},
    "a low memory limit": {"metadata": {"annotations": {"kquota.io/memory-limit": "100Mi"}}},
    "a high memory request": {"metadata": {"annotations": {"kquota.io/memory-request": "1Gi"}}},
    "odd quantities": {"metadata": {"annotations": {"kquota.io/cpu-request": ".5", "kquota.io/memory-limit": "1e9"}}},
    "pod-level requests": {"spec": {"resources": {"requests": {"memory": "100Mi"}}}},
    "pod-level limits": {"spec": {"resources": {"limits": {"memory": "100Mi", "cpu": "50m"}}}},
}


def test_resources_of_sidecars_are_accepted(installed: ApiServer, tmp_path: Path) -> None:
    """Whatever annotations and pods say of them, the API server does not refuse what comes of it."""
    with served(installed, tmp_path):
        for name, given in ACCEPTED.items():
            answer = ask_for_pod(installed, given.get("metadata"), **given.get("spec", {}))
            assert answer.status_code == 201, (name, answer.text)
            assert answer.json()["spec"]["initContainers"][0]["name"] == "kquota"


def test_a_limit_range_gives_sidecars_their_cpu(installed: ApiServer, tmp_path: Path) -> None:
    limits = [{"type": "Container", "default": {"cpu": "700m"}, "max": {"cpu": "2"}}]
    body = manifest("LimitRange", "cpu", spec={"limits": limits})
    where = f"/api/v1/namespaces/{pods.NAMESPACE}/limitranges"
    with served(installed, tmp_path):
        installed.create(where, body)
        try:
            answer = ask_for_pod(installed)
            assert answer.status_code == 201, answer.text
            assert answer.json()["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] == "700m"
        finally:
            installed.ask("DELETE", f"{where}/cpu").raise_for_status()


def test_an_upgrade_keeps_the_webhooks_own_certificate(installed: ApiServer, tmp_path: Path) -> None:
    """And a renderer that puts its manifests over it again (Argo CD, server-side) changes nothing either."""
    api = installed

    def state() -> tuple[str, set[str]]:
        secret = api.get(f"{path('Secret', RELEASED)}/{CERTIFICATE}")["data"]
        return secret["ca.crt"], trusted(api)

    with served(api, tmp_path):
        before = state()
        assert all(base64.b64decode(before[0]) in base64.b64decode(one) for one in before[1])
        for release in (HELM_3, HELM_4):
            install(api, RELEASED, VALUES, "--set", "webhook.replicas=3", what="upgrade", release=release)
            assert state() == before
        (rendered,) = of_kind(documents(render_text(VALUES)), "MutatingWebhookConfiguration")
        version = api.get(HOOKS)["metadata"]["resourceVersion"]
        given = {"patch": "apply-patch+yaml", "fieldManager": "argocd-controller", "force": "true"}
        api.ask("PATCH", HOOKS, rendered, **given).raise_for_status()
        assert state() == before
        unchanged = api.get(HOOKS)["metadata"]["resourceVersion"]
        api.ask("PATCH", HOOKS, rendered, **given).raise_for_status()
        assert api.get(HOOKS)["metadata"]["resourceVersion"] == unchanged != version


HOOKS = path("MutatingWebhookConfiguration", "") + "/shop-kquota-webhook.shop-prod"


def trusted(api: ApiServer) -> set[str]:
    return {one["clientConfig"]["caBundle"] for one in api.get(HOOKS)["webhooks"]}


@pytest.mark.parametrize("release", [HELM_4, HELM_3], ids=lambda release: release.version)
def test_kinds_of_certificates_are_switched_under_pods(
    installed: ApiServer, tmp_path: Path, release: HelmRelease
) -> None:
    """From one kind to the next as a rollout does it: the API server trusts both before the other one serves."""
    api, (host, port) = installed, address_of(installed)
    (spare,) = free_ports(1)

    def started(kind: str, host: str, port: int) -> AbstractContextManager[None]:
        (folder := tmp_path / kind).mkdir(exist_ok=True)
        if kind == "own":
            return running(api, folder, host, port)
        write_secret(api, "shop-kquota-webhook" + ("-issued" if kind == "cert-manager" else ""), folder)
        files = [("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt")]
        return running(api, folder, host, port, *(f"--{option}={folder}/{file}" for option, file in files))

    def created() -> bool:
        return ask_for_pod(api).status_code == 201

    former = "own"
    for kind in ("generated", "cert-manager", "generated", "own", "cert-manager", "own"):
        with started(former, host, port):
            install(api, RELEASED, VALUES, "--set", f"webhook.certificates={kind}", what="upgrade", release=release)
            assert created(), f"{former} serves until pods with {kind} are ready"
            if kind == "cert-manager":
                issue_as_cert_manager(api)
            with started(kind, "127.0.0.1", spare):
                assert created(), f"{former} serves while {kind} is trusted too"
        with started(kind, host, port):
            assert created(), f"{kind} is trusted"
        former = kind


def issue_as_cert_manager(api: ApiServer) -> None:
    """Write the Secret that cert-manager would, from the chart's Certificate: its controller does not run here."""
    spec = api.get(f"{path('Certificate', RELEASED)}/shop-kquota-webhook")["spec"]
    authority = trustme.CA()
    issued = authority.issue_cert(*spec["dnsNames"])
    pems = {
        "ca.crt": authority.cert_pem.bytes(),
        "tls.crt": b"".join(one.bytes() for one in issued.cert_chain_pems),
        "tls.key": issued.private_key_pem.bytes(),
    }
    data = {name: base64.b64encode(pem).decode() for name, pem in pems.items()}
    body = {"metadata": {"name": spec["secretName"]}, "type": "kubernetes.io/tls", "data": data}
    api.ask("DELETE", f"{path('Secret', RELEASED)}/{spec['secretName']}")  # of an earlier switch
    api.create(path("Secret", RELEASED), body)


@pytest.mark.parametrize(
    ("namespace", "values", "secret", "given"),
    [
        ("by-helm", GENERATED, "shop-kquota-webhook", {"webhook.namespaces": "{none}", "webhook.replicas": "3"}),
        ("gateway", CHART / "ci/gateway-values.yaml", "shop-kquota-fleet", {"gateway.replicas": "3"}),
    ],
)
def test_an_upgrade_keeps_certificate_and_key_that_helm_made(
    api: ApiServer, namespace: str, values: Path, secret: str, given: dict[str, str]
) -> None:
    """Of the webhook, and of the fleet: instances with the old key and the new one would not believe each other."""
    api.namespace(namespace)
    changed = [one for name, value in given.items() for one in ("--set", f"{name}={value}")]
    install(api, namespace, values, *changed[:-2])
    before = api.get(f"{path('Secret', namespace)}/{secret}")["data"]
    install(api, namespace, values, *changed, what="upgrade")
    assert api.get(f"{path('Secret', namespace)}/{secret}")["data"] == before
