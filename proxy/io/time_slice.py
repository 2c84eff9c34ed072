"""A short time slice for the event loop's thread: it is given a core soon after it was woken, and no more of it.

Linux' fair scheduler gives a thread that becomes runnable the core at once only if its virtual deadline is earlier than
that of the thread that runs there, and the deadline is later the longer the slice is that it asks for (EEVDF). With the
default of some milliseconds, a woken proxy often waits behind a broker or a client that has a deadline before its own.
It needs a few microseconds for a request, so it asks for the shortest slice there is. Its share of the CPU stays what
its weight (`nice`) gives it. Threads that it starts begin with the same slice. Needs no privilege, and Linux 6.12 or
newer; older ones take the call and ignore it.

Source: sched_setattr(2), Documentation/scheduler/sched-eevdf.rst of Linux.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

SLICE_NS: Final = 100_000
"""What the thread asks for. The shortest that the kernel takes: 0.1 ms."""
_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""By architecture, the numbers of sched_setattr and sched_getattr, which glibc has functions for only since 2.41."""
_ATTR: Final = struct.Struct("IIQiIQQQ")
"""struct sched_attr: size, policy, flags, nice, priority, and runtime (the slice), deadline and period in ns."""
_POLICY, _FLAGS, _RUNTIME = 1, 2, 5


def _call(number: int, *arguments: object) -> None:
    """Call the kernel for the calling thread. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _attributes() -> list[int]:
    """`struct sched_attr` of the calling thread. Raises OSError, and KeyError on an unknown architecture."""
    buffer = ctypes.create_string_buffer(_ATTR.size)
    _call(_CALLS[platform.machine()][1], buffer, _ATTR.size, 0)
    return list(_ATTR.unpack(buffer.raw))


def slice_ns() -> int:
    """The slice that the calling thread has asked for or has by default; 0: this kernel does not say.

    Raises OSError, and KeyError on an architecture that is not known here.
    """
    return _attributes()[_RUNTIME]


def shorten_slice() -> bool:
    """Ask for the shortest slice for the calling thread. Whether the kernel has taken it.

    A thread with another policy than the ordinary one keeps what it has: that was chosen deliberately. Its nice value
    stays in any case.
    """
    try:
        attributes = _attributes()
        if attributes[_POLICY] != os.SCHED_OTHER:
            return False
        attributes[_FLAGS], attributes[_RUNTIME] = 0, SLICE_NS
        _call(_CALLS[platform.machine()][0], _ATTR.pack(*attributes), 0)
        return slice_ns() == SLICE_NS
    except (OSError, KeyError):
        return False
