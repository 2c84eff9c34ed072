"""`kquota report`: runs the Spark jobs as a separate program, perhaps in another Python. Never imports them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PYTHON_VARIABLE = "KQUOTA_ANALYSIS_PYTHON"
YAML_SUFFIXES = (".yaml", ".yml")


def run(arguments: Sequence[str]) -> int:
    """Start `python -m analysis` and wait for it; its exit code, 128 + n after signal n. A configuration file as
    `--candidate` is passed on as JSON. Raises ConfigError for an invalid one, OSError when the other Python does not
    run."""
    # The package may be found by its location only (a checkout), and the other Python must find the same one.
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    with TemporaryDirectory(prefix="kquota-report-") as directory:
        command = [python, "-m", "analysis", *_with_candidate(arguments, Path(directory))]
        try:
            child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
        except OSError as error:
            raise OSError(f"{PYTHON_VARIABLE}: {error}") from error
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        while True:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                continue  # the terminal has signalled the child as well, and it stops Spark in order
            return 128 - code if code < 0 else code


def _with_candidate(arguments: Sequence[str], directory: Path) -> list[str]:
    changed = list(arguments)
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != "--candidate" or not (equals or index + 1 < len(arguments)):
            continue
        file = value if equals else arguments[index + 1]
        if Path(file).suffix in YAML_SUFFIXES:
            # Under its own name, which becomes the candidate's name in the report.
            target = directory / str(index) / f"{Path(file).stem}.json"
            target.parent.mkdir()
            # Here, as few reports need it, and each waits for what is imported.
            from config.load import load
            from config.overlay import table_in_force
            from proxy.app.cli.check import summary_json

            config = load(file, on_paper=True)
            target.write_text(json.dumps(summary_json(file, config, table_in_force(config))))
            changed[index : index + (1 if equals else 2)] = [f"--candidate={target}"] if equals else [name, str(target)]
    return changed
