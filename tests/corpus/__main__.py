"""Run the corpus against one address, several items at a time: `python -m tests.corpus JOB OUT ITEM...` (JOB: JSON).

A process of its own, so that its connections can be distinguished from all others (see connections.py).
"""

import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.corpus import ITEMS, Job, plain

WORKERS = 6
# Before there are threads: several of them importing kafka-python at once can deadlock in its circular imports.
CLIENT_LIBRARIES = (
    "kafka.admin",
    "kafka.protocol.admin",
    "kafka.protocol.metadata",
    "aiokafka",
    "confluent_kafka.admin",
)

COORDINATOR_BUSY = ("CoordinatorNotAvailableError", "CoordinatorLoadInProgressError", "NotCoordinatorError")
"""What kafka-python's admin client passes on, where Java's asks again."""


def main() -> None:
    """Exit code 0 also when items fail: each failure is in the file OUT, as JSON, under its item."""
    _, job_as_json, out, *items = sys.argv
    job = Job(**json.loads(job_as_json))
    for name in CLIENT_LIBRARIES:
        import_module(name)
    connected: set[tuple[str, int]] = set()
    _note_connections(connected)
    with ThreadPoolExecutor(WORKERS) as pool:
        results = dict(zip(items, pool.map(lambda name: _run(job, name), items), strict=True))
    findings = {"results": results, "learned": sorted(job.learned), "connected": sorted(connected)}
    Path(out).write_text(json.dumps(findings))


def _note_connections(connected: set[tuple[str, int]]) -> None:
    """Have Python report every address that a client written in Python connects to, however briefly."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            connected.add(arguments[1][:2])

    sys.addaudithook(hook)


def _run(job: Job, name: str) -> dict[str, Any]:
    began = time.monotonic()
    found = _try(job, name)
    if "failure" in found:
        print(f"{name} is tried again after:\n{found['failure']}", flush=True)
        found = _try(replace(job, prefix=f"{job.prefix}-again"), name) | {"first_failure": found["failure"]}
    return found | {"seconds": round(time.monotonic() - began, 1)}


def _try(job: Job, name: str) -> dict[str, Any]:
    try:
        result = plain(ITEMS[name].run(job), job.prefix)
        answer = json.dumps(result)
        if any(error in answer for error in COORDINATOR_BUSY):
            return {"failure": f"a coordinator could not serve its group: {answer}"}
        return {"result": result}
    except BaseException:
        return {"failure": traceback.format_exc()}


if __name__ == "__main__":
    main()
