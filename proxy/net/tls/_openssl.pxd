"""Types of `proxy/net/tls/_openssl.pyx`."""

from proxy.net.io.endpoint cimport Endpoint


cdef extern from "openssl/ssl.h" nogil:
    ctypedef struct SSL: pass
    ctypedef struct SSL_CTX: pass


cdef struct Wire:  # what OpenSSL's callbacks, which hold no GIL, know of a channel
    int fd, failed_by
    bint busy  # a read or write of the event loop's is in progress and owns the shared buffers
    bint drained, got_some, ended, fresh
    # Encrypted bytes read from the socket but not yet by OpenSSL: in INCOMING, between calls in `Channel.kept`.
    const char *ahead
    Py_ssize_t ahead_bytes, free_bytes
    Py_ssize_t outgoing_bytes  # encrypted, in OUTGOING


cdef class Context:
    cdef SSL_CTX *ctx
    cdef bint server, names


cdef class Channel(Endpoint):
    cdef SSL *ssl
    cdef Wire wire
    cdef str name  # that the peer has to prove
    cdef bytes kept
    # Encrypted bytes to be sent: `unsent` from `unsent_at` on, followed during a call by those in OUTGOING.
    cdef bytes unsent
    cdef Py_ssize_t unsent_at
    # How much plaintext of the next send is already among them.
    cdef Py_ssize_t encrypted_bytes

    cdef int ask_for(self, str name, bint proved) except -1
    cdef Py_ssize_t read_into(self, char *to, Py_ssize_t wanted) except -2
    cdef Py_ssize_t send_from(self, const char *data, Py_ssize_t count) except -2
    cdef bint flush(self) except -1
    cdef Py_ssize_t send_now(self, const char *data, Py_ssize_t count) except -1
    cdef int fail(self) except -1
