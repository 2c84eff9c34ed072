"""compose.yaml and README's first commands. No container engine runs here: the file is read as Docker Compose does, and
what runs in containers runs as processes. Neither the images nor the network between them are tried."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.load import load_bytes, warnings_of
from tests.lab.kafka import KafkaCluster
from tests.lab.kafka.ports import free_port_run, free_ports
from tests.lab.kafka.tools import start_tool
from tests.support import go_tools
from tests.support.programs import program
from tests.support.sidecars import sidecar
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
TOOLS = {
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """What Docker Compose makes of the file; paths are absolute."""
    reader = go_tools.program("compose", "github.com/compose-spec/compose-go/v2/cmd")
    done = subprocess.run([reader, "-format", "json", ROOT / "compose.yaml"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def content(model: dict[str, Any], name: str) -> str:
    """The text of a configuration that the file contains."""
    return str(model["configs"][name]["content"])


pytestmark = pytest.mark.long  # it builds compose's own reader, and runs what README shows


def test_compose_file_is_complete(model: dict[str, Any]) -> None:
    services = model["services"]
    assert all("build" in one or one["image"].rpartition(":")[2][0] in "v0123456789" for one in services.values())
    mounted = [Path(mount["source"]) for one in services.values() for mount in one.get("volumes", ())]
    assert all(path.is_file() for path in mounted)
    assert {path.stem for path in mounted if path.suffix == ".json"} == {"fleet", "group", "pod"}
    config = load_bytes("compose.yaml", content(model, "kquota").encode())
    assert list(warnings_of(config)) == []
    ports = {port["published"] for one in services.values() for port in one.get("ports", ())}
    assert ports == {"9404", "9090", "3000"}
    (scraped,) = yaml.safe_load(content(model, "prometheus"))["scrape_configs"][0]["static_configs"]
    host, _, port = scraped["targets"][0].partition(":")
    assert host in services
    assert config.admin is not None
    assert (host in config.admin.allowed_hosts, int(port)) == (True, config.admin.port)


def test_prometheus_accepts_its_configuration(model: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(content(model, "prometheus").replace("/etc/prometheus", str(ROOT / "deploy/prometheus")))
    subprocess.run([program("promtool", "prometheus"), "check", "config", path], check=True)


def test_compose_clients_are_throttled(model: dict[str, Any], kafka: KafkaCluster) -> None:
    config = yaml.safe_load(content(model, "kquota"))
    with sidecar(kafka.bootstrap, config["quotas"]) as running, ExitStack() as stack:
        for name in ("etl", "reader"):
            words = shlex.split(model["services"][name]["command"])
            words = shlex.split(words[2].partition(">")[0]) if words[0] == "sh" else words
            tool = Path(words[0]).name
            arguments = [word.replace("kquota:9092", running.bootstrap) for word in words[1:]]
            stack.callback(stack.enter_context(start_tool(TOOLS[tool], arguments, stdout=subprocess.DEVNULL)).kill)
        for name in ("etl", "reader"):
            until(lambda name=name: running.metric("kquota_throttled_requests_total", client_id=name) > 0, name)


def test_commands_of_readme_throttle_a_client(kafka: KafkaCluster, tmp_path: Path) -> None:
    """As written, but for the ports, and with the broker and Kafka's tool of the tests."""
    text = (ROOT / "README.md").read_text().partition("**One sidecar")[2].partition("**Kubernetes")[0]
    port, admin = free_ports(2)
    first = free_port_run(4, avoid={port, admin})
    for written, used in (("127.0.0.1:9092", kafka.bootstrap[0]), ("9192", str(port))):
        assert written in text
        text = text.replace(written, used)
    blocks = dict(re.findall(r"```(yaml)\n(.*?)```", text, re.DOTALL))
    more = f"admin: {{port: {admin}}}\n"
    file = blocks["yaml"].replace(f"port: {port}}}", f"port: {port}, broker_ports: {first}-{first + 3}}}")
    (tmp_path / "kquota.yaml").write_text(file + more)
    server, client = (
        [shlex.split(line, comments=True) for line in block.replace("\\\n", "").splitlines()]
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    )
    kquota = str(Path(sys.executable).with_name("kquota"))
    environment = os.environ | {"KQUOTA_ADMIN": f"http://127.0.0.1:{admin}"}

    def run(words: list[str]) -> str:
        assert words[0] == "kquota"
        done = subprocess.run(
            [kquota, *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        return done.stdout if done.returncode == 0 else ""

    *checks, serve = [words for words in server if words[0] == "kquota"]
    assert all(run(words) for words in checks)
    with subprocess.Popen([kquota, *serve[1:]], cwd=tmp_path, stderr=subprocess.DEVNULL) as sidecar:
        try:
            until(lambda: run(["kquota", "top"]), "the sidecar")
            (docker,) = [words for words in client if words[0] == "docker"]
            (place,) = [index for index, word in enumerate(docker) if word.endswith(".sh")]
            tool = TOOLS[Path(docker[place]).name]
            with start_tool(tool, docker[place + 1 :], stdout=subprocess.DEVNULL) as producer:
                top, explain = [words for words in client if words[0] == "kquota"]
                until(lambda: re.search(r"delayed \d+ requests? so far", run(explain)))
                assert re.search(r"\betl\b.*10 MB/s", run(top))
                producer.kill()
        finally:
            sidecar.terminate()
