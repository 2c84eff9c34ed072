# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, initializedcheck=False
"""TLS by OpenSSL's public functions: contexts, handshakes, and bytes without a Python call or an exception per record.

OpenSSL reads and writes through a BIO of our own: one `recv` brings many records and one `send` takes many. What is not
said here is OpenSSL's default. `proxy.net.tls.python_ssl` does the same by Python's `ssl`, where this is not built.
"""

import os
import ssl

from proxy.net.tls.certificates import EncryptedKeyError
from proxy.net.tls.python_ssl import CIPHERS

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy
from proxy.net.io.endpoint cimport Endpoint


cdef enum:
    RECORD_BYTES = 16384  # plaintext in one record (RFC 8446, section 5.1)
    CHUNK_BYTES = 8 * RECORD_BYTES  # plaintext encrypted at once
    # Holds a chunk's records even for a client that wants small ones (RFC 6066, section 4): at most 131072 / 512 = 256,
    # each with a header, an initialization vector, a MAC and padding, 5 + 16 + 48 + 256 bytes: 83 200 in all.
    BUFFER_BYTES = CHUNK_BYTES + 96 * 1024
    MIN_BYTES = RECORD_BYTES + 1024  # least to ask of the kernel: a record

cdef char[BUFFER_BYTES] INCOMING
cdef char[BUFFER_BYTES] OUTGOING
"""Used by one call of one channel at a time: reads and writes belong to the event loop's thread."""

LIBRARY = OpenSSL_version(OPENSSL_VERSION).decode()
"""OpenSSL's name and version."""
cdef bytes SESSIONS = b"kquota"
"""Marks tickets as ours: without a mark, no session with a client's certificate is resumed."""


# ---- contexts -----------------------------------------------------------------------------------------------------------


cdef class Context:
    """What all connections of one side have in common; it is not changed any more once one has been made."""

    def __init__(self, bint server, verify, bint names=False):
        """`server`: towards clients. `verify`: whether peers show a certificate; `names`: and prove their names."""
        cdef int mode = SSL_VERIFY_NONE
        self.server, self.names = server, names
        self.ctx = SSL_CTX_new(TLS_server_method() if server else TLS_client_method())
        if self.ctx == NULL:
            raise failure()
        SSL_CTX_set_options(  # a renegotiation (TLS 1.2) makes reads write, at our expense mostly
            self.ctx,
            (SSL_OP_ALL & ~SSL_OP_DONT_INSERT_EMPTY_FRAGMENTS) | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION
            | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF,
        )
        SSL_CTX_set_mode(self.ctx, SSL_MODE_AUTO_RETRY | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS)
        SSL_CTX_set_tlsext_servername_callback(self.ctx, check_server_name)
        if verify != ssl.CERT_NONE:
            mode = SSL_VERIFY_PEER | (SSL_VERIFY_FAIL_IF_NO_PEER_CERT if verify == ssl.CERT_REQUIRED else 0)
        SSL_CTX_set_verify(self.ctx, mode, NULL)
        cdef X509_VERIFY_PARAM *param = SSL_CTX_get0_param(self.ctx)
        X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS)
        if not (
            X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN)
            and SSL_CTX_set_min_proto_version(self.ctx, TLS1_2_VERSION)
            and SSL_CTX_set_cipher_list(self.ctx, <bytes>CIPHERS.encode())
            and SSL_CTX_set_session_id_context(self.ctx, SESSIONS, len(SESSIONS))
        ):
            raise failure()

    def __dealloc__(self):
        SSL_CTX_free(self.ctx)

    def trust(self, authorities):
        """Believe what these authorities (DER) have signed; None: those that the system trusts. Raises SSLError."""
        cdef X509 *certificate
        cdef bint done
        if authorities is None:
            if not SSL_CTX_set_default_verify_paths(self.ctx):
                raise failure()
            return
        for der in authorities:
            certificate = parsed(der)
            done = X509_STORE_add_cert(SSL_CTX_get_cert_store(self.ctx), certificate)
            X509_free(certificate)
            if not done:
                raise failure()

    def own(self, chain, bytes key):
        """Show this certificate, with the chain behind it (DER); its private key is PEM. Raises SSLError and
        EncryptedKeyError."""
        cdef X509 *certificate
        cdef bint done, encrypted = False
        for number, der in enumerate(chain):
            certificate = parsed(der)
            if number:
                done = SSL_CTX_add1_chain_cert(self.ctx, certificate)
            else:
                done = SSL_CTX_use_certificate(self.ctx, certificate)
            X509_free(certificate)
            if not done:
                raise failure()
        cdef BIO *pem = BIO_new_mem_buf(<const char *>key, <int>len(key))
        cdef EVP_PKEY *private = NULL if pem == NULL else PEM_read_bio_PrivateKey(pem, NULL, no_password, &encrypted)
        BIO_free(pem)
        if encrypted:
            EVP_PKEY_free(private)
            ERR_clear_error()
            raise EncryptedKeyError
        done = private != NULL and SSL_CTX_use_PrivateKey(self.ctx, private)
        EVP_PKEY_free(private)
        if not (done and SSL_CTX_check_private_key(self.ctx)):
            raise failure()

    def channel(self, int fd, str server_name=None):
        """A connection over this socket, whose handshake comes next. `server_name`: asked of a server (SNI)."""
        cdef Channel made = Channel.__new__(Channel)
        cdef BIO *bio
        made.fd = made.wire.fd = fd
        made.ssl = SSL_new(self.ctx)
        bio = BIO_new(METHOD_OF_CHANNELS)
        if made.ssl == NULL or bio == NULL:
            BIO_free(bio)
            raise failure()
        BIO_set_data(bio, &made.wire)
        BIO_set_init(bio, 1)
        SSL_set_bio(made.ssl, bio, bio)
        if self.server:
            SSL_set_accept_state(made.ssl)
        else:
            SSL_set_connect_state(made.ssl)
        if server_name is not None:
            made.ask_for(server_name, self.names)
        return made


cdef X509 *parsed(bytes der) except NULL:
    cdef const unsigned char *at = der
    cdef X509 *certificate = d2i_X509(NULL, &at, len(der))
    if certificate == NULL:
        raise failure()
    return certificate


cdef object failure():
    """OpenSSL's last error, as Python's `ssl` has it. Otherwise this thread's next user of OpenSSL would see it too."""
    cdef const char *text = ERR_reason_error_string(ERR_peek_last_error())
    ERR_clear_error()
    return named("unknown" if text == NULL else (<bytes>text).decode("ascii", "replace"), ssl.SSLError, SSL_ERROR_SSL)


cdef object named(str words, kind, int number):
    reason = words.upper().replace(" ", "_")
    error = kind(number, f"[SSL: {reason}] {words}")
    error.reason = reason
    return error


cdef inline void no_errors() noexcept:
    """Empty the thread's queue of errors before a call. Clearing touches a kilobyte, so look first."""
    if ERR_peek_last_error():
        ERR_clear_error()


# ---- connections --------------------------------------------------------------------------------------------------------


cdef class Channel(Endpoint):
    """A connection, made by a context; the endpoint that the event loop uses."""

    def __dealloc__(self):
        SSL_free(self.ssl)

    cdef int ask_for(self, str name, bint proved) except -1:
        """Ask the server for this name, or address; `proved`: its certificate has to have it."""
        cdef bytes encoded = name.encode("idna")
        cdef ASN1_OCTET_STRING *address = a2i_IPADDRESS(encoded)
        cdef X509_VERIFY_PARAM *param = SSL_get0_param(self.ssl)
        cdef bint is_address = address != NULL, done = True
        ASN1_OCTET_STRING_free(address)
        if not encoded or encoded.startswith(b".") or b"\0" in encoded:
            raise ValueError(f"expected the name of a host, not {name!r}")
        if not is_address:
            done = SSL_set_tlsext_host_name(self.ssl, encoded)
        if done and proved:
            self.name = encoded.decode()
            if is_address:
                done = X509_VERIFY_PARAM_set1_ip_asc(param, encoded)
            else:
                done = X509_VERIFY_PARAM_set1_host(param, encoded, len(encoded))
        if not done:
            raise failure()
        return 0

    def close(self):
        """The socket is closed: its descriptor may become another's."""
        self.sock, self.wire.fd = None, -1

    def handshake(self):
        """Go on with the handshake, which may take milliseconds: the GIL is released.

        Raises SSLWantReadError or SSLWantWriteError until it is done, OSError (SSLError) if it has failed.
        """
        cdef int done, error = 0
        no_errors()
        with nogil:
            done = SSL_do_handshake(self.ssl)
            if done != 1:
                error = SSL_get_error(self.ssl, done)
        if error == SSL_ERROR_WANT_READ:
            raise ssl.SSLWantReadError
        if error == SSL_ERROR_WANT_WRITE:
            raise ssl.SSLWantWriteError
        if done != 1:
            self.fail()

    @property
    def server_name(self):
        """The name that the client has asked for (SNI)."""
        cdef const char *name = SSL_get_servername(self.ssl, TLSEXT_NAMETYPE_host_name)
        return None if name == NULL else (<bytes>name).decode("ascii")

    @property
    def peer_certificate(self):
        """The peer's certificate (DER); None if it has shown none."""
        cdef X509 *certificate = SSL_get1_peer_certificate(self.ssl)
        cdef unsigned char *der = NULL
        cdef int length
        if certificate == NULL:
            return None
        length = i2d_X509(certificate, &der)
        X509_free(certificate)
        if length < 0:
            raise failure()
        try:
            return <bytes>der[:length]
        finally:
            OPENSSL_free(der)

    @property
    def unread_bytes(self):
        """Bytes taken from the socket, and still to be decrypted or read."""
        return self.wire.ahead_bytes + SSL_pending(self.ssl)

    def say_goodbye(self):
        """Send close_notify, unless what comes before it has still to be sent. Raises OSError."""
        if self.flush():
            SSL_shutdown(self.ssl)
            ERR_clear_error()

    cpdef Py_ssize_t receive(self, object buffer, Py_ssize_t count) except -2:
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if not 0 <= count <= view.len:
                raise ValueError("more than the buffer holds")
            return self.read_into(<char *>view.buf, count)
        finally:
            PyBuffer_Release(&view)

    cpdef Py_ssize_t send(self, object buffer, Py_ssize_t start, Py_ssize_t end, bint more) except -2:
        """After a short send the same bytes have to be sent next, as some of them have been encrypted."""
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= end <= view.len:
                raise ValueError("beyond the buffer")
            return self.send_from(<char *>view.buf + start, end - start) if end > start else 0
        finally:
            PyBuffer_Release(&view)

    cpdef Py_ssize_t send_all(self, list buffers, bint more) except -2:
        joined = b"".join(buffers)  # few large records cost less than many small ones
        return self.send(joined, 0, len(joined), more)

    cdef Py_ssize_t read_into(self, char *to, Py_ssize_t wanted) except -2:
        """Read plaintext of as many records as there are."""
        cdef Wire *wire = &self.wire
        cdef Py_ssize_t got = 0
        cdef size_t part = 0
        cdef int error = 0
        wire.busy, wire.drained, wire.got_some, wire.fresh = True, False, False, False
        wire.free_bytes = min(max(wanted, MIN_BYTES), BUFFER_BYTES)
        no_errors()
        while got < wanted:
            if not SSL_read_ex(self.ssl, to + got, <size_t>(wanted - got), &part):
                error = SSL_get_error(self.ssl, 0)
                break
            got += <Py_ssize_t>part
            wire.got_some = True
            if wire.drained and wire.ahead_bytes == 0 and got < wanted:
                break  # a record was read whole, and nothing follows it: OpenSSL could only say that it wants more
        wire.busy = False
        if wire.ahead_bytes == 0:
            self.kept = None
        elif wire.fresh:  # INCOMING belongs to the next call
            self.kept = wire.ahead[: wire.ahead_bytes]
            wire.ahead = self.kept
        if wire.outgoing_bytes:  # an alert, or the answer to a key update: goes before the next data
            try:
                self.flush()
            except OSError:
                pass  # the next send meets it again; here, what was read counts
        if error == 0 or error == SSL_ERROR_WANT_READ:
            return got if got else -1
        if got:  # what came before the end goes first, and the kernel has to report the end again
            c_shutdown(wire.fd, SHUT_RD)
        elif error != SSL_ERROR_ZERO_RETURN and not wire.ended:
            self.fail()
        ERR_clear_error()  # otherwise this thread's next user of OpenSSL would see these errors
        return got

    cdef Py_ssize_t send_from(self, const char *data, Py_ssize_t count) except -2:
        cdef Py_ssize_t done = 0, chunk
        cdef size_t written = 0
        cdef int sent
        while self.flush():
            done += self.encrypted_bytes
            self.encrypted_bytes = 0
            if done > count:
                raise ValueError(f"expected at least the {done} bytes that were encrypted before, got {count}")
            chunk = min(count - done, <Py_ssize_t>CHUNK_BYTES)
            if chunk == 0:
                break
            no_errors()
            self.wire.busy = True
            sent = SSL_write_ex(self.ssl, data + done, <size_t>chunk, &written)
            self.wire.busy = False
            if not sent:
                SSL_get_error(self.ssl, 0)
                self.fail()
            self.encrypted_bytes = chunk
        return done

    cdef bint flush(self) except -1:
        """Send encrypted bytes. False: the socket is full; the rest is kept and goes first next time."""
        cdef Py_ssize_t count = self.wire.outgoing_bytes, sent
        cdef bytes unsent = self.unsent
        self.wire.outgoing_bytes = 0
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
            sent = c_send(self.wire.fd, data + done, count - done, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent >= 0:
                done += sent
            elif errno == EAGAIN:
                break
            elif errno != EINTR:
                raise OSError(errno, os.strerror(errno))
        return done

    cdef int fail(self) except -1:
        """Raise the kernel's or OpenSSL's error, as Python's `ssl` does."""
        cdef long refused = SSL_get_verify_result(self.ssl)
        error = failure()
        if self.wire.failed_by:
            raise OSError(self.wire.failed_by, os.strerror(self.wire.failed_by))
        if self.wire.ended:
            raise named("unexpected eof while reading", ssl.SSLEOFError, ssl.SSL_ERROR_EOF)
        if error.reason != "CERTIFICATE_VERIFY_FAILED" or refused == X509_V_OK:
            raise error
        text = (<bytes>X509_verify_cert_error_string(refused)).decode()
        if refused == X509_V_ERR_HOSTNAME_MISMATCH or refused == X509_V_ERR_IP_ADDRESS_MISMATCH:
            text = f"{text[0].upper()}{text[1:]}, certificate is not valid for {self.name!r}."
        unverified = ssl.SSLCertVerificationError(SSL_ERROR_SSL, f"{error.strerror}: {text}")
        unverified.reason, unverified.verify_code, unverified.verify_message = error.reason, refused, text
        raise unverified


# ---- OpenSSL's callbacks ------------------------------------------------------------------------------------------------


cdef int no_password(char *_buffer, int _size, int _writing, void *encrypted) noexcept nogil:
    (<bint *>encrypted)[0] = True
    return -1  # otherwise OpenSSL asks on the terminal


cdef int check_server_name(SSL *ssl, int *alert, void *_argument) noexcept nogil:
    """A name that is not ASCII ends the handshake. That there is a callback has OpenSSL keep names with sessions."""
    cdef const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name)
    while name != NULL and name[0]:
        if <unsigned char>name[0] > 127:
            alert[0] = SSL_AD_UNRECOGNIZED_NAME
            return SSL_TLSEXT_ERR_ALERT_FATAL
        name += 1
    return SSL_TLSEXT_ERR_OK


cdef int read_cipher(BIO *bio, char *to, size_t wanted, size_t *got) noexcept nogil:
    """Read from what has been read ahead, or else from the socket: in the event loop's call, a buffer full at once."""
    cdef Wire *wire = <Wire *>BIO_get_data(bio)
    cdef ssize_t count = -1
    got[0] = 0
    BIO_clear_retry_flags(bio)
    if wire.ahead_bytes == 0:
        # A short read has emptied the socket. But "would block" is only returned when the kernel has said so: the end
        # may have come behind half a record, and is reported once.
        if not wire.drained or not wire.got_some or not wire.busy:
            while True:
                if wire.busy:
                    count = c_recv(wire.fd, INCOMING, wire.free_bytes, MSG_DONTWAIT)
                else:  # of a handshake, in a thread of its own: nothing may be left over
                    count = c_recv(wire.fd, to, wanted, MSG_DONTWAIT)
                if count >= 0 or errno != EINTR:
                    break
            if count == 0:
                wire.ended = True
                return 0
            if count < 0 and errno != EAGAIN:
                wire.failed_by = errno
                return 0
            wire.drained = count < wire.free_bytes
        if count < 0:
            BIO_set_retry_read(bio)
            return 0
        if not wire.busy:
            got[0] = <size_t>count
            return 1
        wire.ahead, wire.ahead_bytes, wire.fresh = INCOMING, count, True
    if wanted > <size_t>wire.ahead_bytes:
        wanted = <size_t>wire.ahead_bytes
    memcpy(to, wire.ahead, wanted)
    wire.ahead += wanted
    wire.ahead_bytes -= <Py_ssize_t>wanted
    got[0] = wanted
    return 1


cdef int write_cipher(BIO *bio, const char *data, size_t count, size_t *written) noexcept nogil:
    """Write to OUTGOING in the event loop's call, which sends it on; otherwise to the socket."""
    cdef Wire *wire = <Wire *>BIO_get_data(bio)
    cdef ssize_t sent
    written[0] = 0
    BIO_clear_retry_flags(bio)
    if wire.busy:
        if wire.outgoing_bytes + <Py_ssize_t>count > BUFFER_BYTES:
            return 0  # more than OpenSSL can write in answer to what was read
        memcpy(OUTGOING + wire.outgoing_bytes, data, count)
        wire.outgoing_bytes += <Py_ssize_t>count
        written[0] = count
        return 1
    sent = c_send(wire.fd, data, count, MSG_DONTWAIT | MSG_NOSIGNAL)
    if sent < 0:
        if errno == EAGAIN or errno == EINTR:
            BIO_set_retry_write(bio)
        else:
            wire.failed_by = errno
        return 0
    written[0] = <size_t>sent
    return 1


cdef long control(BIO *bio, int what, long _number, void *_data) noexcept nogil:
    if what == BIO_CTRL_EOF:
        return (<Wire *>BIO_get_data(bio)).ended
    return what == BIO_CTRL_FLUSH


cdef BIO_METHOD *METHOD_OF_CHANNELS = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, b"kquota")
if METHOD_OF_CHANNELS == NULL:
    raise MemoryError
BIO_meth_set_read_ex(METHOD_OF_CHANNELS, read_cipher)
BIO_meth_set_write_ex(METHOD_OF_CHANNELS, write_cipher)
BIO_meth_set_ctrl(METHOD_OF_CHANNELS, control)
