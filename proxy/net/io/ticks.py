"""The kernel's clock. Compiled modules use the C function of `ticks.pxd`, which becomes part of its callers."""

from __future__ import annotations

import time

monotonic_s = time.perf_counter
"""CLOCK_MONOTONIC in seconds."""
