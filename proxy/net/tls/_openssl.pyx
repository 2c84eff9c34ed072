# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, initializedcheck=False
"""TLS bytes by calling OpenSSL directly, without a Python call or an exception per record.

Python's `ssl` makes the context, verifies, and does the handshake; from then on `Channel` reads and writes through the
same OpenSSL object, with a BIO of our own: one `recv` brings many records and one `send` takes many.
`proxy.net.tls.channel` documents what callers may rely on, and works without this module where it cannot be used.
"""

import os
import ssl
import sys

import _ssl

from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy
from proxy.net.tls._calls cimport (
    BIO_clear_flags, BIO_free, BIO_get_data, BIO_get_new_index, BIO_meth_new, BIO_meth_set_ctrl, BIO_meth_set_read_ex,
    BIO_meth_set_write_ex, BIO_new, BIO_set_data, BIO_set_flags, BIO_set_init, BIO_up_ref, c_recv, c_send, c_shutdown,
    ERR_clear_error, ERR_peek_last_error, ERR_reason_error_string, KQ_CTRL_EOF, KQ_CTRL_FLUSH, kq_find, KQ_FLAGS,
    KQ_RETRY_READ, KQ_RETRY_WRITE, KQ_TYPE, METHOD, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD, SSL_get_error, SSL_get_fd,
    SSL_get_SSL_CTX, SSL_read_ex, SSL_set_bio, SSL_set_read_ahead, SSL_write_ex,
)


cdef enum:
    RECORD_BYTES = 16384  # plaintext in one record (RFC 8446, section 5.1)
    CHUNK_BYTES = 8 * RECORD_BYTES  # plaintext encrypted at once
    # Holds a chunk's records even for a client that wants small ones (RFC 6066, section 4): at most 131072 / 512 = 256,
    # each with a header, an initialization vector, a MAC and padding, 5 + 16 + 48 + 256 bytes: 83 200 in all.
    BUFFER_BYTES = CHUNK_BYTES + 96 * 1024
    MIN_BYTES = RECORD_BYTES + 1024  # least to ask of the kernel: a record
    ERROR_WANT_READ = 2
    ERROR_ZERO_RETURN = 6

cdef char[BUFFER_BYTES] INCOMING
cdef char[BUFFER_BYTES] OUTGOING
"""Used by one call of one channel at a time: channels belong to the event loop's thread."""
cdef METHOD *METHOD_OF_CHANNELS = NULL

LAYOUTS = {(3, 11): (96, 96), (3, 12): (80, 96), (3, 13): (80, 112)}
"""By version of CPython: sizes of `_ssl._SSLSocket` and `_ssl._SSLContext`. In all of these the OpenSSL object comes
after the object's head and one pointer; the context's comes right after its head (Modules/_ssl.c)."""


def why_not():
    """Why channels cannot be made with this Python; empty when they can. Looks up OpenSSL's functions."""
    global METHOD_OF_CHANNELS
    found = (_ssl._SSLSocket.__basicsize__, _ssl._SSLContext.__basicsize__)
    if sys.implementation.name != "cpython" or LAYOUTS.get(sys.version_info[:2]) != found or object.__basicsize__ != 16:
        return f"the layout of ssl's objects in this Python is not known (sizes {found})"
    if METHOD_OF_CHANNELS != NULL:
        return ""
    missing = kq_find(os.fsencode(getattr(_ssl, "__file__", "")))
    if missing != NULL:
        return f"{(<bytes>missing).decode()} is not found behind Python's module _ssl"
    cdef METHOD *method = BIO_meth_new(BIO_get_new_index() | KQ_TYPE, b"kquota")
    if method == NULL:
        return "OpenSSL has no memory"
    BIO_meth_set_read_ex(method, read_cipher)
    BIO_meth_set_write_ex(method, write_cipher)
    BIO_meth_set_ctrl(method, control)
    METHOD_OF_CHANNELS = method
    return ""


cdef class Channel:
    """Reads and writes for `proxy.net.tls.channel.TlsSocket`, once its handshake is done."""

    def __init__(self, sock):
        """Take over the connection of an `ssl.SSLSocket` whose handshake is done. Raises ValueError if that is
        impossible."""
        if reason := why_not():
            raise ValueError(reason)
        inner = sock._sslobj
        if type(inner) is not _ssl._SSLSocket:
            raise ValueError(f"{inner!r} is not a TLS connection")
        self.of, self.fd = inner, sock.fileno()
        self.ssl = (<SSL **>(<char *><void *>inner + 24))[0]
        context = inner.context
        if SSL_get_SSL_CTX(self.ssl) != (<void **>(<char *><void *>context + 16))[0] or SSL_get_fd(self.ssl) != self.fd:
            raise ValueError("the layout of ssl's objects is another one than is known here")
        self.bio = BIO_new(METHOD_OF_CHANNELS)
        if self.bio == NULL:
            raise MemoryError
        BIO_up_ref(self.bio)  # one reference belongs to OpenSSL
        BIO_set_data(self.bio, <void *>self)
        BIO_set_init(self.bio, 1)
        SSL_set_bio(self.ssl, self.bio, self.bio)
        SSL_set_read_ahead(self.ssl, 0)  # this class reads ahead itself

    def __dealloc__(self):
        if self.bio != NULL:
            BIO_set_data(self.bio, NULL)
            BIO_free(self.bio)

    def close(self):
        """Release the file descriptor, which another object owns from now on."""
        self.fd = -1

    @property
    def encrypted_ahead_bytes(self):
        """Bytes read from the socket and still to be decrypted."""
        return self.ahead_bytes

    def receive(self, buffer):
        """See `read_into`."""
        cdef unsigned char[::1] to = buffer
        return self.read_into(<char *>&to[0], to.shape[0]) if to.shape[0] else 0

    def send(self, data):
        """See `send_from`."""
        cdef const unsigned char[::1] view = data
        return self.send_from(<const char *>&view[0], view.shape[0]) if view.shape[0] else 0

    cdef Py_ssize_t read_into(self, char *to, Py_ssize_t wanted) except -2:
        """Read plaintext of as many records as there are. Returns how much, 0 at the end, -1 if it would block. A short
        read has emptied the socket. Raises OSError."""
        cdef Py_ssize_t got = 0
        cdef size_t part = 0
        cdef int error = 0
        self.busy, self.drained, self.got_some = True, False, False
        self.room_bytes = min(max(wanted, MIN_BYTES), BUFFER_BYTES)
        no_errors()
        while got < wanted:
            if not SSL_read_ex(self.ssl, to + got, <size_t>(wanted - got), &part):
                error = SSL_get_error(self.ssl, 0)
                break
            got += <Py_ssize_t>part
            self.got_some = True
            if self.drained and self.ahead_bytes == 0 and got < wanted:
                break  # a record was read whole, and nothing follows it: OpenSSL could only say that it wants more
        self.busy = False
        if self.ahead_bytes == 0:
            self.kept = None
        elif self.kept is None:  # INCOMING belongs to the next call
            self.kept = self.ahead[: self.ahead_bytes]
            self.ahead = self.kept
        if self.outgoing_bytes:  # an alert, or the answer to a key update: goes before the next data
            try:
                self.flush()
            except OSError:
                pass  # the next send meets it again; here, what was read counts
        if error == 0 or error == ERROR_WANT_READ:
            return got if got else -1
        if got:  # what came before the end goes first, and the kernel has to report the end again
            c_shutdown(self.fd, SHUT_RD)
        elif error != ERROR_ZERO_RETURN and not self.ended:
            self.fail()
        ERR_clear_error()  # otherwise this thread's next user of OpenSSL would see these errors
        return got

    cdef Py_ssize_t send_from(self, const char *data, Py_ssize_t count) except -2:
        """Send plaintext. Returns how much was taken; after a short send the same bytes have to be sent next, before
        any others, as some of them have been encrypted. Raises OSError."""
        cdef Py_ssize_t done = 0, chunk
        cdef size_t written = 0
        cdef int sent
        while self.flush():
            done += self.encrypted_bytes
            self.encrypted_bytes = 0
            if done > count:
                raise ValueError(f"{count} bytes are sent, where {done} of those before are not through")
            chunk = min(count - done, <Py_ssize_t>CHUNK_BYTES)
            if chunk == 0:
                break
            no_errors()
            self.busy = True
            sent = SSL_write_ex(self.ssl, data + done, <size_t>chunk, &written)
            self.busy = False
            if not sent:
                SSL_get_error(self.ssl, 0)
                self.fail()
            self.encrypted_bytes = chunk
        return done

    cdef bint flush(self) except -1:
        """Send encrypted bytes. False: the socket is full; the rest is kept and goes first next time."""
        cdef Py_ssize_t count = self.outgoing_bytes, sent
        cdef bytes unsent = self.unsent
        self.outgoing_bytes = 0
        if unsent is not None:
            self.unsent_at += self.send_now(<const char *>unsent + self.unsent_at, len(unsent) - self.unsent_at)
            if self.unsent_at < len(unsent):
                if count:
                    self.unsent, self.unsent_at = unsent[self.unsent_at :] + OUTGOING[:count], 0
                return False
            self.unsent = None
        if count:
            sent = self.send_now(OUTGOING, count)
            if sent < count:
                self.unsent, self.unsent_at = OUTGOING[sent:count], 0
                return False
        return True

    cdef Py_ssize_t send_now(self, const char *data, Py_ssize_t count) except -1:
        """Send until the socket is full: only then does epoll report it writable. Returns how much was taken."""
        cdef Py_ssize_t done = 0
        cdef ssize_t sent
        while done < count:
            sent = c_send(self.fd, data + done, count - done, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                done += sent
            elif errno == EAGAIN:
                break
            elif errno != EINTR:
                raise OSError(errno, os.strerror(errno))
        return done

    cdef int fail(self) except -1:
        """Raise the kernel's or OpenSSL's error, as Python's `ssl` does."""
        cdef unsigned long code = ERR_peek_last_error()
        cdef const char *text = ERR_reason_error_string(code)
        ERR_clear_error()
        if self.failed_by:
            raise OSError(self.failed_by, os.strerror(self.failed_by))
        words = "unknown" if text == NULL else (<bytes>text).decode("ascii", "replace")
        error = ssl.SSLError(ssl.SSL_ERROR_SSL, f"[SSL] {words}")
        error.reason = words.upper().replace(" ", "_")
        raise error


cdef inline void no_errors() noexcept:
    """Empty the thread's queue of errors before a call. Clearing touches a kilobyte, so look first."""
    if ERR_peek_last_error():
        ERR_clear_error()


# ---- OpenSSL's callbacks: the BIO that stands in for its socket ---------------------------------------------------------


cdef int read_cipher(BIO *bio, char *to, size_t wanted, size_t *got) noexcept with gil:
    """Read from what has been read ahead, or else from the socket: in a channel's call, a buffer full at once."""
    cdef void *data = BIO_get_data(bio)
    cdef Channel channel
    cdef ssize_t count
    got[0] = 0
    BIO_clear_flags(bio, KQ_FLAGS)
    if data == NULL:
        return 0
    channel = <Channel>data
    if channel.ahead_bytes == 0:
        channel.kept = None
        count = -1
        # A short read has emptied the socket. But "would block" is only returned when the kernel has said so: the end
        # may have come behind half a record, and is reported once.
        if not channel.drained or not channel.got_some or not channel.busy:
            while True:
                if channel.busy:
                    count = c_recv(channel.fd, INCOMING, channel.room_bytes, MSG_DONTWAIT)
                else:  # Python's ssl, for its close_notify: nothing may be left over
                    count = c_recv(channel.fd, to, wanted, MSG_DONTWAIT)
                if count >= 0 or errno != EINTR:
                    break
            if count == 0:
                channel.ended = True
                return 0
            if count < 0 and errno != EAGAIN:
                channel.failed_by = errno
                return 0
            channel.drained = count < channel.room_bytes
        if count < 0:
            BIO_set_flags(bio, KQ_RETRY_READ)
            return 0
        if not channel.busy:
            got[0] = <size_t>count
            return 1
        channel.ahead, channel.ahead_bytes = INCOMING, count
    if wanted > <size_t>channel.ahead_bytes:
        wanted = <size_t>channel.ahead_bytes
    memcpy(to, channel.ahead, wanted)
    channel.ahead += wanted
    channel.ahead_bytes -= <Py_ssize_t>wanted
    got[0] = wanted
    return 1


cdef int write_cipher(BIO *bio, const char *data, size_t count, size_t *written) noexcept with gil:
    """Write to OUTGOING in a channel's call, which sends it on; otherwise to the socket, after what is still unsent."""
    cdef void *of = BIO_get_data(bio)
    cdef Channel channel
    cdef Py_ssize_t sent
    written[0] = 0
    BIO_clear_flags(bio, KQ_FLAGS)
    if of == NULL:
        return 0
    channel = <Channel>of
    if channel.busy:
        if channel.outgoing_bytes + <Py_ssize_t>count > BUFFER_BYTES:
            return 0  # more than OpenSSL can write in answer to what was read
        memcpy(OUTGOING + channel.outgoing_bytes, data, count)
        channel.outgoing_bytes += <Py_ssize_t>count
        written[0] = count
        return 1
    try:
        sent = channel.send_now(data, <Py_ssize_t>count) if channel.flush() else 0
    except OSError:
        return 0
    if sent == 0:
        BIO_set_flags(bio, KQ_RETRY_WRITE)
        return 0
    written[0] = <size_t>sent
    return 1


cdef long control(BIO *bio, int what, long _number, void *_data) noexcept with gil:
    cdef void *of = BIO_get_data(bio)
    if what == KQ_CTRL_EOF:
        return of != NULL and (<Channel>of).ended
    return what == KQ_CTRL_FLUSH
