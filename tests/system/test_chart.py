"""The Helm chart, rendered by a real helm: valid for old and new Kubernetes, safe, true to the configuration model."""

import base64
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from config.load import load, load_bytes, warnings_of
from config.model import Config
from config.parts import read_config
from config.problems import ConfigError
from config.table import has_limits, to_table
from deploy.kubernetes.own_quotas import combined
from proxy.app.cli.main import app
from proxy.app.export.exporter import VARIABLES
from tests.lab.chart import CHART, generated
from tests.support.chart_tools import (
    EXAMPLES,
    FIRST_NATIVE,
    GOLDEN,
    HELM_3,
    HELM_4,
    KUSTOMIZE,
    NAMESPACE,
    NEWEST,
    OLDEST,
    RELEASE,
    ROOT,
    HelmRelease,
    ci_values,
    configuration,
    documents,
    golden,
    helm,
    injected,
    kustomize,
    of_kind,
    plain,
    pod_specs,
    render_example,
    render_text,
    sidecar_of,
    unhooked,
    without_secrets,
)
from tests.support.strimzi import KAFKA_USERS

MINIMAL = CHART / "ci/sidecar-values.yaml"
DEMO = CHART / "ci/sidecar-demo-values.yaml"
NAMES = [path.name.removesuffix("-values.yaml") for path in ci_values()]
both_helms = pytest.mark.parametrize(
    "release", [HELM_4, pytest.param(HELM_3, marks=pytest.mark.long)], ids=lambda release: release.version
)


Manifests = list[dict[str, Any]]


def ci(name: str) -> Path:
    return CHART / f"ci/{name}-values.yaml"


@functools.cache
def text_of(name: str, kubernetes: str = NEWEST) -> str:
    """What Helm renders of one file of values."""
    return render_text(ci(name), kubernetes=kubernetes)


@functools.cache
def render(name: str, kubernetes: str = NEWEST) -> Manifests:
    """The same as manifests."""
    return documents(text_of(name, kubernetes))


def loaded(manifests: Manifests) -> Config:
    """The configuration in them, as the sidecar reads it."""
    return load_bytes("kquota.yaml", configuration(manifests).encode())


def pod_of(manifests: Manifests) -> dict[str, Any]:
    """The template of the only Deployment's pods."""
    (deployment,) = of_kind(manifests, "Deployment")
    return dict(deployment["spec"]["template"])


NEEDS_NATIVE = ("sidecar-demo", "transparent")
"""Values with a Job, which ordinary sidecars would not let complete."""
EVERYWHERE = [
    (name, version) for name in NAMES for version in (FIRST_NATIVE if name in NEEDS_NATIVE else OLDEST, NEWEST)
]
OPERATORS = ("monitoring.coreos.com/", "cert-manager.io/", "sparkoperator.k8s.io/")


def values(given: str | dict[str, Any]) -> str:
    """The minimal values, and these (YAML) over them."""
    merged = yaml.safe_load(MINIMAL.read_text())
    for key, value in (yaml.safe_load(given) if isinstance(given, str) else given).items():
        merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
    return yaml.safe_dump(merged)


def rendered(given: str | dict[str, Any]) -> Manifests:
    return documents(render_text(None, "--values", "-", stdin=values(given)))


@pytest.mark.parametrize("name", NAMES)
def test_strict_lint_accepts_the_chart(name: str) -> None:
    done = helm("lint", "--strict", CHART, "--values", ci(name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert done.stderr == "", "helm itself has something to say about these values"


@pytest.mark.parametrize("kubernetes", [OLDEST, pytest.param(FIRST_NATIVE, marks=pytest.mark.long), NEWEST])
def test_manifests_are_valid_kubernetes(kubernetes: str) -> None:
    """By the published schemas of that version; operators' kinds are checked by `make test-apiserver`."""
    manifests = [one for name, version in EVERYWHERE if version == kubernetes for one in render(name, kubernetes)]
    manifests += [one for name in EXAMPLES for one in documents(render_example(name, kubernetes))]
    if kubernetes == NEWEST:
        manifests += [one for path, text in plain().items() if "spark" not in path.stem for one in documents(text)]
    for one in {json.dumps(one): one for one in manifests}.values():
        if not one["apiVersion"].startswith(OPERATORS):
            kubernetes_validate.validate(one, kubernetes, strict=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_configuration_of_example_loads_without_warnings(name: str) -> None:
    config = load_bytes(name, configuration(documents(render_example(name))).encode())
    assert list(warnings_of(config)) == []
    assert has_limits(config)


@pytest.mark.parametrize("name", NAMES)
def test_both_helms_render_the_same(name: str) -> None:
    old, new = (documents(without_secrets(text)) for text in (render_text(ci(name), release=HELM_3), text_of(name)))
    assert sorted(old, key=json.dumps) == sorted(new, key=json.dumps)


@pytest.mark.parametrize("made", [golden, plain, generated, kustomize])
def test_generated_files_are_up_to_date(made: Callable[[], dict[Path, str]]) -> None:
    """A difference is a change for all users that upgrade: look at it, then `make chart`."""
    expected = made()
    for path, text in expected.items():
        assert path.read_text() == text, f"{path.name}: see what changed, then run `make chart`"
    for folder in {GOLDEN, KUSTOMIZE} & {path.parent for path in expected}:
        assert sorted(folder.iterdir()) == sorted(expected)


@pytest.mark.parametrize(
    ("kubernetes", "native", "said"),
    [
        ("1.24.0", "auto", "kubeVersion"),
        ("1.28.0", "auto", "never completes"),
        ("1.27.0", "true", "needs Kubernetes 1.28"),
    ],
)
def test_a_kubernetes_that_is_too_old_is_refused(kubernetes: str, native: str, said: str) -> None:
    settings = ["--kube-version", kubernetes, "--set", f"sidecar.native={native}"]
    done = helm("template", RELEASE, CHART, "--values", DEMO, *settings)
    assert done.returncode != 0
    assert said in done.stderr


GATEWAY = "mode: gateway\ngateway: "
NODE_PORTS = GATEWAY + "{service: {type: NodePort%s}}\nconfig: {listen: {advertised: {host: node}}}"
OVERLAPPING = ", nodePorts: {bootstrap: 30092, firstBroker: 30000}"
ANALYSIS = "analysis: {enabled: true, input: /in, output: /out, "
STREAM = ANALYSIS + "stream: {enabled: true, input: /in, output: /out, arguments: [%s]}}"
MISTAKES = {
    "no brokers": ("config: {upstream: {}}", "config.upstream.bootstrap is missing: name some brokers of the cluster"),
    "quota": ("quotas: [{user: a, producer_byte_rat: 1}]", "producer_byte_rat"),
    "limit": ("quotas: [{user: a, producer_byte_rate: fast}]", "producer_byte_rate"),
    "mapping": ("quotas: {entires: []}", "entires"),
    "setting": ("config: {max_mutt: 30s}", "max_mutt"),
    "section": ("config: {listen: {prot: 9092}}", "prot"),
    "chart": ("podMonitr: {enabled: true}", "podMonitr"),
    "inner": ("gateway: {replica: 3}", "replica"),
    "mode": ("mode: sidcar", "mode"),
    "no destination": (
        "{config: {mode: transparent}, redirect: {ports: []}, demo: {enabled: true}}",
        "nothing would be redirected",
    ),
    "a transparent gateway": ("{config: {mode: transparent}, mode: gateway}", "it needs mode sidecar"),
    "a nameless balancer": (GATEWAY + "{service: {type: LoadBalancer}}", "config.listen.advertised.host is missing"),
    "no node ports": (NODE_PORTS % "", "gateway.service.nodePorts is missing"),
    "node ports that overlap": (
        NODE_PORTS % OVERLAPPING,
        "gateway.service.nodePorts.bootstrap: expected none of the brokers' (30000-30099), got 30092",
    ),
    "a typo in resources": ("resources: {request: {cpu: '1'}}", "request"),
    "a quantity": ("resources: {limits: {memory: 1GB}}", "memory"),
    "a request above its limit": (
        "resources: {limits: {memory: 100Mi}}",
        "resources.requests.memory: expected at most 100Mi (resources.limits.memory), got 128Mi",
    ),
    "a number in the environment": ("extraEnv: [{name: KQUOTA_PURE, value: 1}]", "extraEnv"),
    "a mount alone": (
        "extraVolumeMounts: [{name: tls, mountPath: /tls}]",
        "extraVolumeMounts: expected a volume of extraVolumes, got tls",
    ),
    "a mount over the configuration": (
        "extraVolumes: [{name: more, emptyDir: {}}]\nextraVolumeMounts: [{name: more, mountPath: /etc/kquota/more}]",
        "mountPath",
    ),
    "a volume of the sidecar's name": ("extraVolumes: [{name: kquota-config, emptyDir: {}}]", "extraVolumes"),
    "a toleration": ("webhook: {tolerations: [{keys: spot}]}", "keys"),
    "a peer": ("networkPolicy: {monitoring: [{namespaceSelektor: {}}]}", "namespaceSelektor"),
    "a label": ("commonLabels: {team: Team A}", "team"),
    "a full name": ("fullnameOverride: My_Kafka", "fullnameOverride"),
    "a variable": ("webhook: {bootstrapVariable: A B}", "bootstrapVariable"),
    "an entry": ("fleetKey: {entry: my key}", "entry"),
    "no port": ("{config: {listen: {port: 0}}, demo: {enabled: true}}", "config.listen.port: expected a port"),
    "replicas": (
        GATEWAY + "{autoscaling: {enabled: true, minReplicas: 9}}",
        "gateway.autoscaling.minReplicas: expected at most maxReplicas (6), got 9",
    ),
    "a report twice": (
        ANALYSIS + "reports: [{name: slo}, {name: slo}]}",
        "analysis.reports: expected each report once, got slo twice",
    ),
    "no output": (
        "analysis: {enabled: true, input: /in, reports: [{name: slo}]}",
        "slo needs an output",
    ),
    "a report's kind": (ANALYSIS + "kind: Job}", "kind"),
    "a report's name": (ANALYSIS + "reports: [{nam: usage}]}", "nam"),
    "executors": (ANALYSIS + "executer: {cores: 1}}", "executer"),
    "a stream's port": (ANALYSIS + "stream: {metricsPort: 70000}}", "metricsPort"),
    "a stream's metrics": (STREAM % "--metrics", "use analysis.stream.metricsPort"),
    "a stream's metrics at a port": (STREAM % "--metrics=9405", "use analysis.stream.metricsPort"),
    "no key": (
        "{config: {fleet: {id: shop}}, webhook: {enabled: true}}",
        "fleetKey.secret is missing: with webhook.enabled and config.fleet",
    ),
}


@both_helms
@pytest.mark.parametrize("mistake", MISTAKES)
def test_typing_mistakes_fail_at_install(mistake: str, release: HelmRelease) -> None:
    given, named = MISTAKES[mistake]
    done = helm("template", RELEASE, CHART, "--values", "-", release=release, stdin=values(given))
    assert done.returncode != 0
    assert named in done.stderr, done.stderr


MANY = [
    {"user": f"team-{n}-with-a-name-of-forty-characters", "client-id": f"service-{n}", "producer_byte_rate": "1M",
     "consumer_byte_rate": "2500k"}
    for n in range(10_000)
]  # fmt: skip
FORMS: dict[str, Any] = {"list": MANY, "mapping": {"alter": "forward", "entries": MANY}, "entries": {"entries": MANY}}


@pytest.mark.parametrize(
    "form", ["entries", *(pytest.param(one, marks=pytest.mark.long) for one in ("list", "mapping"))]
)
def test_ten_thousand_quotas_are_in_parts(form: str, tmp_path: Path) -> None:
    """Each fits a ConfigMap; the volume has all of them, in one directory, and together they are one file."""
    manifests = rendered({"mode": "gateway", "quotas": FORMS[form]})
    texts: dict[str, str] = {}
    for name in (f"{RELEASE}-kquota", f"{RELEASE}-kquota-check"):
        maps = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "ConfigMap")}
        (pod,) = [one for where, one in pod_specs(manifests).items() if where.endswith(f"/{name}")]
        (volume,) = [one for one in pod["volumes"] if one["name"] in ("kquota-config", "config")]
        sources = [one["configMap"]["name"] for one in volume["projected"]["sources"]]
        assert sources == [name, *(f"{name}-{n}" for n in (2, 3, 4))]
        for source in sources:
            ((key, text),) = maps[source].items()
            assert len(text) < 700_000
            assert texts.setdefault(key, text) == text
            (tmp_path / key).write_text(text)
    config = load(tmp_path / "kquota.yaml")
    assert [entry.user for entry in to_table(config).entries] == [entry["user"] for entry in MANY]
    assert (b"alter: forward" in read_config(tmp_path / "kquota.yaml")) is (form == "mapping")
    (tmp_path / "kquota.yaml.3").write_text((tmp_path / "kquota.yaml.3").read_text().replace("1M", "2M"))
    with pytest.raises(ConfigError, match="its 4 parts are not of one version"):
        load(tmp_path / "kquota.yaml")
    few = rendered({"mode": "gateway", "quotas": MANY[:2500]})
    assert "parts" not in configuration(few).splitlines()[0]


FREE = {"resources", "volume", "labels", "annotations"}
"""Maps with any keys: there a null takes a default away, as usual with Helm."""


def _reduced(values: dict[str, Any], kept: slice) -> dict[str, Any]:
    """Sections with a part of their keys: the first, the last, or none."""
    return {
        key: _reduced(value, kept) if isinstance(value, dict) and value and key not in FREE else value
        for key, value in list(values.items())[kept]
    }


@pytest.mark.parametrize("kept", [slice(0), slice(1), slice(-1, None)], ids=["nothing", "first", "last"])
@pytest.mark.parametrize("name", ["webhook-generated", "gateway-full", "analysis", "monitoring", "sidecar-demo"])
def test_values_of_an_earlier_chart_render(name: str, kept: slice, tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` puts the former chart's defaults in the place of this one's."""
    shutil.copytree(CHART, chart := tmp_path / "kquota")
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    sections = {key: value for key, value in values.items() if isinstance(value, dict) and key not in FREE}
    former = {} if kept == slice(0) else {key: _reduced(value, kept) for key, value in sections.items()}
    (chart / "values.yaml").write_text(yaml.safe_dump(former))
    assert without_secrets(render_text(ci(name), chart=chart)) == without_secrets(text_of(name))


def _nulls(values: dict[str, Any], depth: int) -> dict[str, Any]:
    return {
        key: _nulls(value, depth - 1) if depth and isinstance(value, dict) and key not in FREE else None
        for key, value in values.items()
    }


@both_helms
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_null_means_the_default(depth: int, release: HelmRelease) -> None:
    nulls = yaml.safe_dump(_nulls(yaml.safe_load((CHART / "values.yaml").read_text()), depth))
    found = render_text(None, "--values", "-", "--values", ci("webhook"), release=release, stdin=nulls)
    assert found == render_text(ci("webhook"), release=release)


@pytest.mark.parametrize(("name", "kubernetes"), EVERYWHERE)
def test_the_configuration_is_accepted_by_kquota(name: str, kubernetes: str) -> None:
    config = loaded(render(name, kubernetes))
    given = yaml.safe_load(ci(name).read_text())
    written = yaml.safe_load(configuration(render(name, kubernetes)))
    assert written["quotas"] == given.get("quotas", [])
    assert given["config"].items() <= written.items() or name == "plain-sidecar" or name == "gateway-full"
    assert config.listen.host == ("::" if given.get("mode") == "gateway" else "127.0.0.1")
    unused = [str(problem) for problem in warnings_of(config) if "unknown" in str(problem)]
    assert unused == []


@pytest.mark.parametrize(
    "change",
    [
        "quotas: [{client-id: b, producer_byte_rate: 3M}]",
        "quotas: []",
        "quotas: {entries: [{client-id: b, producer_byte_rate: 3M}]}",
        "quotas: {alter: forward}",
        "quotas: {source: cluster}",
        "config: {quota.producer.default: 5M}",
        "config: {log: {level: debug}}",
        "config: {listen: {port: 9093}}",
        "config: {max_mute: 10s}",
        "config: {drain_timeout_s: 50}",
    ],
)
def test_pods_restart_for_settings_that_need_it(change: str) -> None:
    """The chart and the sidecar agree: the checksum differs just when kquota itself would ask for a restart."""
    before = rendered("{mode: gateway, quotas: [{client-id: a, producer_byte_rate: 2M}]}")
    after = rendered(f"mode: gateway\n{change}")
    assert configuration(before) != configuration(after)
    old, new = (loaded(one).restart_settings() for one in (before, after))
    sums = [pod_of(one)["metadata"]["annotations"]["kquota.io/restart-checksum"] for one in (before, after)]
    assert (sums[0] != sums[1]) == (old != new)
    if old == new:
        assert of_kind(before, "Deployment") == of_kind(after, "Deployment")


def test_imported_quotas_fit_values_file_and_namespace(tmp_path: Path) -> None:
    """`kquota import` prints one form, which is all three (import kafka prints it by the same function)."""
    (users := tmp_path / "users.yaml").write_text(KAFKA_USERS)
    printed = CliRunner().invoke(app, ["import", "strimzi", str(users)]).stdout
    (quotas := tmp_path / "quotas.yaml").write_text(printed)
    as_values = to_table(loaded(documents(render_text(MINIMAL, "--values", quotas)))).entries
    as_file = to_table(load_bytes("file", printed.encode(), on_paper=True)).entries
    of_a_namespace = combined(configuration(render("sidecar")), printed.encode(), "any", "quotas.yaml")
    assert as_values == as_file
    assert {entry.user for entry in as_file} == {"reporting", "CN=orders"}
    assert set(as_file) <= set(to_table(load_bytes("copy", of_a_namespace.encode())).entries)


LIMITS = {
    # 128 MiB + 1000 * 80 KiB + 20 000 * 8 KiB = 362.4 MiB, rounded up to 16 MiB
    "defaults": ("", "368Mi"),
    "quotas play no part": ("quotas: [{user: a, request_percentage: 5, producer_byte_rate: 1}]", "368Mi"),
    # 128 + 5000 * 80 KiB = 390.6 + 156.25
    "connections": ("memoryLimit: {connections: 5000}", "688Mi"),
    # 128 + 100 * 80 KiB = 7.8 + 1000 * 8 KiB = 7.8
    "small": ("config: {limits: {max_connections: 100, max_clients: 1000}}", "144Mi"),
    # 362.4 + 16 + 16
    "export": ("config: {export: {directory: /var/lib/kquota, kafka_topic: usage}}", "400Mi"),
    "one's own": ("resources: {limits: {memory: 1Gi}}", "1Gi"),
    "a higher request": ("resources: {requests: {cpu: 100m, memory: 2Gi}}", "2Gi"),
    "a CPU limit next to it": ("resources: {limits: {cpu: '2'}}", "368Mi"),
    "none": ("memoryLimit: {enabled: false}", None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_memory_limit_follows_from_the_settings(case: str) -> None:
    given, expected = LIMITS[case]
    resources = sidecar_of(pod_of(rendered(f"mode: gateway\n{given}"))["spec"])["resources"]
    limits = {"memory": expected} | ({"cpu": "2"} if case == "a CPU limit next to it" else {})
    assert resources.get("limits", {"memory": None}) == limits
    assert resources["requests"] == {"cpu": "100m", "memory": "2Gi" if case == "a higher request" else "128Mi"}


@pytest.mark.parametrize(("name", "kubernetes"), EVERYWHERE)
def test_pods_satisfy_the_restricted_standard(name: str, kubernetes: str) -> None:
    """Each container by itself, so that a pod's owner need not set anything."""
    for where, pod in pod_specs(render(name, kubernetes)).items():
        assert pod["automountServiceAccountToken"] is where.endswith("-webhook"), where
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({"hostPath"}.isdisjoint(volume) for volume in pod.get("volumes", []))
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            if container["name"] == "kquota-redirect":  # needs what "restricted" and "baseline" forbid; see below
                continue
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert all("hostPort" not in port for port in container.get("ports", []))
            assert "cpu" in container["resources"]["requests"]


@pytest.mark.parametrize("name", ["webhook", "gateway-full", "sidecar-demo", "analysis", "analysis-operator"])
def test_a_namespace_may_assign_the_user(name: str) -> None:
    """As OpenShift does: whoever names a user outside of the namespace's range is refused."""
    text = render_text(ci(name), "--set", "runAsUser=namespace")
    assert not re.findall(r"runAsUser|runAsGroup|fsGroup", text)
    assert text.count("runAsNonRoot") == json.dumps(render(name)).count("runAsNonRoot")
    other = documents(render_text(ci(name), "--set", "runAsUser=1000680000"))
    users = {one["securityContext"]["runAsUser"] for pod in pod_specs(other).values() for one in pod["containers"]}
    assert users <= {1000680000, 1000}


def test_only_an_init_container_may_set_redirect_rules() -> None:
    """Root, with NET_ADMIN and nothing else, before the sidecar; which keeps its own rights, and a user of its own."""
    ((_, pod),) = [one for one in pod_specs(render("transparent")).items() if "demo" in one[0]]
    redirect, sidecar = pod["initContainers"]
    assert (redirect["name"], sidecar["name"]) == ("kquota-redirect", "kquota")
    assert "restartPolicy" not in redirect
    context = redirect["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    uid = sidecar["securityContext"]["runAsUser"]
    assert uid not in (0, 65532), "not a user that applications run as"
    assert redirect["args"] == [
        "install", "--config=/etc/kquota/kquota.yaml", f"--exclude-uid={uid}", "--when-down=open",
        "--port=9092", "--port=9094-9096", "--network=10.0.0.0/8", "--exclude-port=9095",
        "--exclude-network=10.96.0.0/12", "--exclude-uid=1234",
    ]  # fmt: skip


def test_files_that_the_configuration_names_are_mounted() -> None:
    """Beside the configuration: nothing can be made inside a read-only mount."""
    manifests = render("sidecar-secured")
    config = yaml.safe_load(configuration(manifests))
    pod = pod_specs(manifests)["Pod/shop-kquota-test"]
    mounts = {one["mountPath"]: one for one in sidecar_of(pod)["volumeMounts"]}
    named = [path for key, path in config["upstream"]["tls"].items() if key.endswith("_file")]
    for directory in [*(str(Path(path).parent) for path in named), config["identity"]["static"]["directory"]]:
        assert mounts[directory]["readOnly"] is True
    assert not [path for path in mounts if path.startswith("/etc/kquota/")]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "kquota-pod"]
    files, token = volume["projected"]["sources"]
    assert {one["path"] for one in files["downwardAPI"]["items"]} == {"namespace", "pod", "labels"}
    assert token["serviceAccountToken"]["path"] == "token"
    assert token["serviceAccountToken"]["audience"] == "kquota.io/identity", "of no use to any service"


def test_no_container_in_anothers_pod_gets_a_token() -> None:
    """Kubernetes mounts the token of the pod's service account in each container that has nothing there yet."""
    manifests = render("transparent")
    ours = [injected(manifests)[key] for key in ("container", "redirect")]
    ours += [one for pod in pod_specs(manifests).values() for one in pod.get("initContainers", [])]
    assert [one["name"] for one in ours] == ["kquota", "kquota-redirect", "kquota-redirect", "kquota"]
    for container in ours:
        paths = [one["mountPath"] for one in container["volumeMounts"]]
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in paths


STATE = {
    "nothing": ("", None),
    "records elsewhere": ("config: {export: {directory: /mnt/usage}}", None),
    "records": ("config: {export: {directory: /var/lib/kquota/usage}}", {"emptyDir": {}}),
    "overlay": ("quotas: {alter: apply, overlay: /var/lib/kquota/overlay.yaml}", {"emptyDir": {}}),
    "ports": ("config: {listen: {state_file: /var/lib/kquota/ports.json}}", {"emptyDir": {}}),
    "in memory": ("state: {volume: {emptyDir: {medium: Memory}}}", {"emptyDir": {"medium": "Memory"}}),
    "PVC": ("state: {volume: {persistentVolumeClaim: {claimName: a}}}", {"persistentVolumeClaim": {"claimName": "a"}}),
}


@pytest.mark.parametrize("case", STATE)
def test_a_volume_is_there_only_for_what_is_stored(case: str) -> None:
    """An emptyDir keeps `kubectl drain` from the node, and without the annotation the cluster autoscaler as well."""
    given, expected = STATE[case]
    pod = pod_of(rendered(f"mode: gateway\n{given}"))
    found = [{key: one[key] for key in one if key != "name"} for one in pod["spec"]["volumes"]]
    mounts = [one["mountPath"] for one in sidecar_of(pod["spec"])["volumeMounts"]]
    assert [one for one in found if not one.keys() & {"configMap", "secret"}] == ([expected] if expected else [])
    assert ("/var/lib/kquota" in mounts) is (expected is not None)
    evicted = pod["metadata"]["annotations"].get("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes")
    assert evicted == ("kquota-state" if "emptyDir" in (expected or {}) else None)


MADE = f"{RELEASE}-kquota-fleet"
WEBHOOK_FLEET = "{config: {fleet: {id: shop}}, webhook: {enabled: true}, fleetKey: {secret: own}}"


@pytest.mark.parametrize(
    ("given", "made", "mounted", "entry"),
    [
        pytest.param("mode: gateway", MADE, MADE, "key", id="gateway"),
        pytest.param("{mode: gateway, fleetKey: {secret: own, entry: fleet}}", None, "own", "fleet", id="own"),
        pytest.param("{mode: gateway, gateway: {sharedLimits: false}}", None, None, "", id="not shared"),
        pytest.param("{}", None, None, "", id="sidecar"),
        pytest.param("config: {fleet: {id: shop}}", MADE, MADE, "key", id="fleet"),
        pytest.param("config: {fleet: {key_file: /etc/own/key}}", None, None, "", id="own file"),
        pytest.param(WEBHOOK_FLEET, None, "own", "key", id="webhook"),
    ],
)
def test_a_fleet_gets_its_key_and_no_other(given: str, made: str | None, mounted: str | None, entry: str) -> None:
    manifests = rendered(given)
    secrets = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "Secret")}
    assert list(secrets) == ([] if made is None else [made])
    for data in secrets.values():
        assert len(base64.b64decode(data["key"])) == 48
    if given == WEBHOOK_FLEET:
        volumes, container = injected(manifests)["volumes"], injected(manifests)["container"]
    else:
        pods = pod_specs(unhooked(manifests) if "gateway" in given else manifests)
        (spec,) = [one for where, one in pods.items() if not where.endswith("-check")]
        volumes, container = spec["volumes"], sidecar_of(spec)
    found = {one["name"]: one["secret"]["secretName"] for one in volumes if "secret" in one}
    assert found.get("kquota-fleet") == mounted
    if mounted is not None:
        fleet = loaded(manifests).fleet
        assert fleet is not None
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "kquota-fleet"]
        assert (fleet.key_file, mount["readOnly"]) == (f"{mount['mountPath']}/{entry}", True)


@pytest.mark.parametrize("length", [35, 53])
@pytest.mark.parametrize("name", ["analysis", "analysis-operator", "webhook", "gateway-full", "monitoring"])
def test_every_name_fits_its_kind(name: str, length: int) -> None:
    limits = {"CronJob": 52, "ScheduledSparkApplication": 43, "Pod": 63, "Service": 63, "Deployment": 63, "Job": 63}
    done = helm("template", "r" * length, CHART, "--values", ci(name))
    assert done.returncode == 0, done.stderr
    manifests = documents(done.stdout)
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    assert [one for one in names if len(one[1]) > limits.get(one[0], 253)] == []
    for one in manifests:
        assert all(len(value) <= 63 for value in one["metadata"].get("labels", {}).values()), one["metadata"]


HOOKED = {
    "resources": {"limits": {"cpu": "2"}},
    "labels": {"example.com/mesh": "off"},
    "annotations": {"example.com/proxy": "off"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"operator": "Exists"}],
}


@pytest.mark.parametrize("mode", ["sidecar", "gateway"])
def test_hook_pods_run_where_there_are_rules(mode: str) -> None:
    """ResourceQuotas want limits, tainted nodes tolerations, and meshes a sign that a pod ends."""

    def hooks(**given: Any) -> Manifests:
        return of_kind(rendered({"mode": mode} | given), "Pod")

    assert len(hooks()) == 2
    for pod in hooks():
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"
        assert pod["spec"]["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}
    for pod in hooks(check=HOOKED, test=HOOKED):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "512Mi"}
        assert all(HOOKED[key].items() <= pod["metadata"][key].items() for key in ("labels", "annotations"))
        assert all(pod["spec"][key] == HOOKED[key] for key in ("nodeSelector", "tolerations"))
    assert hooks(check={"enabled": False}, test={"enabled": False}) == []


@pytest.mark.parametrize("name", ["sidecar-demo", "gateway", "gateway-full", "plain-sidecar"])
def test_probes_use_the_admin_port_and_liveness_no_broker(name: str) -> None:
    manifests = _example(ci(name)) if name == "plain-sidecar" else render(name)
    admin = loaded(manifests).admin
    assert admin is not None
    pods = [one["spec"]["template"] for one in manifests if one["kind"] in ("Deployment", "Job")]
    for monitor in of_kind(manifests, "PodMonitor"):
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        assert [one for one in pods if not chosen <= one["metadata"]["labels"].items()] == []
        assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == ["kquota-metrics"]
    for pod in pod_specs(manifests).values():
        if not any(one["name"] == "kquota" for one in [*pod.get("initContainers", []), *pod["containers"]]):
            continue
        container = sidecar_of(pod)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["kquota-metrics"] == admin.port
        assert admin.host == "::", "both families"
        paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
        assert {probe["port"] for probe in paths.values()} == {"kquota-metrics"}
        assert paths["liveness"]["path"] == "/healthz", "a sidecar is not restarted because a broker is away"
        assert paths["readiness"]["path"] == ("/readyz" if name.startswith("gateway") else "/healthz"), "ADR 0028"


@pytest.mark.parametrize(("drain", "seconds"), [("1500ms", 2), ("2.5m", 150), ("1", 1), ("60s", 60)])
def test_pods_end_later_than_their_drain(drain: str, seconds: int) -> None:
    """By the preStop sleep of 5 s and a margin."""
    manifests = rendered(f"{{mode: gateway, config: {{drain_timeout_s: {drain}}}}}")
    assert seconds - 1 < loaded(manifests).drain_timeout_s <= seconds
    assert pod_of(manifests)["spec"]["terminationGracePeriodSeconds"] == seconds + 5 + 15


@pytest.mark.parametrize("name", ["gateway-full", "plain-sidecar"])
def test_sidecars_know_their_pod_and_namespace(name: str) -> None:
    """By the names that records, the page and the fleet read."""
    manifests = _example(ci(name)) if name == "plain-sidecar" else render(name)
    pods = [pod for pod in pod_specs(manifests).values() if '"name": "kquota-metrics"' in json.dumps(pod)]
    assert pods
    for pod in pods:
        given = {one["name"]: one.get("valueFrom") for one in sidecar_of(pod)["env"]}
        paths = {label: given[VARIABLES[label]]["fieldRef"]["fieldPath"] for label in ("pod", "namespace")}
        assert paths == {"pod": "metadata.name", "namespace": "metadata.namespace"}


def test_gateway_admin_port_answers_to_service_names() -> None:
    def hosts(name: str) -> list[str]:
        admin = loaded(render(name)).admin
        assert admin is not None
        return admin.allowed_hosts

    # NAME.NAMESPACE is not among them: with a namespace called dev or app it is a name that is for sale
    names = ("", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
    assert hosts("gateway") == [f"{RELEASE}-kquota{more}" for more in names]
    assert hosts("gateway-full") == [*(f"kafka-gateway{more}" for more in names), "kquota.example.com"]
    assert hosts("sidecar") == []  # no Service leads to it


SERVICE = f"{RELEASE}-kquota.{NAMESPACE}.svc"
CHOSEN = "{type: NodePort, nodePorts: {bootstrap: 30092, firstBroker: 30100}}"


@pytest.mark.parametrize(
    ("listen", "service", "host", "ports"),
    [
        ("", "{}", SERVICE, (9092, 19_092, 19_191)),
        ("port: 9000, broker_ports: 20000-20002", "{}", SERVICE, (9000, 20_000, 20_002)),
        ("broker_ports: '20000'", "{type: LoadBalancer}", "kafka.example", (9092, 20_000, 20_000)),
        ("broker_ports: 20000-20002", CHOSEN, "kafka.example", (30_092, 30_100, 30_102)),
    ],
)
def test_every_replica_tells_the_ports_of_the_service(
    listen: str, service: str, host: str, ports: tuple[int, int, int]
) -> None:
    own = "" if service == "{}" else f", advertised: {{host: {host}}}"
    manifests = rendered(f"{GATEWAY}{{service: {service}}}\nconfig: {{listen: {{{listen}{own}}}}}")
    config = loaded(manifests).listen
    assert config.advertised.host == host
    advertised = config.advertised_ports
    assert (config.advertised.port or config.port, advertised.start, advertised[-1]) == ports
    (spec,) = (one["spec"] for one in of_kind(manifests, "Service"))
    bootstrap, *brokers = spec["ports"]
    kind = "nodePort" if service == CHOSEN else "port"
    assert [one[kind] for one in (bootstrap, *brokers)] == [ports[0], *range(ports[1], ports[2] + 1)]
    assert bootstrap["port"] == config.port
    assert [one["port"] for one in brokers] == list(config.broker_ports), "targetPort is the same by default"
    (test,) = [one for one in of_kind(manifests, "Pod") if one["metadata"]["name"].endswith("-test")]
    assert f"--broker-ports={ports[1]}-{ports[2]}" in test["spec"]["containers"][0]["args"]


def test_the_projects_own_rules_and_dashboards_are_in_it() -> None:
    manifests = render("monitoring")
    (rule,) = of_kind(manifests, "PrometheusRule")
    expected = yaml.safe_load((ROOT / "deploy/prometheus/kquota.rules.yaml").read_text())
    assert rule["spec"] == expected
    url = "https://wiki.example.com/kquota"
    text = render_text(ci("monitoring"), "--set", f"prometheusRule.runbookUrl={url}")
    for alert in [one for group in expected["groups"] for one in group["rules"] if "alert" in one]:
        alert["annotations"]["runbook_url"] = alert["annotations"].pop("runbook").replace("docs/runbook.md", url)
    assert of_kind(documents(text), "PrometheusRule")[0]["spec"] == expected
    boards = [one for one in of_kind(manifests, "ConfigMap") if "kquota.yaml" not in one["data"]]
    originals = {path.name: path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")}
    assert {name: text for one in boards for name, text in one["data"].items()} == originals
    assert all(len(text) < 1_000_000 for text in originals.values()), "a ConfigMap holds 1 MiB"


def test_the_webhooks_metrics_are_scraped() -> None:
    manifests = rendered("{podMonitor: {enabled: true}, webhook: {enabled: true}}")
    (monitor,) = [one for one in of_kind(manifests, "PodMonitor") if one["metadata"]["name"].endswith("-webhook")]
    pod = pod_of(manifests)
    assert pod["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [one["name"] for one in pod["spec"]["containers"][0]["ports"]]


def test_no_peers_means_nobody() -> None:
    """An empty `from` would admit all. (Named peers: tests/golden/chart.)"""
    closed = rendered("{networkPolicy: {enabled: true, monitoring: []}, mode: gateway}")
    (policy,) = of_kind(closed, "NetworkPolicy")
    assert [one["ports"][0]["port"] for one in policy["spec"]["ingress"]] == ["kafka"]
    others = rendered("{networkPolicy: {monitoring: []}, webhook: {enabled: true, networkPolicy: true}}")
    (rule,) = injected(others)["distribution"]["networkPolicy"]["ingress"]
    assert {"protocol": "TCP", "port": 1, "endPort": 9403} in rule["ports"]
    (policy,) = of_kind(render("plain-sidecar"), "NetworkPolicy")
    assert policy["spec"]["ingress"][1] == {"ports": [{"port": 8080, "protocol": "TCP"}]}


CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}

LABELS = {
    "helm.sh/chart": "kquota-{version}".format(**yaml.safe_load((CHART / "Chart.yaml").read_text())),
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/instance": RELEASE,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_object_has_what_is_common(name: str) -> None:
    common = ("--set", r"commonAnnotations.example\.com/owner=platform", "--set", "namespaceOverride=elsewhere")
    text = render_text(ci(name), *common)
    assert NAMESPACE not in text
    manifests = documents(text)
    assert len(manifests) == len(render(name))
    for one in manifests:
        metadata = one["metadata"]
        assert metadata["labels"].items() >= LABELS.items(), (one["kind"], metadata["name"])
        assert metadata["annotations"]["example.com/owner"] == "platform", (one["kind"], metadata["name"])
        expected = None if one["kind"] in CLUSTER_KINDS else "elsewhere"
        assert metadata.get("namespace") == expected, (one["kind"], metadata["name"])


def test_the_charts_own_labels_win() -> None:
    """Given twice, a label is there once; selectors keep theirs."""
    twice = "app.kubernetes.io/name: x, app.kubernetes.io/component: x, sidecar.istio.io/inject: 'true'"
    manifests = rendered(f"""
        mode: gateway
        commonLabels: {{{twice}, tier: b}}
        gateway:
          podLabels: {{{twice}}}
          podAnnotations: {{prometheus.io/port: '1'}}
          service: {{labels: {{{twice}, tier: a}}}}
        prometheusAnnotations: true
        podMonitor: {{enabled: true, labels: {{tier: c}}}}
    """)
    (deployment,), (service,) = of_kind(manifests, "Deployment"), of_kind(manifests, "Service")
    pod = pod_of(manifests)["metadata"]
    assert pod["labels"].items() >= deployment["spec"]["selector"]["matchLabels"].items()
    assert pod["annotations"]["prometheus.io/port"] == "1", "the pod's own"
    assert service["metadata"]["labels"].items() >= {"app.kubernetes.io/name": "kquota", "tier": "a"}.items()
    assert [one["metadata"]["labels"]["tier"] for one in of_kind(manifests, "PodMonitor")] == ["c"]


@pytest.mark.parametrize("name", ["123", "1e3", "no", "y"])
def test_names_may_look_like_other_types(name: str) -> None:
    done = helm("template", name, CHART, "--values", ci("monitoring"), "--set-string", "nameOverride=12")
    for one in documents(done.stdout):
        assert all(isinstance(value, str) for value in one["metadata"]["labels"].values())
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == name


def test_long_releases_have_names_of_their_own() -> None:
    long = "payments-platform-production-europe-west-cluster-00"
    one, other = (documents(helm("template", f"{long}{n}", CHART, "--values", MINIMAL).stdout) for n in (1, 2))
    assert {each["metadata"]["name"] for each in one}.isdisjoint(each["metadata"]["name"] for each in other)


def test_a_service_needs_a_name_that_it_may_have() -> None:
    done = helm("template", "123", CHART, "--values", MINIMAL, "--set", "mode=gateway")
    assert "no Service can have the name 123-kquota: set fullnameOverride" in done.stderr


def test_changed_settings_make_another_demo() -> None:
    """A Job's template cannot be changed."""
    demos = (of_kind(rendered(f"{{demo: {{enabled: true}}, image: {{tag: '{tag}'}}}}"), "Job") for tag in (1, 2))
    (before,), (after,) = demos
    assert before["metadata"]["name"] != after["metadata"]["name"]


def test_files_of_reports_are_exact() -> None:
    files = {"1.5": "  x: 1\n  y: 2\n"}
    manifests = rendered({"analysis": {"enabled": True, "input": "/in", "output": "/out", "files": files}})
    assert files in [one["data"] for one in of_kind(manifests, "ConfigMap")]


def test_extra_objects_are_rendered() -> None:
    template = "kind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-second}"
    given = [{"kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-first"}}, template]
    names = {one["metadata"]["name"] for one in rendered({"extraObjects": given})}
    assert {f"{RELEASE}-first", f"{RELEASE}-second"} <= names


@functools.cache
def _example(values: Path | None = None, kubernetes: str = NEWEST) -> Manifests:
    """The chart that docs/kubernetes.md shows, with this chart as its dependency."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    shown = r"^```yaml\n# (Chart\.yaml|values\.yaml|templates/\S+)\n(.*?)^```"
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory, "shop")
        for name, text in re.findall(shown, page, re.DOTALL | re.MULTILINE):
            (chart / name).parent.mkdir(parents=True, exist_ok=True)
            (chart / name).write_text(text)
        if values is not None:
            (chart / "values.yaml").write_text(yaml.safe_dump({"kquota": yaml.safe_load(values.read_text())}))
        shutil.copytree(CHART, chart / "charts/kquota")
        return documents(render_text(chart=chart, kubernetes=kubernetes))


def test_another_chart_includes_the_native_sidecar() -> None:
    manifests = _example()
    (deployment,) = of_kind(manifests, "Deployment")
    kubernetes_validate.validate(deployment, NEWEST, strict=True)
    template = deployment["spec"]["template"]
    sidecar = template["spec"]["initContainers"][0]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("kquota", "Always")
    assert [one["name"] for one in template["spec"]["containers"]] == ["shop"]
    (config,) = of_kind(unhooked(manifests), "ConfigMap")
    assert template["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert template["metadata"]["labels"]["kquota.io/config"] == config["metadata"]["name"]
    mine = yaml.safe_load(configuration(manifests))
    assert mine["upstream"] == {"bootstrap": ["kafka-0.kafka:9092"]}
    assert mine["quotas"] == [{"client-id": "<default>", "producer_byte_rate": "2M"}]
    # the same checksum as of the same configuration in the chart itself
    (job,) = of_kind(render("sidecar-demo"), "Job")
    theirs = job["spec"]["template"]["metadata"]["annotations"]["kquota.io/restart-checksum"]
    assert len(template["metadata"]["annotations"]["kquota.io/restart-checksum"]) == len(theirs) == 64


def test_other_chart_includes_ordinary_container_before_1_29() -> None:
    manifests = _example(kubernetes="1.28.0")
    (deployment,) = of_kind(manifests, "Deployment")
    kubernetes_validate.validate(deployment, OLDEST, strict=True)
    pod = deployment["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    assert [one["name"] for one in pod["containers"]] == ["shop", "kquota"]
    sidecar = pod["containers"][1]
    assert "restartPolicy" not in sidecar
    assert sidecar["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "10"]
    assert pod["terminationGracePeriodSeconds"] == 40 + 10 + 15


ODD_NAMES = [
    "1e6", "007", "0x1F", "1_000", "true", "null", "~", "12:30:45", "2026-01-01", ".inf", "=", "<<", "{{ .Values }}",
    "a, b", "a: b", "#no comment", "- a", "'", '"', "\\n", "*a", "&a", "!!str", "%", "@", "`", "é", "名", " a ",
]  # fmt: skip


@both_helms
def test_names_reach_the_sidecar_as_written(release: HelmRelease) -> None:
    given = [{"client-id": name, "producer_byte_rate": 1_000_000_000_000} for name in ODD_NAMES]
    text = json.dumps(yaml.safe_load(MINIMAL.read_text()) | {"quotas": given})  # each name in quotes
    found = to_table(loaded(documents(render_text(None, "--values", "-", stdin=text, release=release)))).entries
    assert sorted(str(entry.client_id) for entry in found) == sorted(ODD_NAMES)


@pytest.mark.parametrize(("times", "code", "said"), [(1, 0, ""), (2, 2, "quotas[1]")])
def test_hook_checks_the_deployed_configuration(times: int, code: int, said: str, tmp_path: Path) -> None:
    """The pod's own arguments on the file that Helm would deploy: entries that the values' schema lets through."""
    manifests = rendered({"quotas": [{"user": "a", "producer_byte_rate": "1M"}] * times})
    hooks = [one for one in manifests if "pre-upgrade" in str(one["metadata"].get("annotations"))]
    text = configuration(manifests)
    assert [one["data"]["kquota.yaml"] for one in of_kind(hooks, "ConfigMap")] == [text]
    (tmp_path / "kquota.yaml").write_text(text)
    (container,) = of_kind(hooks, "Pod")[0]["spec"]["containers"]
    done = CliRunner().invoke(app, [one.replace("/etc/kquota", str(tmp_path)) for one in container["args"]])
    assert done.exit_code == code
    assert said in done.stderr
