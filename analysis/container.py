"""The image's entry point: a report; or, in pods that Spark creates on Kubernetes, the Spark process it asks for.

Spark starts its image with the argument `driver` or `executor`, and passes the rest in arguments and environment
(`KubernetesConf`, `BasicExecutorFeatureStep`): its own image has a shell script for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
JAVA_OPTION = "SPARK_JAVA_OPT_"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The program to exec. Raises KeyError if Spark has not passed what an executor needs."""
    match list(arguments):
        case ["driver", *rest]:  # it runs in this pod, and its executors connect to the pod's address
            address = environment["SPARK_DRIVER_BIND_ADDRESS"]
            conf = {"spark.driver.bindAddress": address, "spark.executorEnv.SPARK_DRIVER_POD_IP": address}
            given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
            return [str(HOME / "bin/spark-submit"), *given, "--deploy-mode", "client", *rest]
        case ["executor", *_]:
            return _executor(environment)
        case others:
            return [sys.executable, "-m", "analysis", *others]


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    # Options come one by one and numbered; the number is their order.
    numbered = sorted(
        (int(name.removeprefix(JAVA_OPTION)), value)
        for name, value in environment.items()
        if name.startswith(JAVA_OPTION)
    )
    classes = [environment.get("SPARK_EXTRA_CLASSPATH", ""), str(HOME / "jars/*")]
    variables = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    given = [part for option, name in variables.items() for part in (option, environment[name])]
    java = Path(environment["JAVA_HOME"], "bin/java") if "JAVA_HOME" in environment else Path("java")
    java_options = [*(value for _, value in numbered), f"-Xms{memory}", f"-Xmx{memory}"]
    return [str(java), *java_options, "-cp", ":".join(filter(None, classes)), BACKEND, *given]


def main() -> None:
    """Exec it, so that signals reach it directly."""
    try:
        program = command(sys.argv[1:], os.environ)
    except KeyError as error:
        sys.exit(f"error: {sys.argv[1]}: expected {error.args[0]} in the environment, as Spark on Kubernetes sets it")
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
