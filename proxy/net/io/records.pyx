# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=False, annotation_typing=False
"""The endpoint of a TLS connection: whole records by calling OpenSSL directly, with no Python object for each."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from proxy.net.io.endpoint cimport Endpoint
from proxy.net.tls._openssl cimport Channel


cdef class TlsEndpoint(Endpoint):
    def __init__(self, sock, *, splices):
        Endpoint.__init__(self, sock, splices=splices)
        self.channel = sock.channel

    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2:
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if not 0 <= count <= view.len:
                raise ValueError("more than the buffer has room for")
            return self.channel.read_into(<char *>view.buf, count)
        finally:
            PyBuffer_Release(&view)

    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2:
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("beyond the buffer")
            return self.channel.send_from(<char *>view.buf + start, end - start) if end > start else 0
        finally:
            PyBuffer_Release(&view)

    cpdef Py_ssize_t send_all(self, list buffers, bint more) except -2:
        joined = b"".join(buffers)  # few large records cost less than many small ones
        return self.send(joined, 0, len(joined), more)
