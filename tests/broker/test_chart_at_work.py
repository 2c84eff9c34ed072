"""What the chart renders, at work before a real broker: its configuration, `helm test` and the demo's producer."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.app.cli import smoke
from tests.lab.kafka import KafkaCluster, run_tool
from tests.lab.kafka.ports import free_ports
from tests.support.chart_tools import configuration, documents, pod_specs, render_text
from tests.support.forked import run_kquota
from tests.support.sidecars import Sidecar, wait_ready
from tests.support.waiting import until


def test_the_sidecar_serves_as_the_chart_runs_it(
    kafka: KafkaCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo's producer is throttled; then its quota is raised in the values, and the same sidecar lets it run."""
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
        (path := tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        return documents(render_text(path))

    manifests = rendered()
    pods = pod_specs(manifests)
    (job,) = [pod for name, pod in pods.items() if name.startswith("Job/shop-kquota-demo-")]
    (producer,), (tester,) = job["containers"], pods["Pod/shop-kquota-test"]["containers"]
    config, log = tmp_path / "kquota.yaml", tmp_path / "log"
    config.write_text(configuration(manifests))
    process = run_kquota(["run", "--config", str(config)], log)
    running = Sidecar(f"127.0.0.1:{port}", f"http://127.0.0.1:{admin}", config, log, process, None)

    def run_the_demo() -> float:
        """Seconds that it was throttled so far."""
        run_tool("org.apache.kafka.tools.ProducerPerformance", producer["args"])
        time.sleep(1.1)  # an exposition is up to a second old
        return running.metric("kquota_throttle_seconds_total", client_id="kquota-demo")

    try:
        wait_ready(running)
        assert smoke.main(tester["args"]) == 0
        assert "1 brokers, each behind a port of the sidecar" in capsys.readouterr().out
        # 1.5 MB at 100 kB/s; eleven seconds' worth may go at once (Kafka's window)
        throttled_s = run_the_demo()
        assert throttled_s > 1
        values["quotas"][0]["producer_byte_rate"] = "500M"
        again = rendered()
        assert pod_specs(again) == pods, "no pod is restarted for it"
        config.write_text(configuration(again))
        until(lambda: running.metric("kquota_quota_limit", client_id="kquota-demo") == 500_000_000)
        assert run_the_demo() == throttled_s
        running.stop()
    finally:
        process.kill()


def test_smoke_names_the_fault(capsys: pytest.CaptureFixture[str], kafka: KafkaCluster) -> None:
    (port,), (bootstrap,) = free_ports(1), kafka.bootstrap
    for arguments, said in (
        ([f"--bootstrap=[::1]:{port}"], "Connection refused"),
        ([f"--bootstrap=[::1]:{port}", "--tls"], "Connection refused"),
        ([f"--bootstrap=127.0.0.1:{port}"], f"error: 127.0.0.1:{port}: "),
        ([f"--bootstrap=127.0.0.1:{port}", f"--admin=http://127.0.0.1:{port}"], f"error: http://127.0.0.1:{port}: "),
        ([f"--bootstrap={bootstrap}"], f"clients bypass the sidecar: they get {bootstrap}, expected ports 1-2"),
    ):
        assert smoke.main([*arguments, "--broker-ports=1-2", "--limit-s=0"]) == 1
        assert said in capsys.readouterr().err
    for wrong, said in (("--bootstrap=kafka", "got kafka, expected host:port"), ("--broker-ports=a-b", "got a-b")):
        with pytest.raises(SystemExit):
            smoke.main([f"--bootstrap={bootstrap}", "--broker-ports=1-2", wrong])
        assert said in capsys.readouterr().err
