"""`python -m analysis NAME --input … --output …`, also by spark-submit. Exit codes: 0 ok, 1 failed, 2 usage error."""

from __future__ import annotations

import sys
from pathlib import Path

if (
    __name__ == "__main__" and not __package__
):  # spark-submit names a file: its directory is on the path, ours has to be
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from analysis.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
