# The compiled versions of the functions of ticks.py.
from libc.time cimport time_t


cdef extern from "<time.h>":
    struct timespec:
        time_t tv_sec
        long tv_nsec
    const int CLOCK_MONOTONIC
    const int CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int clock, timespec *now) nogil


cdef inline double read_s(int clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef inline double monotonic_s() noexcept:
    return read_s(CLOCK_MONOTONIC)


cdef inline double thread_s() noexcept:
    return read_s(CLOCK_THREAD_CPUTIME_ID)
