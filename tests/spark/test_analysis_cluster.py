"""The same program by spark-submit on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

from analysis.session import find_java
from config.load import load_bytes
from config.table import to_table
from proxy.app.cli.check import summary_json
from tests.lab.kafka.ports import free_ports
from tests.support.spark_archive import quick_jvm
from tests.support.spark_tools import record, table, write
from tests.support.waiting import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
LIMIT_S = 600


def environment() -> dict[str, str]:
    return os.environ | {
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": quick_jvm(),
    }


def test_spark_submit_on_a_master_and_two_workers(tmp_path: Path) -> None:
    write(tmp_path / "in", [record(number, number * 10, produce_bytes=1000) for number in range(1, 41)])
    candidate = tmp_path / "candidate.json"
    config = load_bytes("q.yaml", b"quotas: [{user: <default>, producer_byte_rate: 105}]\n", on_paper=True)
    candidate.write_text(json.dumps(summary_json("q.yaml", config, to_table(config))))
    master_port, *worker_ports = free_ports(3)
    url = f"spark://127.0.0.1:{master_port}"
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "daemons.log").open("wb"))

        def daemon(name: str, *arguments: str) -> None:
            command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
            process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)  # execs Java: one process
            stack.callback(process.wait)
            stack.callback(process.kill)

        daemon("master.Master", "--port", str(master_port), "--webui-port", "0")
        for port in worker_ports:
            place = ["--port", str(port), "--webui-port", "0", "--work-dir", str(tmp_path / f"worker-{port}")]
            daemon("worker.Worker", *place, "--cores", "1", "--memory", "600m", url)
        said = (tmp_path / "daemons.log").read_text
        until(lambda: said().count("Registering worker") == 2, said, LIMIT_S / 2)
        conf = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": quick_jvm(),
            "spark.driver.extraJavaOptions": quick_jvm(),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.files.minPartitionNum": "2",
            # Both workers, or it is no cluster.
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.cores.max": "2",
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [BIN / "spark-submit", "--master", url, *options, ROOT / "analysis/__main__.py", "whatif", "--quiet"]
        command += ["--input", tmp_path / "in", "--output", tmp_path / "out", "--candidate", candidate]
        pipes: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LIMIT_S}
        result = subprocess.run(command, env=environment(), cwd=tmp_path, **pipes)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Used: 40 records of 1 instance, of 40 rows read." in result.stdout
    # 100 bytes each second, eleven of them in 10 s: 110/s, over 105/s from the eleventh second on. Executors have
    # neither kquota nor its directory: what they replay with was sent to them.
    (group,) = table(tmp_path / "out/whatif", "groups")
    assert (float(group["seconds_over"]), float(group["extreme_in_window"])) == (390, 110)
    executors = [list(tmp_path.glob(f"worker-{port}/app-*/*/stderr")) for port in worker_ports]
    assert all(executors), "a worker had nothing to do"
