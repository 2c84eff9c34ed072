"""The Helm chart, rendered by a real helm: valid for old and new Kubernetes, safe, true to the configuration model."""

from __future__ import annotations

import base64
import copy
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from config.load import load, load_bytes, warnings_of
from config.parts import read_config
from config.problems import ConfigError
from config.table import has_limits, to_table
from deploy.kubernetes.own_quotas import combined
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

HOOK = "helm.sh/hook"


@functools.cache
def _render(name: str, kubernetes: str) -> list[dict[str, Any]]:
    return documents(render_text(CHART / f"ci/{name}-values.yaml", kubernetes=kubernetes))


def render(name: str, kubernetes: str = NEWEST) -> list[dict[str, Any]]:
    """The manifests of one file of values; a copy, to do with as one likes."""
    return copy.deepcopy(_render(name, kubernetes))


def versions(name: str) -> list[str]:
    """Where these values can be installed: the demo's Job needs native sidecars."""
    return [FIRST_NATIVE if name in ("sidecar-demo", "transparent") else OLDEST, NEWEST]


EVERYWHERE = [(name, version) for name in NAMES for version in versions(name)]
OPERATORS = ("monitoring.coreos.com/", "cert-manager.io/", "sparkoperator.k8s.io/")


@pytest.fixture
def values(tmp_path: Path) -> Callable[..., Path]:
    """Writes values, given as a mapping over the minimal ones, to a file."""

    def write(**given: Any) -> Path:
        merged = yaml.safe_load(MINIMAL.read_text())
        for key, value in given.items():
            merged[key] = merged.get(key, {}) | value if isinstance(value, dict) else value
        path = tmp_path / f"values-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(yaml.safe_dump(merged))
        return path

    return write


@pytest.mark.parametrize("name", NAMES)
def test_strict_lint_accepts_the_chart(name: str) -> None:
    done = helm("lint", "--strict", CHART, "--values", CHART / f"ci/{name}-values.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert done.stderr == "", "helm itself has something to say about these values"


@pytest.mark.parametrize("kubernetes", [OLDEST, FIRST_NATIVE, NEWEST])
def test_manifests_are_valid_kubernetes(kubernetes: str) -> None:
    """By the published schemas of that version; operators' kinds are checked by `make test-apiserver`."""
    manifests = [one for name, version in EVERYWHERE if version == kubernetes for one in render(name, kubernetes)]
    manifests += [one for name in EXAMPLES for one in documents(render_example(name, kubernetes))]
    if kubernetes == NEWEST:
        manifests += [one for path, text in plain().items() if "spark" not in path.stem for one in documents(text)]
    for one in manifests:
        if not one["apiVersion"].startswith(OPERATORS):
            kubernetes_validate.validate(one, kubernetes, strict=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_configuration_of_example_loads_without_warnings(name: str) -> None:
    config = load_bytes(name, configuration(documents(render_example(name))).encode())
    assert warnings_of(config) == []
    assert has_limits(config)


@pytest.mark.parametrize("name", NAMES)
def test_both_helms_render_the_same(name: str) -> None:
    old, new = (
        documents(without_secrets(render_text(CHART / f"ci/{name}-values.yaml", release=release)))
        for release in (HELM_3, HELM_4)
    )
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


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no brokers": (
        {"config": {"upstream": {}}},
        "config.upstream.bootstrap is missing: name some brokers of the cluster",
    ),
    "quota": ({"quotas": [{"user": "a", "producer_byte_rat": 1}]}, "producer_byte_rat"),
    "limit": ({"quotas": [{"user": "a", "producer_byte_rate": "fast"}]}, "producer_byte_rate"),
    "mapping": ({"quotas": {"entires": []}}, "entires"),
    "setting": ({"config": {"max_mutt": "30s"}}, "max_mutt"),
    "section": ({"config": {"listen": {"prot": 9092}}}, "prot"),
    "chart": ({"podMonitr": {"enabled": True}}, "podMonitr"),
    "inner": ({"gateway": {"replica": 3}}, "replica"),
    "mode": ({"mode": "sidcar"}, "mode"),
    "no destination": (
        {"config": {"mode": "transparent"}, "redirect": {"ports": []}, "demo": {"enabled": True}},
        "nothing would be redirected",
    ),
    "a transparent gateway": ({"config": {"mode": "transparent"}, "mode": "gateway"}, "it needs mode sidecar"),
    "a balancer without a name": (
        {"mode": "gateway", "gateway": {"service": {"type": "LoadBalancer"}}},
        "config.listen.advertised.host is missing",
    ),
    "node ports that are not chosen": (
        {
            "mode": "gateway",
            "gateway": {"service": {"type": "NodePort"}},
            "config": {"listen": {"advertised": {"host": "node"}}},
        },
        "gateway.service.nodePorts is missing",
    ),
    "a typo in resources": ({"resources": {"request": {"cpu": "1"}}}, "request"),
    "a quantity": ({"resources": {"limits": {"memory": "1GB"}}}, "memory"),
    "a request above its limit": (
        {"resources": {"limits": {"memory": "100Mi"}}},
        "resources.requests.memory: expected at most 100Mi (resources.limits.memory), got 128Mi",
    ),
    "a number in the environment": ({"extraEnv": [{"name": "KQUOTA_PURE", "value": 1}]}, "extraEnv"),
    "a mount without a volume": (
        {"extraVolumeMounts": [{"name": "tls", "mountPath": "/tls"}]},
        "extraVolumeMounts: expected a volume of extraVolumes, got tls",
    ),
    "a mount over the configuration": (
        {
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/etc/kquota/more"}],
        },
        "mountPath",
    ),
    "a volume of the sidecar's name": ({"extraVolumes": [{"name": "kquota-config", "emptyDir": {}}]}, "extraVolumes"),
    "a toleration": ({"webhook": {"tolerations": [{"keys": "spot"}]}}, "keys"),
    "a peer": ({"networkPolicy": {"monitoring": [{"namespaceSelektor": {}}]}}, "namespaceSelektor"),
    "a label": ({"commonLabels": {"team": "Team A"}}, "team"),
    "a full name": ({"fullnameOverride": "My_Kafka"}, "fullnameOverride"),
    "a variable": ({"webhook": {"bootstrapVariable": "A B"}}, "bootstrapVariable"),
    "an entry": ({"fleetKey": {"entry": "my key"}}, "entry"),
    "no port": ({"config": {"listen": {"port": 0}}, "demo": {"enabled": True}}, "config.listen.port: expected a port"),
    "replicas": (
        {"mode": "gateway", "gateway": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "gateway.autoscaling.minReplicas: expected at most maxReplicas (6), got 9",
    ),
    "node ports that overlap": (
        {
            "mode": "gateway",
            "gateway": {"service": {"type": "NodePort", "nodePorts": {"bootstrap": 30092, "firstBroker": 30000}}},
            "config": {"listen": {"advertised": {"host": "node"}}},
        },
        "gateway.service.nodePorts.bootstrap: expected none of the brokers' (30000-30099), got 30092",
    ),
    "a report twice": (
        {
            "analysis": {
                "enabled": True,
                "input": "/in",
                "output": "/out",
                "reports": [{"name": "slo"}, {"name": "slo"}],
            }
        },
        "analysis.reports: expected each report once, got slo twice",
    ),
    "a fleet's key of the chart": (
        {"config": {"fleet": {"id": "shop"}}, "webhook": {"enabled": True}},
        "fleetKey.secret is missing: with webhook.enabled and config.fleet",
    ),
}


@pytest.mark.parametrize("release", [HELM_4, HELM_3], ids=lambda release: release.version)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_typing_mistakes_fail_at_install(mistake: str, release: HelmRelease, values: Any) -> None:
    given, named = MISTAKES[mistake]
    done = helm("template", RELEASE, CHART, "--values", values(**given), release=release)
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
def test_ten_thousand_quotas_are_in_parts(form: str, tmp_path: Path, values: Callable[..., Path]) -> None:
    """Each fits a ConfigMap; the volume has all of them, in one directory, and together they are one file."""
    manifests = documents(render_text(values(mode="gateway", quotas=FORMS[form])))
    for name in (f"{RELEASE}-kquota", f"{RELEASE}-kquota-check"):
        maps = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "ConfigMap")}
        (pod,) = [
            one for where, one in pod_specs(manifests).items() if where.endswith(name) or where == f"Deployment/{name}"
        ]
        (volume,) = [one for one in pod["volumes"] if one["name"] in ("kquota-config", "config")]
        sources = [one["configMap"]["name"] for one in volume["projected"]["sources"]]
        assert sources == [name, *(f"{name}-{n}" for n in (2, 3, 4))]
        for source in sources:
            ((key, text),) = maps[source].items()
            assert len(text) < 700_000
            (tmp_path / key).write_text(text)
        config = load(tmp_path / "kquota.yaml")
        assert [entry.user for entry in to_table(config).entries] == [entry["user"] for entry in MANY]
        assert (b"alter: forward" in read_config(tmp_path / "kquota.yaml")) is (form == "mapping")
    (tmp_path / "kquota.yaml.3").write_text((tmp_path / "kquota.yaml.3").read_text().replace("1M", "2M"))
    with pytest.raises(ConfigError, match="its 4 parts are not of one version"):
        load(tmp_path / "kquota.yaml")
    few = documents(render_text(values(mode="gateway", quotas=MANY[:2500])))
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
    file = CHART / f"ci/{name}-values.yaml"
    assert without_secrets(render_text(file, chart=chart)) == without_secrets(render_text(file))


def _nulls(values: dict[str, Any], depth: int) -> dict[str, Any]:
    return {
        key: _nulls(value, depth - 1) if depth and isinstance(value, dict) and key not in FREE else None
        for key, value in values.items()
    }


@pytest.mark.parametrize("release", [HELM_4, HELM_3], ids=lambda release: release.version)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_null_means_the_default(depth: int, release: HelmRelease, tmp_path: Path) -> None:
    (nulls := tmp_path / "nulls.yaml").write_text(
        yaml.safe_dump(_nulls(yaml.safe_load((CHART / "values.yaml").read_text()), depth))
    )
    usual = ("--values", CHART / "ci/webhook-values.yaml")
    assert render_text(nulls, *usual, release=release) == render_text(None, *usual, release=release)


@pytest.mark.parametrize(("name", "kubernetes"), EVERYWHERE)
def test_the_configuration_is_accepted_by_kquota(name: str, kubernetes: str) -> None:
    text = configuration(render(name, kubernetes))
    config = load_bytes("kquota.yaml", text.encode())
    given = yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text())
    written = yaml.safe_load(text)
    assert written["quotas"] == given.get("quotas", [])
    assert given["config"].items() <= written.items() or name == "plain-sidecar" or name == "gateway-full"
    assert config.listen.host == ("::" if given.get("mode") == "gateway" else "127.0.0.1")
    unused = [str(problem) for problem in warnings_of(config) if "unknown" in str(problem)]
    assert unused == []


CHANGES: dict[str, dict[str, Any]] = {
    "entries": {"quotas": [{"client-id": "b", "producer_byte_rate": "3M"}]},
    "none": {"quotas": []},
    "mapping": {"quotas": {"entries": [{"client-id": "b", "producer_byte_rate": "3M"}]}},
    "alter": {"quotas": {"alter": "forward"}},
    "source": {"quotas": {"source": "cluster"}},
    "static words": {"config": {"quota.producer.default": "5M"}},
    "log": {"config": {"log": {"level": "debug"}}},
    "port": {"config": {"listen": {"port": 9093}}},
    "mute": {"config": {"max_mute": "10s"}},
    "drain": {"config": {"drain_timeout_s": 50}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_pods_restart_for_settings_that_need_it(change: str, values: Any) -> None:
    """The chart and the sidecar agree: the checksum differs just when kquota itself would ask for a restart."""
    before = documents(render_text(values(quotas=[{"client-id": "a", "producer_byte_rate": "2M"}], mode="gateway")))
    after = documents(render_text(values(mode="gateway", **CHANGES[change])))
    old, new = (load_bytes("kquota.yaml", configuration(one).encode()).restart_settings() for one in (before, after))
    checksums = [
        of_kind(one, "Deployment")[0]["spec"]["template"]["metadata"]["annotations"]["kquota.io/restart-checksum"]
        for one in (before, after)
    ]
    assert (checksums[0] != checksums[1]) == (old != new)
    assert configuration(before) != configuration(after)
    if old == new:
        assert of_kind(before, "Deployment") == of_kind(after, "Deployment")


def test_imported_quotas_fit_values_file_and_namespace(tmp_path: Path) -> None:
    """`kquota import` prints one form, which is all three (import kafka prints it by the same function)."""
    (users := tmp_path / "users.yaml").write_text(KAFKA_USERS)
    printed = subprocess.run(
        [sys.executable, "-m", "proxy.app.cli.main", "import", "strimzi", users],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert printed.returncode == 0, printed.stderr
    (quotas := tmp_path / "quotas.yaml").write_text(printed.stdout)
    rendered = configuration(documents(render_text(MINIMAL, "--values", quotas)))
    as_values = to_table(load_bytes("values", rendered.encode())).entries
    as_file = to_table(load_bytes("file", printed.stdout.encode(), on_paper=True)).entries
    base = configuration(render("sidecar"))
    of_a_namespace = combined(base, printed.stdout.encode(), "any", "quotas.yaml")
    in_a_namespace = to_table(load_bytes("copy", of_a_namespace.encode())).entries
    assert as_values == as_file
    assert {entry.user for entry in as_file} == {"reporting", "CN=orders"}
    assert set(as_file) <= set(in_a_namespace)


LIMITS: dict[str, tuple[dict[str, Any], str | None]] = {
    # 128 MiB + 1000 * 80 KiB + 20 000 * 8 KiB = 362.4 MiB, rounded up to 16 MiB
    "defaults": ({}, "368Mi"),
    "quotas play no part": ({"quotas": [{"user": "a", "request_percentage": 5, "producer_byte_rate": 1}]}, "368Mi"),
    # 128 + 5000 * 80 KiB = 390.6 + 156.25
    "connections": ({"memoryLimit": {"connections": 5000}}, "688Mi"),
    # 128 + 100 * 80 KiB = 7.8 + 1000 * 8 KiB = 7.8
    "small": ({"config": {"limits": {"max_connections": 100, "max_clients": 1000}}}, "144Mi"),
    # 362.4 + 16 + 16
    "export": ({"config": {"export": {"directory": "/var/lib/kquota", "kafka_topic": "usage"}}}, "400Mi"),
    "one's own": ({"resources": {"limits": {"memory": "1Gi"}}}, "1Gi"),
    "a higher request": ({"resources": {"requests": {"cpu": "100m", "memory": "2Gi"}}}, "2Gi"),
    "a CPU limit next to it": ({"resources": {"limits": {"cpu": "2"}}}, "368Mi"),
    "none": ({"memoryLimit": {"enabled": False}}, None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_memory_limit_follows_from_the_settings(case: str, values: Any) -> None:
    given, expected = LIMITS[case]
    (deployment,) = of_kind(documents(render_text(values(mode="gateway", **given))), "Deployment")
    resources = sidecar_of(deployment["spec"]["template"]["spec"])["resources"]
    assert resources.get("limits", {}).get("memory") == expected
    assert resources["requests"] == {"cpu": "100m", "memory": "2Gi" if case == "a higher request" else "128Mi"}
    if case == "a CPU limit next to it":
        assert resources["limits"]["cpu"] == "2"


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
    text = render_text(CHART / f"ci/{name}-values.yaml", "--set", "runAsUser=namespace")
    assert not re.findall(r"runAsUser|runAsGroup|fsGroup", text)
    assert text.count("runAsNonRoot") == render_text(CHART / f"ci/{name}-values.yaml").count("runAsNonRoot")
    other = documents(render_text(CHART / f"ci/{name}-values.yaml", "--set", "runAsUser=1000680000"))
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
    injected = [one["data"]["sidecar.json"] for one in of_kind(manifests, "ConfigMap") if "sidecar.json" in one["data"]]
    ours = [json.loads(text)[key] for text in injected for key in ("container", "redirect")]
    ours += [one for pod in pod_specs(manifests).values() for one in pod.get("initContainers", [])]
    assert [one["name"] for one in ours] == ["kquota", "kquota-redirect", "kquota-redirect", "kquota"]
    for container in ours:
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in [
            one["mountPath"] for one in container["volumeMounts"]
        ]


STATE: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "nothing": ({}, None),
    "records elsewhere": ({"config": {"export": {"directory": "/mnt/usage"}}}, None),
    "records": ({"config": {"export": {"directory": "/var/lib/kquota/usage"}}}, {"emptyDir": {}}),
    "overlay": ({"quotas": {"alter": "apply", "overlay": "/var/lib/kquota/overlay.yaml"}}, {"emptyDir": {}}),
    "ports": ({"config": {"listen": {"state_file": "/var/lib/kquota/ports.json"}}}, {"emptyDir": {}}),
    "in memory": ({"state": {"volume": {"emptyDir": {"medium": "Memory"}}}}, {"emptyDir": {"medium": "Memory"}}),
    "a claim": (
        {"state": {"volume": {"persistentVolumeClaim": {"claimName": "a"}}}},
        {"persistentVolumeClaim": {"claimName": "a"}},
    ),
}


@pytest.mark.parametrize("case", STATE)
def test_a_volume_is_there_only_for_what_is_stored(case: str, values: Callable[..., Path]) -> None:
    """An emptyDir keeps `kubectl drain` from the node, and without the annotation the cluster autoscaler as well."""
    given, expected = STATE[case]
    (deployment,) = of_kind(documents(render_text(values(mode="gateway", **given))), "Deployment")
    pod = deployment["spec"]["template"]
    found = [{key: one[key] for key in one if key != "name"} for one in pod["spec"]["volumes"]]
    mounts = [one["mountPath"] for one in sidecar_of(pod["spec"])["volumeMounts"]]
    assert [one for one in found if not one.keys() & {"configMap", "secret"}] == (
        [] if expected is None else [expected]
    )
    assert ("/var/lib/kquota" in mounts) is (expected is not None)
    evicted = pod["metadata"]["annotations"].get("cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes")
    assert evicted == ("kquota-state" if "emptyDir" in (expected or {}) else None)


FLEET = {"config": {"upstream": {"bootstrap": ["kafka:9092"]}, "fleet": {"id": "shop"}}}


@pytest.mark.parametrize(
    ("given", "made", "mounted"),
    [
        ({"mode": "gateway"}, f"{RELEASE}-kquota-fleet", f"{RELEASE}-kquota-fleet"),
        ({"mode": "gateway", "fleetKey": {"secret": "own", "entry": "fleet"}}, None, "own"),
        ({"mode": "gateway", "gateway": {"sharedLimits": False}}, None, None),
        ({}, None, None),
        (FLEET, f"{RELEASE}-kquota-fleet", f"{RELEASE}-kquota-fleet"),
        ({"config": FLEET["config"] | {"fleet": {"key_file": "/etc/own/key"}}}, None, None),
        (FLEET | {"webhook": {"enabled": True}, "fleetKey": {"secret": "own"}}, None, "own"),
    ],
    ids=["gateway", "own", "not shared", "sidecar", "fleet", "own file", "webhook"],
)
def test_a_fleet_gets_its_key_and_nothing_else_does(
    given: dict[str, Any], made: str | None, mounted: str | None, values: Callable[..., Path]
) -> None:
    manifests = documents(render_text(values(**given)))
    secrets = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "Secret")}
    assert list(secrets) == ([] if made is None else [made])
    fleet = load_bytes("kquota.yaml", configuration(manifests).encode()).fleet
    if "webhook" in given:
        (injected,) = [one for one in of_kind(manifests, "ConfigMap") if "sidecar.json" in one["data"]]
        template = json.loads(injected["data"]["sidecar.json"])
        volumes, container = template["volumes"], template["container"]
    else:
        pod = pod_specs(unhooked(manifests) if given.get("mode") == "gateway" else manifests)
        (spec,) = [one for where, one in pod.items() if not where.endswith("-check")]
        volumes, container = spec["volumes"], sidecar_of(spec)
    found = {one["name"]: one["secret"]["secretName"] for one in volumes if "secret" in one}
    assert found.get("kquota-fleet") == mounted
    if mounted is not None:
        assert fleet is not None
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "kquota-fleet"]
        entry = given.get("fleetKey", {}).get("entry", "key")
        assert (fleet.key_file, mount["readOnly"]) == (f"{mount['mountPath']}/{entry}", True)
    for data in secrets.values():
        assert len(base64.b64decode(data["key"])) == 48


@pytest.mark.parametrize("length", [35, 53])
@pytest.mark.parametrize("name", ["analysis", "analysis-operator", "webhook", "gateway-full", "monitoring"])
def test_every_name_fits_its_kind(name: str, length: int) -> None:
    limits = {"CronJob": 52, "ScheduledSparkApplication": 43, "Pod": 63, "Service": 63, "Deployment": 63, "Job": 63}
    done = helm("template", "r" * length, CHART, "--values", CHART / f"ci/{name}-values.yaml")
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
def test_hook_pods_run_where_there_are_rules(mode: str, values: Callable[..., Path]) -> None:
    """ResourceQuotas want limits, tainted nodes tolerations, and meshes a sign that a pod ends."""
    hooks = pods_of_hooks(values(mode=mode))
    assert len(hooks) == 2
    for pod in hooks:
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"
        assert pod["spec"]["containers"][0]["resources"]["limits"].keys() == {"cpu", "memory"}
    for pod in pods_of_hooks(values(mode=mode, check=HOOKED, test=HOOKED)):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "512Mi"}
        assert HOOKED["labels"].items() <= pod["metadata"]["labels"].items()
        assert HOOKED["annotations"].items() <= pod["metadata"]["annotations"].items()
        assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == ({"zone": "a"}, [{"operator": "Exists"}])
    assert pods_of_hooks(values(mode=mode, check={"enabled": False}, test={"enabled": False})) == []


def pods_of_hooks(given: Path) -> list[dict[str, Any]]:
    return of_kind(documents(render_text(given)), "Pod")


@pytest.mark.parametrize("name", ["sidecar-demo", "gateway", "gateway-full", "plain-sidecar"])
def test_probes_use_the_admin_port_and_liveness_no_broker(name: str) -> None:
    manifests = _example(CHART / f"ci/{name}-values.yaml") if name == "plain-sidecar" else render(name)
    config = load_bytes("kquota.yaml", configuration(manifests).encode())
    assert config.admin is not None
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
        assert ports["kquota-metrics"] == config.admin.port
        assert config.admin.host == "::", "both families"
        paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
        assert {probe["port"] for probe in paths.values()} == {"kquota-metrics"}
        assert paths["liveness"]["path"] == "/healthz", "a sidecar is not restarted because a broker is away"
        assert paths["readiness"]["path"] == ("/readyz" if name.startswith("gateway") else "/healthz"), "ADR 0028"


def test_pods_end_later_than_their_drain(values: Any) -> None:
    (deployment,) = of_kind(render("gateway-full"), "Deployment")
    config = load_bytes("kquota.yaml", configuration(render("gateway-full")).encode())
    assert config.drain_timeout_s == 60
    # drain, the preStop sleep and a margin
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60 + 5 + 15
    for drain, seconds in (("1500ms", 2 + 20), ("2.5m", 150 + 20), (1, 1 + 20)):
        text = render_text(values(mode="gateway", config={"drain_timeout_s": drain}))
        (deployment,) = of_kind(documents(text), "Deployment")
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize("name", ["gateway-full", "plain-sidecar"])
def test_sidecars_know_their_pod_and_namespace(name: str) -> None:
    """By the names that records, the page and the fleet read."""
    manifests = _example(CHART / f"ci/{name}-values.yaml") if name == "plain-sidecar" else render(name)
    pods = [pod for pod in pod_specs(manifests).values() if '"name": "kquota-metrics"' in json.dumps(pod)]
    assert pods
    for pod in pods:
        given = {one["name"]: one.get("valueFrom") for one in sidecar_of(pod)["env"]}
        paths = {label: given[VARIABLES[label]]["fieldRef"]["fieldPath"] for label in ("pod", "namespace")}
        assert paths == {"pod": "metadata.name", "namespace": "metadata.namespace"}


def test_the_configuration_is_mounted_so_that_changes_arrive() -> None:
    """Files mounted by subPath never change, and immutable ConfigMaps neither."""
    for name in NAMES:
        manifests = render(name)
        assert all("immutable" not in one for one in of_kind(manifests, "ConfigMap"))
        for pod in pod_specs(manifests).values():
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                assert all("subPath" not in mount for mount in container.get("volumeMounts", []))


def test_gateway_admin_port_answers_to_service_names() -> None:
    def hosts(name: str) -> list[str]:
        config = load_bytes("kquota.yaml", configuration(render(name)).encode())
        assert config.admin is not None
        return config.admin.allowed_hosts

    # NAME.NAMESPACE is not among them: with a namespace called dev or app it is a name that is for sale
    names = ("", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
    assert hosts("gateway") == [f"{RELEASE}-kquota{more}" for more in names]
    assert hosts("gateway-full") == [*(f"kafka-gateway{more}" for more in names), "kquota.example.com"]
    assert hosts("sidecar") == []  # no Service leads to it


@pytest.mark.parametrize(
    ("listen", "service", "host", "ports"),
    [
        ({}, {}, f"{RELEASE}-kquota.{NAMESPACE}.svc", (9092, 19_092, 19_191)),
        (
            {"port": 9000, "broker_ports": "20000-20002"},
            {},
            f"{RELEASE}-kquota.{NAMESPACE}.svc",
            (9000, 20_000, 20_002),
        ),
        ({"broker_ports": "20000"}, {"type": "LoadBalancer"}, "kafka.example", (9092, 20_000, 20_000)),
        (
            {"broker_ports": "20000-20002"},
            {"type": "NodePort", "nodePorts": {"bootstrap": 30_092, "firstBroker": 30_100}},
            "kafka.example",
            (30_092, 30_100, 30_102),
        ),
    ],
)
def test_every_replica_tells_the_ports_of_the_service(
    listen: dict[str, Any], service: dict[str, Any], host: str, ports: tuple[int, int, int], values: Any
) -> None:
    advertised = {"advertised": {"host": host}} if service else {}
    path = values(mode="gateway", config={"listen": listen | advertised}, gateway={"service": service})
    manifests = documents(render_text(path))
    config = load_bytes("kquota.yaml", configuration(manifests).encode()).listen
    assert config.advertised.host == host
    assert (config.advertised.port or config.port, *config.advertised_ports) == ports
    (spec,) = (one["spec"] for one in of_kind(manifests, "Service"))
    bootstrap, *brokers = spec["ports"]
    kind = "nodePort" if service.get("type") == "NodePort" else "port"
    assert [one[kind] for one in (bootstrap, *brokers)] == [ports[0], *range(ports[1], ports[2] + 1)]
    assert bootstrap["port"] == config.port
    assert [one["port"] for one in brokers] == list(config.broker_ports.all), "targetPort is the same by default"
    (test,) = [one for one in of_kind(manifests, "Pod") if one["metadata"]["name"].endswith("-test")]
    assert f"--broker-ports={ports[1]}-{ports[2]}" in test["spec"]["containers"][0]["args"]


def test_the_projects_own_rules_and_dashboards_are_in_it() -> None:
    manifests = render("monitoring")
    (rule,) = of_kind(manifests, "PrometheusRule")
    expected = yaml.safe_load((ROOT / "deploy/prometheus/kquota.rules.yaml").read_text())
    assert rule["spec"] == expected
    url = "https://wiki.example.com/kquota"
    text = render_text(CHART / "ci/monitoring-values.yaml", "--set", f"prometheusRule.runbookUrl={url}")
    for alert in [one for group in expected["groups"] for one in group["rules"] if "alert" in one]:
        alert["annotations"]["runbook_url"] = alert["annotations"].pop("runbook").replace("docs/runbook.md", url)
    assert of_kind(documents(text), "PrometheusRule")[0]["spec"] == expected
    boards = [one for one in of_kind(manifests, "ConfigMap") if "kquota.yaml" not in one["data"]]
    originals = {path.name: path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")}
    assert {name: text for one in boards for name, text in one["data"].items()} == originals
    assert all(len(text) < 1_000_000 for text in originals.values()), "a ConfigMap holds 1 MiB"


def test_the_webhooks_metrics_are_scraped(values: Callable[..., Path]) -> None:
    manifests = documents(render_text(values(podMonitor={"enabled": True}, webhook={"enabled": True})))
    (monitor,) = [one for one in of_kind(manifests, "PodMonitor") if one["metadata"]["name"].endswith("-webhook")]
    (webhook,) = of_kind(manifests, "Deployment")
    pod = webhook["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [one["name"] for one in pod["spec"]["containers"][0]["ports"]]


def test_no_peers_means_nobody(values: Callable[..., Path]) -> None:
    """An empty `from` would admit all."""
    closed = values(networkPolicy={"enabled": True, "monitoring": []}, mode="gateway")
    (policy,) = of_kind(documents(render_text(closed)), "NetworkPolicy")
    assert [one["ports"][0]["port"] for one in policy["spec"]["ingress"]] == ["kafka"]
    injected = values(networkPolicy={"monitoring": []}, webhook={"enabled": True, "networkPolicy": True})
    maps = of_kind(documents(render_text(injected)), "ConfigMap")
    (text,) = [one["data"]["sidecar.json"] for one in maps if "sidecar.json" in one["data"]]
    (others,) = json.loads(text)["distribution"]["networkPolicy"]["ingress"]
    assert {"protocol": "TCP", "port": 1, "endPort": 9403} in others["ports"]


def test_network_policy_admits_only_known_peers() -> None:
    (policy,) = of_kind(render("gateway-full"), "NetworkPolicy")
    metrics, clients = policy["spec"]["ingress"]
    assert metrics["ports"] == [{"port": "kquota-metrics", "protocol": "TCP"}]
    assert metrics["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    assert clients["ports"][1] == {"port": 20000, "endPort": 20004, "protocol": "TCP"}
    assert clients["from"][0]["namespaceSelector"]["matchLabels"] == {"example.com/kafka-client": "true"}
    (policy,) = of_kind(render("plain-sidecar"), "NetworkPolicy")
    assert policy["spec"]["ingress"][1] == {"ports": [{"port": 8080, "protocol": "TCP"}]}


CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}

LABELS = {
    "helm.sh/chart": "kquota-{version}".format(**yaml.safe_load((CHART / "Chart.yaml").read_text())),
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/instance": RELEASE,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_object_has_what_is_common(name: str, values: Callable[..., Path]) -> None:
    common = values(commonAnnotations={"example.com/owner": "platform"}, namespaceOverride="elsewhere")
    given = yaml.safe_load(common.read_text()) | yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text())
    common.write_text(yaml.safe_dump(given))
    text = render_text(common)
    before = render_text(CHART / f"ci/{name}-values.yaml")
    manifests = documents(text)
    assert len(manifests) == len(documents(before))
    for one in manifests:
        metadata = one["metadata"]
        assert metadata["labels"].items() >= LABELS.items(), (one["kind"], metadata["name"])
        assert metadata["annotations"]["example.com/owner"] == "platform", (one["kind"], metadata["name"])
        expected = None if one["kind"] in CLUSTER_KINDS else "elsewhere"
        assert metadata.get("namespace") == expected, (one["kind"], metadata["name"])
    assert NAMESPACE not in text


def test_the_charts_own_labels_win(values: Callable[..., Path]) -> None:
    """Given twice, a label is there once; selectors keep theirs."""
    twice = {"app.kubernetes.io/name": "x", "app.kubernetes.io/component": "x", "sidecar.istio.io/inject": "true"}
    gateway = {
        "podLabels": twice,
        "podAnnotations": {"prometheus.io/port": "1"},
        "service": {"labels": twice | {"tier": "a"}},
    }
    given = values(
        mode="gateway", commonLabels=twice | {"tier": "b"}, gateway=gateway, prometheusAnnotations=True,
        podMonitor={"enabled": True, "labels": {"tier": "c"}},
    )  # fmt: skip
    manifests = documents(render_text(given))
    (deployment,), (service,) = of_kind(manifests, "Deployment"), of_kind(manifests, "Service")
    pod = deployment["spec"]["template"]["metadata"]
    assert pod["labels"].items() >= deployment["spec"]["selector"]["matchLabels"].items()
    assert pod["annotations"]["prometheus.io/port"] == "1", "the pod's own"
    assert service["metadata"]["labels"].items() >= {"app.kubernetes.io/name": "kquota", "tier": "a"}.items()
    assert [one["metadata"]["labels"]["tier"] for one in of_kind(manifests, "PodMonitor")] == ["c"]


@pytest.mark.parametrize("name", ["123", "1e3", "no", "y"])
def test_names_may_look_like_other_types(name: str) -> None:
    done = helm(
        "template", name, CHART, "--values", CHART / "ci/monitoring-values.yaml", "--set-string", "nameOverride=12"
    )
    for one in documents(done.stdout):
        assert all(isinstance(value, str) for value in one["metadata"]["labels"].values())
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == name


def test_long_releases_have_names_of_their_own() -> None:
    names = [
        {one["metadata"]["name"] for one in documents(helm("template", release, CHART, "--values", MINIMAL).stdout)}
        for release in (
            "payments-platform-production-europe-west-cluster-001",
            "payments-platform-production-europe-west-cluster-002",
        )
    ]
    assert names[0].isdisjoint(names[1])


def test_a_service_needs_a_name_that_it_may_have() -> None:
    done = helm("template", "123", CHART, "--values", MINIMAL, "--set", "mode=gateway")
    assert "no Service can have the name 123-kquota: set fullnameOverride" in done.stderr


def test_changed_settings_make_another_demo(values: Callable[..., Path]) -> None:
    """A Job's template cannot be changed."""
    (before,), (after,) = (
        of_kind(documents(render_text(values(demo={"enabled": True}, image={"tag": tag}))), "Job") for tag in ("1", "2")
    )
    assert before["metadata"]["name"] != after["metadata"]["name"]


def test_files_of_reports_are_exact(values: Callable[..., Path]) -> None:
    files = {"1.5": "  x: 1\n  y: 2\n"}
    given = values(analysis={"enabled": True, "input": "/in", "output": "/out", "files": files})
    assert files in [one["data"] for one in of_kind(documents(render_text(given)), "ConfigMap")]


def test_extra_objects_are_rendered(values: Callable[..., Path]) -> None:
    template = "kind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-second}"
    given = [{"kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-first"}}, template]
    names = {one["metadata"]["name"] for one in documents(render_text(values(extraObjects=given)))}
    assert {f"{RELEASE}-first", f"{RELEASE}-second"} <= names


@functools.cache
def _example(values: Path | None = None, kubernetes: str = NEWEST) -> list[dict[str, Any]]:
    """The chart that docs/kubernetes.md shows, with this chart as its dependency."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    blocks = re.findall(
        r"^```yaml\n# (Chart\.yaml|values\.yaml|templates/\S+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory, "shop")
        for name, text in blocks:
            path = chart / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
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


@pytest.mark.parametrize("release", [HELM_4, HELM_3], ids=lambda release: release.version)
def test_names_reach_the_sidecar_as_written(release: HelmRelease, tmp_path: Path) -> None:
    given = [{"client-id": name, "producer_byte_rate": 1_000_000_000_000} for name in ODD_NAMES]
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(yaml.safe_load(MINIMAL.read_text()) | {"quotas": given}))  # each name in quotes
    text = configuration(documents(render_text(file, release=release)))
    found = to_table(load_bytes("kquota.yaml", text.encode())).entries
    assert sorted(str(entry.client_id) for entry in found) == sorted(ODD_NAMES)


def test_hook_checks_the_deployed_configuration(tmp_path: Path) -> None:
    """The pod's own arguments on the file that Helm would deploy: entries that the values' schema lets through."""
    good = [{"user": "a", "producer_byte_rate": "1M"}]

    def checked(quotas: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump({"config": {"upstream": {"bootstrap": ["kafka:9092"]}}, "quotas": quotas}))
        manifests = documents(render_text(values))
        hooks = [one for one in manifests if "pre-upgrade" in one["metadata"].get("annotations", {}).get(HOOK, "")]
        maps, pods = of_kind(hooks, "ConfigMap"), of_kind(hooks, "Pod")
        text = configuration(manifests)
        assert [one["data"]["kquota.yaml"] for one in maps] == [text]
        (tmp_path / "kquota.yaml").write_text(text)
        (container,) = pods[0]["spec"]["containers"]
        arguments = [one.replace("/etc/kquota", str(tmp_path)) for one in container["args"]]
        command = [sys.executable, "-m", "proxy.app.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert checked(good).returncode == 0
    twice = checked(good + good)
    assert twice.returncode != 0
    assert "quotas[1]" in twice.stderr
