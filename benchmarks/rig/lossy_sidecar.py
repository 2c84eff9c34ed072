"""`kquota run` for a fleet with a bad network: it loses or delays records of the topic, or is cut off from it.

    python -m benchmarks.rig.lossy_sidecar FILE COMMAND… run --config …

COMMAND is that of a whole sidecar, in whose place this one runs. FILE holds JSON, read ten times a second, so a
benchmark changes it while the sidecar runs: `lost` and `late` are the shares of the records read that are dropped and
delayed (by one to three seconds, so that later ones overtake them), `cut` is true where nothing is sent nor read.
Nothing else of the sidecar is another.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import proxy.app.fleet.member
from proxy.app.cli.main import main
from proxy.app.fleet.member import Exchange

LATE_S: Final = (1.0, 3.0)
LOOK_EVERY_S: Final = 0.1
FILE: Final = Path(sys.argv[1])


class LossyExchange(Exchange):
    """Between the topic and the arithmetic."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file = FILE
        self._random = random.Random(os.getpid())
        self._late: list[tuple[float, tuple[int, bytes]]] = []
        self._looked_s = 0.0
        self._faults: dict[str, Any] = {}

    def take(self) -> list[tuple[int, bytes]]:
        """What was read and was neither lost nor is late, and what was late until now."""
        now, faults = time.monotonic(), self._look()
        found = []
        for record in super().take():
            dice = self._random.random()
            if faults.get("cut") or dice < faults.get("lost", 0.0):
                continue
            if dice < faults.get("lost", 0.0) + faults.get("late", 0.0):
                self._late.append((now + self._random.uniform(*LATE_S), record))
            else:
                found.append(record)
        due = [record for at, record in self._late if at <= now]
        self._late = [one for one in self._late if one[0] > now]
        return due + found

    def publish(self, partition: int, data: bytes) -> None:
        """Send it, unless the instance is cut off."""
        if not self._look().get("cut"):
            super().publish(partition, data)

    def _look(self) -> dict[str, Any]:
        now = time.monotonic()
        if now >= self._looked_s + LOOK_EVERY_S:
            self._looked_s = now
            self._faults = json.loads(self._file.read_text()) if self._file.is_file() else {}
        return self._faults


if __name__ == "__main__":
    setattr(proxy.app.fleet.member, "Exchange", LossyExchange)  # noqa: B010  (that module does not export the name)
    sys.argv[1:] = sys.argv[sys.argv.index("run") :]
    main()
