"""`make bench-guard` sees what has slipped through before: faults are put under a real sidecar, from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suites import guard

pytestmark = pytest.mark.long

FAULTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

static int (*waiting)(int, struct epoll_event *, int, int);
static ssize_t (*receiving)(int, void *, size_t, int);

__attribute__((constructor)) static void find(void) {
    waiting = dlsym(RTLD_NEXT, "epoll_wait");
    receiving = dlsym(RTLD_NEXT, "recv");
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms) {
    struct timespec pause = {0, 50000};
    int found = waiting(fd, events, most, timeout_ms);
    for (volatile int n = 0; n < 70; n++);    /* some 5 % more instructions */
    if (found > 0) nanosleep(&pause, 0);      /* a system call and a wake-up more */
    return found;
}

ssize_t recv(int fd, void *buffer, size_t count, int flags) {
    receiving(fd, buffer, count, flags | MSG_PEEK); /* copies once more */
    return receiving(fd, buffer, count, flags);
}
"""
SHORT_SLICE = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 314, "aarch64": 274}[platform.machine()]  # sched_setattr(2)
if os.sched_getscheduler(0) == os.SCHED_OTHER:
    wanted = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, 0, 0, 100_000, 0, 0)
    assert ctypes.CDLL(None).syscall(number, 0, wanted, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(guard.missing() is not None, reason=str(guard.missing()))
def test_guard_detects_short_runs_and_regressions(tmp_path: Path) -> None:
    source, library = tmp_path / "faults.c", tmp_path / "faults.so"
    source.write_text(FAULTS)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    stored = json.loads(guard.STORED.read_text())
    here = {
        name: guard.measure(before, only="produce")
        for name, before in {
            "as it is": (),
            "faults": ("/usr/bin/env", f"LD_PRELOAD={library}"),
            "short slice": (sys.executable, "-c", SHORT_SLICE),
        }.items()
    }
    # Of this machine's own counts: the stored ones may be of another compiler.
    stored["rows"] = {row: {name: min(all) for name, all in one.items()} for row, one in here.pop("as it is").items()}
    seen = {name: {line.split()[1] for line in guard.failures(stored, found)} for name, found in here.items()}
    assert seen == {
        "faults": {"instructions", "system_calls", "bytes_copied", "wakeups"},
        "short slice": {"own_scheduling"},
    }
