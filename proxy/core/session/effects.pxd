cimport cython

from proxy.core.session.outgoing cimport Outgoing as OutgoingType

cdef double _NEVER


@cython.final
cdef class Effects:
    cdef public OutgoingType to_broker, to_client
    cdef public object ask, close, ended, identified
    cdef public bint connect, more, read_broker, read_client, yields
    cdef public long long splice_down, splice_up
    cdef public double wake_at_ms

    @cython.locals(up=OutgoingType, down=OutgoingType)
    cpdef object begin(self)
