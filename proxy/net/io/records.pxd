from proxy.net.io.endpoint cimport Endpoint
from proxy.net.tls._openssl cimport Channel


cdef class TlsEndpoint(Endpoint):
    cdef Channel channel

    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2
    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2
    cpdef Py_ssize_t send_all(self, list buffers, bint more) except -2
