"""The node that the files of this folder share, with a broker in a pod of it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes import workloads
from tests.kubernetes.injected import lenient, orders, webhook
from tests.kubernetes.node import Node, attached_node, running_node
from tests.kubernetes.programs import NoNodeError
from tests.lab.chart import CHART
from tests.support.chart_tools import helm

__all__ = ["lenient", "orders", "webhook"]  # fixtures of more than one file
IMAGES = ("client", "kafka", "kquota")
"""Those of all files; the others are imported by the one that needs them."""
SHOP = Path(__file__).with_name("shop")
"""An application's chart that includes kquota's."""


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    kept = os.environ.get("KQUOTA_NODE")
    try:
        with attached_node(Path(kept)) if kept else running_node(IMAGES) as running:
            workloads.broker(running)
            print({name: round(value, 1) for name, value in running.times_s.items()})
            yield running
    except NoNodeError as error:
        pytest.exit(f"error: {error}", returncode=2)


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    done = helm("package", CHART, "--destination", folder)
    assert done.returncode == 0, done.stderr
    (package,) = folder.glob("kquota-*.tgz")
    return package


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, chart: Path) -> Path:
    folder = tmp_path_factory.mktemp("charts") / "shop"
    shutil.copytree(SHOP, folder)
    (folder / "charts").mkdir()
    shutil.copy2(chart, folder / "charts")
    return folder
