"""The kernel's clocks. Compiled modules use the C functions of `ticks.pxd`, which become part of their callers."""

from __future__ import annotations

import time

monotonic_s = time.perf_counter
"""CLOCK_MONOTONIC in seconds."""
thread_s = time.thread_time
"""CPU time of the calling thread in seconds."""
