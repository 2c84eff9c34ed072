"""What other compiled modules of the data path call (`proxy/net/tls/_openssl.pyx`)."""

cdef extern from *:
    """
    typedef struct ssl_st kq_SSL;
    typedef struct bio_st kq_BIO;
    """
    ctypedef struct SSL "kq_SSL"
    ctypedef struct BIO "kq_BIO"


cdef class Channel:
    cdef SSL *ssl
    cdef BIO *bio
    cdef object of  # Python's object, which owns OpenSSL's
    cdef int fd, failed_by
    cdef bint busy  # one of the calls below is in progress and owns the shared buffers
    cdef bint drained, got_some, ended
    # Encrypted bytes read from the socket but not yet by OpenSSL: in INCOMING, between calls in `kept`.
    cdef const char *ahead
    cdef Py_ssize_t ahead_bytes, room_bytes
    cdef bytes kept
    # Encrypted bytes to be sent: `unsent` from `unsent_at` on, followed during a call by those in OUTGOING.
    cdef bytes unsent
    cdef Py_ssize_t unsent_at, outgoing_bytes
    # How much plaintext of the next send is already among them.
    cdef Py_ssize_t encrypted_bytes

    cdef Py_ssize_t read_into(self, char *to, Py_ssize_t wanted) except -2
    cdef Py_ssize_t send_from(self, const char *data, Py_ssize_t count) except -2
    cdef bint flush(self) except -1
    cdef Py_ssize_t send_now(self, const char *data, Py_ssize_t count) except -1
    cdef int fail(self) except -1
