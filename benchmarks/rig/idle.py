"""What idle cores do while something is measured: halt, or look for work in a loop (poll).

To give work to a core that has halted is to wake it by an interrupt. In a virtual machine both the halting and the
interrupt may go through the hypervisor, which costs the one that sends some 10 µs each time: next to what a proxy does
with a request that is a lot, and a matter of the machine. While a process asks for a latency of 0 µs (PM QoS, the
kernel's Documentation/power/pm_qos_interface.rst; `tuned`'s profile network-latency does the same), idle cores poll.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")
STATES = Path("/sys/devices/system/cpu")
NO_LATENCY = bytes(4)
"""0 µs, a signed 32-bit number of the machine's byte order."""


@dataclass(frozen=True, slots=True)
class IdleTime:
    """Microseconds that all cores have been idle since boot (sysfs: cpu*/cpuidle/state*/time)."""

    polling_us: int
    """In states that are left at once (latency 0)."""
    halted_us: int
    """In all others."""

    @classmethod
    def now(cls) -> IdleTime:
        """As the kernel counts it; both 0 on a machine that does not."""
        found = [0, 0]
        for state in STATES.glob("cpu[0-9]*/cpuidle/state*"):
            halts = int((state / "latency").read_text(encoding="ascii")) > 0
            found[halts] += int((state / "time").read_text(encoding="ascii"))
        return cls(*found)


@dataclass(slots=True)
class Idling:
    """What idle cores were asked to do, and what they did."""

    refused: str | None
    """Why they could not be asked to poll; None if they were, or were not meant to."""
    began: IdleTime = field(default_factory=IdleTime.now)

    def polling_share(self) -> float | None:
        """Of the idle time since this began, 0 to 1; None where the kernel does not tell."""
        now = IdleTime.now()
        polling_us, halted_us = now.polling_us - self.began.polling_us, now.halted_us - self.began.halted_us
        return polling_us / (polling_us + halted_us) if polling_us + halted_us else None

    def describe(self) -> dict[str, object]:
        """What a result stores of it."""
        share = self.polling_share()
        return {"polling_share": None if share is None else round(share, 3), "refused": self.refused}


@contextmanager
def polling(wanted: bool) -> Iterator[Idling]:
    """Let idle cores poll meanwhile, if that is `wanted` and allowed; afterwards they do what they did before.

    Never fails: what did happen is in what it gives.
    """
    held, refused = None, None
    if wanted:
        try:
            held = os.open(DEVICE, os.O_WRONLY)  # in force for as long as this is open
            os.write(held, NO_LATENCY)
        except OSError as error:
            refused = f"{DEVICE}: {error.strerror}"
    try:
        yield Idling(refused)
    finally:
        if held is not None:
            os.close(held)
