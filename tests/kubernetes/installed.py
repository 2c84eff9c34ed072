"""An application installed with its sidecar: what the test files share."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.kubernetes import workloads
from tests.kubernetes.node import Node
from tests.kubernetes.workloads import BROKER, IMAGES, describe, log_lines, name_of_pod, ready_pod
from tests.support.waiting import until

RATE: Final = 500_000.0
"""Bytes per second that the default client-id may produce."""
RECORD_BYTES: Final = 1000
DRAIN_S: Final = 20
GRACE_S: Final = DRAIN_S + 15
"""terminationGracePeriodSeconds, as the chart makes it of that."""


class Release:
    """One release of tests/kubernetes/shop in a namespace of its own, or of the packaged chart."""

    def __init__(self, node: Node, chart: Path, namespace: str, name: str = "shop") -> None:
        self.node = node
        self.namespace = namespace
        self.name = name
        self.values: dict[str, Any] = {}
        self._chart = chart

    def write(self, values: dict[str, Any]) -> Path:
        path = self.node.folder / f"{self.namespace}-values.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def helm(self, verb: str, values: dict[str, Any], *more: str) -> str:
        return self.node.helm(verb, *self._arguments(values), *more)

    def try_upgrade(self, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return self.node.try_helm("upgrade", *self._arguments(values))

    def _arguments(self, values: dict[str, Any]) -> list[str | Path]:
        return [self.name, self._chart, "--namespace", self.namespace, "--values", self.write(values)]

    def pod(self, selector: str = "app=shop") -> dict[str, Any]:
        return ready_pod(self.node, self.namespace, selector)

    def said(self, pod: dict[str, Any], *more: str) -> list[dict[str, Any]]:
        return log_lines(self.node, self.namespace, name_of_pod(pod), pod["spec"]["containers"][0]["name"], *more)

    def sidecar_log(self, pod: dict[str, Any]) -> str:
        return self.node.kubectl("logs", "--namespace", self.namespace, name_of_pod(pod), "--container=kquota")

    def settled_rate(self, pod: dict[str, Any], expected: float, tolerance: float = 0.15) -> float:
        """Bytes per second that were acknowledged, once they are what is expected over ten seconds."""

        def look() -> float | None:
            lines = self.said(pod, "--tail=60")
            if not lines or lines[-1]["at"] - lines[0]["at"] < 10:
                return None
            rate = workloads.rate_per_s(lines, 10) * RECORD_BYTES
            return rate if abs(rate / expected - 1) <= tolerance else None

        rate: float = until(look, lambda: f"{expected:g} expected: {self.said(pod, '--tail=30')}", 90)
        return rate

    def await_progress(self, pod: dict[str, Any]) -> None:
        def acknowledged() -> int:
            """Among its lines are librdkafka's own."""
            lines = until(lambda: self.said(pod, "--tail=50"), lambda: describe(self.node, self.namespace))
            return int(lines[-1]["acknowledged"])

        before = acknowledged()

        until(lambda: acknowledged() >= before + 1000, lambda: describe(self.node, self.namespace), 90)

    @contextmanager
    def following(self, pod: dict[str, Any], *containers: str) -> Iterator[dict[str, list[str]]]:
        """The lines of a pod's containers from now on, with times, also while it ends; filled after the block."""
        common: list[str | Path] = [
            self.node.programs.kubectl,
            "logs",
            f"--namespace={self.namespace}",
            name_of_pod(pod),
        ]
        common += ["--follow", "--timestamps", "--tail=1"]
        env = self.node.environment()
        found: dict[str, list[str]] = {}
        with self.node.inside():
            running = {
                one: subprocess.Popen([*common, f"--container={one}"], stdout=subprocess.PIPE, text=True, env=env)
                for one in containers
            }
        try:
            yield found
            for container, process in running.items():
                found[container] = process.communicate(timeout=60)[0].splitlines()
        finally:
            for process in running.values():
                process.kill()
                process.wait()

    def uninstall(self) -> None:
        self.node.helm("uninstall", self.name, "--namespace", self.namespace)


def shop_values(rate: str | float = RATE, topic: str = "shop", **more: Any) -> dict[str, Any]:
    kquota = {
        **IMAGES,
        "config": {"upstream": {"bootstrap": [BROKER]}, "drain_timeout_s": DRAIN_S},
        "quotas": [{"client-id": "<default>", "producer_byte_rate": rate}],
    }
    return {"kquota": kquota | more, "arguments": [f"--topic={topic}"]}


@contextmanager
def installed(node: Node, chart: Path, namespace: str, values: dict[str, Any]) -> Iterator[Release]:
    workloads.namespace(node, namespace)
    release = Release(node, chart, namespace)
    release.values = values
    release.helm("install", values)
    release.pod()
    yield release
    release.uninstall()


def kquota(node: Node, *arguments: str) -> str:
    """The command line as it is run next to a cluster, with kubectl on PATH."""
    with node.inside():
        command: list[str | Path] = [Path(sys.executable).with_name("kquota"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=node.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
