"""The chart as others meet it: its README by a real helm-docs, its metadata, its package, and the component for
kustomize by a real kubectl."""

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.lab import chart_package as package
from tests.lab.chart import CHART
from tests.support.chart_tools import (
    KUSTOMIZE,
    NEWEST,
    README,
    ROOT,
    documents,
    helm,
    helm_executable,
    kubectl_executable,
    of_kind,
    readme,
)


@pytest.mark.timeout(600)  # Go builds helm-docs the first time
def test_readme_matches_helm_docs() -> None:
    assert README.read_text() == readme(), "run `make chart`"


def test_readme_blocks_match_the_chart() -> None:
    (given,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    done = helm("lint", "--strict", CHART, "--values", "/dev/stdin", stdin=given)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_publisher_gives_the_addresses(tmp_path: Path) -> None:
    home, source = "https://kquota.example.com", "https://git.example.com/kquota"
    packed = package.package(home, [source], "registry.example/kquota", tmp_path, str(helm_executable()))
    shown = helm("show", "chart", packed)
    assert shown.returncode == 0, shown.stderr
    chart = yaml.safe_load(shown.stdout)
    assert (chart["home"], chart["sources"]) == (home, [source])
    assert chart["maintainers"][0]["url"] == home
    notes = {name.removeprefix("artifacthub.io/"): value for name, value in chart["annotations"].items()}
    assert {"category", "license", "changes", "images", "links"} <= notes.keys()
    image = {"name": "kquota", "image": f"registry.example/kquota:{chart['appVersion']}"}
    assert image in yaml.safe_load(notes["images"])
    changes = yaml.safe_load(notes["changes"])
    assert len(changes) > 10
    assert all(one["description"] and one["kind"] in package._KINDS for one in changes)
    linted = helm("lint", "--strict", packed, "--values", CHART / "ci/webhook-values.yaml")
    assert linted.returncode == 0, linted.stdout
    assert helm("show", "readme", packed).stdout.strip() == README.read_text().strip()


def built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([kubectl_executable(), "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The files that docs/kustomize.md shows, with the component next to them as the page has it."""
    (tmp_path / "app").mkdir()
    page = (ROOT / "docs/kustomize.md").read_text()
    for name, text in re.findall(r"```yaml\n# ([\w./-]+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / "app" / name).write_text(text)
    (tmp_path / "kquota").symlink_to(KUSTOMIZE)
    return tmp_path / "app"


def test_the_pages_example_puts_the_sidecar_in(app: Path) -> None:
    manifests = built(app)
    (config,) = of_kind(manifests, "ConfigMap")
    assert config["metadata"]["name"] == "kquota", "without a hash in its name: changed quotas restart nothing"
    (deployment,) = of_kind(manifests, "Deployment")
    (job,) = of_kind(manifests, "CronJob")
    pods = deployment["spec"]["template"], job["spec"]["jobTemplate"]["spec"]["template"]
    for pod in pods:
        first = pod["spec"]["initContainers"][0]
        assert (first["name"], first["restartPolicy"]) == ("kquota", "Always")
        assert first["image"] == "registry.example/kquota:0.2.0"
        assert pod["metadata"]["labels"]["kquota.io/config"] == "kquota"
        assert {"name": "kquota-config", "configMap": {"name": "kquota"}} in pod["spec"]["volumes"]
    assert [one["name"] for one in pods[0]["spec"]["initContainers"]] == ["kquota", "migrate"]
    assert pods[0]["spec"]["terminationGracePeriodSeconds"] == 120, "the application's own patch comes last"
    for manifest in manifests:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)


def test_workloads_without_the_label_are_left_alone(app: Path) -> None:
    before = (app / "workloads.yaml").read_text()
    (app / "workloads.yaml").write_text(before.replace('kquota.io/inject: "true"', 'kquota.io/inject: "false"'))
    for one in built(app):
        assert "kquota.io/config" not in yaml.safe_dump(one)
