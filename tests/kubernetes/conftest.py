"""The node that the files of this folder share, with a broker in a pod of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.kubernetes.chart import CHART
from tests.kubernetes import workloads
from tests.kubernetes.node import Node, attached_node, running_node
from tests.kubernetes.programs import NoNodeError
from tests.support.certificates import Authority
from tests.support.chart_tools import helm_executable

IMAGES = ("client", "kafka", "kquota", "kquota-redirect")
SHOP = Path(__file__).with_name("shop")
"""An application's chart that includes kquota's."""


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the broker's certificate, and those of its clients."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def node(authority: Authority) -> Iterator[Node]:
    """A node with the images, and a broker: a fresh one, or the one that $KQUOTA_NODE names."""
    kept = os.environ.get("KQUOTA_NODE")
    try:
        with attached_node(Path(kept)) if kept else running_node(IMAGES) as running:
            workloads.namespace(running, "kafka")
            running.kubectl("delete", "secret", "kafka-tls", "--namespace=kafka", "--ignore-not-found")
            made = authority.issue("broker", "kafka-0.kafka.kafka")
            running.kubectl(
                "create", "secret", "generic", "kafka-tls", "--namespace=kafka",
                f"--from-file=keystore.pem={made.both}", f"--from-file=ca.crt={authority.certificate}",
            )  # fmt: skip
            if kept:
                running.kubectl("delete", "pod", "kafka-0", "--namespace=kafka", "--ignore-not-found")
            workloads.broker(running)
            if kept:  # what changes while tests are written; for another kquota, start another node
                running.import_images("client")
            print({name: round(value, 1) for name, value in running.times_s.items()})
            yield running
    except NoNodeError as error:
        pytest.exit(f"error: {error}", returncode=2)


@pytest.fixture(scope="session")
def chart(node: Node) -> Path:
    """The chart as it is published: packaged."""
    done = subprocess.run(
        [helm_executable(), "package", CHART, "--destination", node.folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (package,) = node.folder.glob("kquota-*.tgz")
    return package


@pytest.fixture(scope="session")
def shop(node: Node, chart: Path) -> Path:
    """The application's chart, with the packaged one inside."""
    folder = node.folder / "charts" / "shop"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SHOP, folder)
    (folder / "charts").mkdir()
    shutil.copy2(chart, folder / "charts")
    return folder
