"""Cuts a script down to what it takes for a property to fail."""

from collections.abc import Callable
from dataclasses import replace

from tests.world.script import Script


def shrink(script: Script, fails: Callable[[Script], bool]) -> Script:
    """The smallest found that still fails, with fewer clients and faults, in less time."""
    for seconds in (30.0, 60.0, 120.0, 300.0):
        if seconds < script.seconds and fails(shorter := replace(script, seconds=seconds)):
            script = shorter
            break
    smaller = True
    while smaller:
        smaller = False
        for part in ("faults", "clients"):
            size = max(len(getattr(script, part)) // 2, 1)
            while size:
                keys = list(getattr(script, part))
                for start in range(0, len(keys), size):
                    left = {
                        key: one for key, one in getattr(script, part).items() if key not in keys[start : start + size]
                    }
                    one = replace(script, clients=left) if part == "clients" else replace(script, faults=left)
                    if len(left) < len(getattr(script, part)) and fails(one):
                        script, smaller = one, True
                size //= 2
    return script
