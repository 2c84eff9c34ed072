"""CPU time and memory of processes, and what machine this is; all from Linux's /proc and clocks."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A process' CPU clock, as clock_getcpuclockid(3) makes its id: all threads, the ended ones too, in nanoseconds.
_CPU_CLOCK_OF_PROCESS = 2


def cpu_s(pid: int) -> float:
    """CPU seconds (user and system) that a process has used so far.

    The process' CPU clock counts nanoseconds; /proc/PID/stat, taken where the clock cannot be read, ticks of 10 ms.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)
    except OSError:
        return cpu_s_from_stat(_read_stat(pid))


def _read_stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None


def cpu_s_from_stat(text: str) -> float:
    """utime + stime (fields 14 and 15 of proc(5)) in seconds; the command in parentheses may hold anything."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """Resident set size of a process; the kernel's own socket buffers are not in it. VmHWM: the largest so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def peak_bytes(pid: int) -> int:
    """The largest resident set size that a process has had so far."""
    return resident_bytes(pid, "VmHWM")


def settled_resident_bytes(pid: int) -> int:
    """Resident set size once it has stood still for three looks in a row (or after 2 s)."""
    deadline = time.monotonic() + 2.0
    seen: list[int] = []
    while len(seen) < 3 or len(set(seen[-3:])) > 1:
        if time.monotonic() > deadline:
            break
        seen.append(resident_bytes(pid))
        time.sleep(0.1)
    return seen[-1]


@dataclass(frozen=True, slots=True)
class MachineTime:
    """CPU seconds of the whole machine since boot."""

    busy_s: float
    stolen_s: float
    """Taken by the hypervisor for others."""

    @classmethod
    def now(cls) -> MachineTime:
        """Read /proc/stat."""
        return cls.parse(Path("/proc/stat").read_text(encoding="ascii"))

    @classmethod
    def parse(cls, text: str) -> MachineTime:
        """The first line of /proc/stat: user nice system idle iowait irq softirq steal ..."""
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in text.split()[1:9])
        return cls((user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S)


def wait_calm(share: float, cores: int, limit_s: float) -> float:
    """Wait until the machine as a whole uses less than `share` of its CPU, at most `limit_s`; how long that took."""
    start = time.monotonic()
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before, began = MachineTime.now(), time.monotonic()
        time.sleep(0.25)
        after, took_s = MachineTime.now(), time.monotonic() - began
        if after.busy_s - before.busy_s + after.stolen_s - before.stolen_s < share * cores * took_s:
            break
    return time.monotonic() - start


def describe_machine() -> dict[str, Any]:
    """What a reader must know to compare; no names of hosts or people."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return {
        "cpu_model": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "virtual": " hypervisor" in cpu,
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "load_1min": round(os.getloadavg()[0], 2),
    }
