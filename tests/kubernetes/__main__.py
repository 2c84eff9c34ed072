"""All tests of this folder on one node: `python -m tests.kubernetes [options of pytest]`."""

import os
import sys
import time
from pathlib import Path
from typing import Final

from tests.kubernetes import workloads
from tests.kubernetes.conftest import IMAGES
from tests.kubernetes.node import running_node
from tests.kubernetes.programs import NoNodeError
from tests.lab.kafka.process import GuardedProcess

FOLDER: Final = Path(__file__).parent
ALONE: Final = (FOLDER / "with_faults.py", FOLDER / "with_outages.py")
AT_ONCE: Final = 3
NO_TEST: Final = 5
"""What pytest ends with where its options chose none of the tests."""


def run(options: list[str]) -> int:
    together = [path for path in sorted(FOLDER.glob("with_*.py")) if path not in ALONE]
    rounds = [[f"-n{AT_ONCE}", "--dist=loadfile", *map(str, together)], [*map(str, ALONE)]]
    began = time.monotonic()
    statuses = []
    with running_node(IMAGES) as node:
        workloads.broker(node)
        print(f"· a node with a broker ({time.monotonic() - began:.0f} s)", flush=True)
        environment = os.environ | {"KQUOTA_NODE": str(node.folder)}
        for one in rounds:
            command = [sys.executable, "-m", "pytest", "--timeout=600", *one, *options]
            with GuardedProcess(command, env=environment) as process:
                statuses.append(process.wait())
    print(f"· all of it: {time.monotonic() - began:.0f} s", flush=True)
    failed = [status for status in statuses if status not in (0, NO_TEST)]
    return failed[0] if failed else min(statuses)


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except NoNodeError as error:
        sys.exit(f"error: {error}")
