"""The chart's reports: what it starts is what the image and the reports' own command line understand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from analysis import cli, container
from analysis.owners import PriceModel
from analysis.session import kafka_package
from tests.lab.chart import CHART
from tests.support.chart_tools import ROOT, documents, of_kind, pod_specs, render_text, unhooked

PLAIN, OPERATOR = CHART / "ci/analysis-values.yaml", CHART / "ci/analysis-operator-values.yaml"


def programs(values: Path) -> dict[str, list[str]]:
    """Name -> the arguments with which the image is started."""
    manifests = documents(render_text(values))
    found = {}
    for where, pod in pod_specs(unhooked(manifests)).items():
        (report,) = pod["containers"]
        found[where.partition("/")[2]] = report["args"]
    for one in of_kind(manifests, "ScheduledSparkApplication"):
        found[one["metadata"]["name"]] = one["spec"]["template"]["arguments"]
    for one in of_kind(manifests, "SparkApplication"):
        found[one["metadata"]["name"]] = one["spec"]["arguments"]
    return found


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (PLAIN, ["chargeback", "compact", "stream", "throttling", "usage"]),
        (OPERATOR, ["recommend", "stream", "throttling", "usage"]),
    ],
)
def test_arguments_match_the_report_commands(values: Path, names: list[str]) -> None:
    found = programs(values)
    assert sorted(found) == [f"shop-kquota-{name}" for name in names]
    for name, arguments in found.items():
        options = cli.parser().parse_args(arguments)
        assert options.name == name.removeprefix("shop-kquota-")
        assert container.command(arguments, {}) == [sys.executable, "-m", "analysis", *arguments]


def test_files_are_mounted_where_arguments_find_them() -> None:
    manifests = documents(render_text(PLAIN))
    (files,) = [one for one in of_kind(manifests, "ConfigMap") if one["metadata"]["name"] == "shop-kquota-analysis"]
    arguments = programs(PLAIN)["shop-kquota-chargeback"]
    path = Path(arguments[arguments.index("--prices") + 1])
    model = PriceModel.model_validate(yaml.safe_load(files["data"][path.name]))
    assert model.prices.produce_gb == 0.05
    schedules = {one["metadata"]["name"]: one["spec"]["schedule"] for one in of_kind(manifests, "CronJob")}
    assert schedules["shop-kquota-chargeback"] == "40 2 1 * *"
    pod = pod_specs(manifests)["CronJob/shop-kquota-chargeback"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts[str(path.parent)] == "files"
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}


def test_operator_starts_the_file_in_the_image() -> None:
    manifests = documents(render_text(OPERATOR))
    dockerfile = (ROOT / "Dockerfile").read_text()
    (python,) = set(re.findall(r"^ARG PYTHON_IMAGE=python:(3\.\d+)", dockerfile, re.MULTILINE))
    place = f"local:///opt/kquota/lib/python{python}/site-packages/analysis/__main__.py"
    for one in [*of_kind(manifests, "ScheduledSparkApplication"), *of_kind(manifests, "SparkApplication")]:
        spec = one["spec"].get("template", one["spec"])
        assert spec["mainApplicationFile"] == place
        assert f"\npyspark=={spec['sparkVersion']} \\\n" in (ROOT / "deploy/image/analysis.txt").read_text()
        for part in ("driver", "executor"):
            context = spec[part]["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["runAsUser"]) == (True, 65532)
            assert {mount["name"] for mount in spec[part]["volumeMounts"]} <= {one["name"] for one in spec["volumes"]}
    (stream,) = of_kind(manifests, "SparkApplication")
    package, _, version = stream["spec"]["sparkConf"]["spark.jars.packages"].rpartition(":")
    assert (package, version) == (kafka_package().rpartition(":")[0], stream["spec"]["sparkVersion"])


DRIVER = {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
EXECUTOR = {
    "JAVA_HOME": "/java",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "4g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "report-exec-3",
    "SPARK_JAVA_OPT_10": "-Dten",
    "SPARK_JAVA_OPT_9": "-Dnine",
}


def test_image_supports_spark_on_kubernetes() -> None:
    submit, *arguments = container.command(
        ["driver", "--properties-file", "/opt/spark/conf/p", "x.py", "usage"], DRIVER
    )
    assert Path(submit).name == "spark-submit"
    assert Path(submit).exists()
    assert arguments == [
        "--conf", "spark.driver.bindAddress=10.0.0.7", "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.7",
        "--deploy-mode", "client", "--properties-file", "/opt/spark/conf/p", "x.py", "usage",
    ]  # fmt: skip
    java, *arguments = container.command(["executor"], EXECUTOR)
    assert java == "/java/bin/java"
    assert arguments[:4] == ["-Dnine", "-Dten", "-Xms4g", "-Xmx4g"]
    said = dict(zip(arguments[-14::2], arguments[-13::2], strict=True))
    assert said["--driver-url"] == EXECUTOR["SPARK_DRIVER_URL"]
    assert (said["--executor-id"], said["--podName"]) == ("3", "report-exec-3")


def test_an_executor_starts_the_program_that_spark_s_jars_have() -> None:
    """The options are those of that very version: with one unknown to it, it says so and ends with its usage."""
    program = container.command(["executor"], EXECUTOR | {"SPARK_EXECUTOR_MEMORY": "64m"})
    program[0] = "java"
    end = program.index(container.BACKEND)
    command = [*program[: end + 1], "--nonsense", *program[end + 1 :]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Unrecognized options: --nonsense" in done.stderr
    assert set(program[end + 1 :: 2]) <= set(re.findall(r"--\w+(?:-\w+)*", done.stderr))
