# The compiled version of the function of ticks.py.
from libc.time cimport time_t


cdef extern from "<time.h>":
    struct timespec:
        time_t tv_sec
        long tv_nsec
    const int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now) nogil


cdef inline double monotonic_s() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9
