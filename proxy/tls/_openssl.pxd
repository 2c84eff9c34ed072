"""What the compiled data path calls (`proxy/tls/_openssl.pyx`)."""

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
    cdef object of  # Python's object, which frees OpenSSL's
    cdef int fd, failed_by
    cdef bint busy  # one of the calls below is under way: shared buffers are its own
    cdef bint drained, got_some, ended
    # Encrypted bytes that have been read from the socket and not by OpenSSL yet: in INCOMING, between calls in `kept`.
    cdef const char *ahead
    cdef Py_ssize_t ahead_bytes, room_bytes
    cdef bytes kept
    # Encrypted bytes to be sent: `unsent` from `unsent_at` on, behind it what is in OUTGOING during a call.
    cdef bytes unsent
    cdef Py_ssize_t unsent_at, outgoing_bytes
    # How much of what is to be sent next is among them.
    cdef Py_ssize_t encrypted_bytes

    cdef Py_ssize_t read_into(self, char *to, Py_ssize_t wanted) except -2
    cdef Py_ssize_t send_from(self, const char *data, Py_ssize_t count) except -2
    cdef bint flush(self) except -1
    cdef Py_ssize_t send_now(self, const char *data, Py_ssize_t count) except -1
    cdef int fail(self) except -1
