"""Rules for the container image's Dockerfile, context and locks; the image at work: tests/kubernetes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kubernetes.image_store import context_files
from tests.support.kept_builds import ROOT

LOCKS = ROOT / "deploy/image"


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "style", ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_nothing_is_fetched_but_packages_with_sums() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    assert not [line for line in lines if line.startswith("ADD")]
    steps = [step for line in lines if line.startswith("RUN ") for step in line.split("&&")]
    assert not [step for step in steps if re.search(r"\b(curl|wget|git|sudo)\b", step)]
    installs = [step for step in steps if "pip" in step and " install " in step]
    assert installs
    assert all("--require-hashes" in step or "--no-index" in step for step in installs), installs
    assert all("--no-install-recommends" in step for step in steps if " apt-get install " in f" {step}")


def test_build_context_is_the_wheels_sources() -> None:
    names = set(context_files((ROOT / ".dockerignore").read_text()))
    assert {"pyproject.toml", "setup.py", "proxy/net/io/calls.pyx", "LICENSE", "quota/ledger.py"} <= names
    others = (".git", "tests/", "docs/", ".venv/", "helm/", "deploy/kubernetes/kustomize", "deploy/kubernetes/values")
    assert not [name for name in names if name.startswith(others) or name.endswith((".so", ".c", ".pyc"))]


@pytest.mark.parametrize("lock", ["sidecar.txt", "analysis.txt"])
def test_the_image_has_the_versions_that_are_tested(lock: str) -> None:
    """When this fails, a dependency or a pin has changed: `make image-lock`."""

    def pairs(pattern: str, text: str) -> dict[str, str]:
        return {name.lower().replace("_", "-"): version for name, version in re.findall(pattern, text, re.MULTILINE)}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = "analysis" if lock == "analysis.txt" else "webhook"
    wanted = project["dependencies"] + project["optional-dependencies"][extra]
    names = {re.split(r"[<>=!~\[; ]", one)[0].lower().replace("_", "-") for one in wanted}
    locked = pairs(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", (LOCKS / lock).read_text())
    # The image's Spark is not the newest, as the tests' is.
    pins = (ROOT / "deploy/constraints.txt").read_text() + (LOCKS / "spark.txt").read_text()
    pinned = pairs(r"^([A-Za-z0-9_.-]+)==(\S+)", pins)
    assert names <= locked.keys()
    assert {name: pinned[name] for name in locked.keys() & pinned.keys()}.items() <= locked.items()
    if lock == "sidecar.txt":
        assert "pyspark" not in locked
        assert locked.keys() <= pinned.keys()
