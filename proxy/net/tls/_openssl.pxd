"""Types of `proxy/net/tls/_openssl.pyx`, and the functions of OpenSSL and the kernel that it calls."""

from proxy.net.io.endpoint cimport Endpoint


cdef extern from "openssl/ssl.h" nogil:
    ctypedef struct SSL: pass
    ctypedef struct SSL_CTX: pass
    ctypedef struct BIO: pass
    ctypedef struct EVP_PKEY: pass
    ctypedef struct SSL_METHOD: pass
    ctypedef struct X509: pass
    ctypedef struct X509_STORE: pass
    ctypedef struct X509_VERIFY_PARAM: pass
    const SSL_METHOD *TLS_server_method()
    const SSL_METHOD *TLS_client_method()
    SSL_CTX *SSL_CTX_new(const SSL_METHOD *)
    X509_VERIFY_PARAM *SSL_CTX_get0_param(SSL_CTX *)
    X509_STORE *SSL_CTX_get_cert_store(const SSL_CTX *)
    void SSL_CTX_free(SSL_CTX *)
    void SSL_CTX_set_verify(SSL_CTX *, int, void *)
    unsigned long long SSL_CTX_set_options(SSL_CTX *, unsigned long long)
    long SSL_CTX_set_mode(SSL_CTX *, long)
    long SSL_CTX_set_min_proto_version(SSL_CTX *, long)
    long SSL_CTX_set_tlsext_servername_callback(SSL_CTX *, int (*)(SSL *, int *, void *) noexcept nogil)
    int SSL_CTX_set_session_id_context(SSL_CTX *, const unsigned char *, unsigned int)
    int SSL_CTX_set_cipher_list(SSL_CTX *, const char *)
    int SSL_CTX_set_default_verify_paths(SSL_CTX *)
    int SSL_CTX_use_certificate(SSL_CTX *, X509 *)
    int SSL_CTX_add1_chain_cert(SSL_CTX *, X509 *)
    int SSL_CTX_use_PrivateKey(SSL_CTX *, EVP_PKEY *)
    int SSL_CTX_check_private_key(const SSL_CTX *)
    SSL *SSL_new(SSL_CTX *)
    X509_VERIFY_PARAM *SSL_get0_param(SSL *)
    X509 *SSL_get1_peer_certificate(const SSL *)
    const char *SSL_get_servername(const SSL *, int)
    void SSL_free(SSL *)
    void SSL_set_bio(SSL *, BIO *, BIO *)
    void SSL_set_accept_state(SSL *)
    void SSL_set_connect_state(SSL *)
    long SSL_set_tlsext_host_name(SSL *, const char *)
    long SSL_get_verify_result(const SSL *)
    int SSL_do_handshake(SSL *)
    int SSL_shutdown(SSL *)
    int SSL_pending(const SSL *)
    int SSL_get_error(const SSL *, int)
    int SSL_read_ex(SSL *, void *, size_t, size_t *)
    int SSL_write_ex(SSL *, const void *, size_t, size_t *)
    const int SSL_ERROR_SSL, SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_ZERO_RETURN, TLS1_2_VERSION
    const int SSL_VERIFY_NONE, SSL_VERIFY_PEER, SSL_VERIFY_FAIL_IF_NO_PEER_CERT, SSL_AD_UNRECOGNIZED_NAME
    const int SSL_TLSEXT_ERR_OK, SSL_TLSEXT_ERR_ALERT_FATAL, TLSEXT_NAMETYPE_host_name, OPENSSL_VERSION
    const long SSL_MODE_AUTO_RETRY, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, SSL_MODE_RELEASE_BUFFERS
    const unsigned long long SSL_OP_ALL, SSL_OP_NO_COMPRESSION, SSL_OP_CIPHER_SERVER_PREFERENCE
    const unsigned long long SSL_OP_NO_RENEGOTIATION, SSL_OP_IGNORE_UNEXPECTED_EOF, SSL_OP_DONT_INSERT_EMPTY_FRAGMENTS
    const char *OpenSSL_version(int)
    void OPENSSL_free(void *)

cdef extern from "openssl/err.h" nogil:
    void ERR_clear_error()
    unsigned long ERR_peek_last_error()
    const char *ERR_reason_error_string(unsigned long)

cdef extern from "openssl/x509v3.h" nogil:
    ctypedef struct ASN1_OCTET_STRING: pass
    X509 *d2i_X509(X509 **, const unsigned char **, long)
    int i2d_X509(const X509 *, unsigned char **)
    int X509_STORE_add_cert(X509_STORE *, X509 *)
    void X509_free(X509 *)
    void X509_VERIFY_PARAM_set_hostflags(X509_VERIFY_PARAM *, unsigned int)
    int X509_VERIFY_PARAM_set_flags(X509_VERIFY_PARAM *, unsigned long)
    int X509_VERIFY_PARAM_set1_host(X509_VERIFY_PARAM *, const char *, size_t)
    int X509_VERIFY_PARAM_set1_ip_asc(X509_VERIFY_PARAM *, const char *)
    const char *X509_verify_cert_error_string(long)
    ASN1_OCTET_STRING *a2i_IPADDRESS(const char *)
    void ASN1_OCTET_STRING_free(ASN1_OCTET_STRING *)
    const unsigned int X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS
    const unsigned long X509_V_FLAG_PARTIAL_CHAIN
    const unsigned long X509_V_FLAG_TRUSTED_FIRST
    const long X509_V_OK, X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

cdef extern from "openssl/pem.h" nogil:
    EVP_PKEY *PEM_read_bio_PrivateKey(BIO *, EVP_PKEY **, int (*)(char *, int, int, void *) noexcept nogil, void *)
    void EVP_PKEY_free(EVP_PKEY *)

cdef extern from "openssl/bio.h" nogil:
    ctypedef struct BIO_METHOD: pass
    BIO *BIO_new(const BIO_METHOD *)
    BIO *BIO_new_mem_buf(const void *, int)
    void *BIO_get_data(BIO *)
    void BIO_set_data(BIO *, void *)
    void BIO_set_init(BIO *, int)
    void BIO_clear_retry_flags(BIO *)
    void BIO_set_retry_read(BIO *)
    void BIO_set_retry_write(BIO *)
    int BIO_free(BIO *)
    int BIO_get_new_index()
    BIO_METHOD *BIO_meth_new(int, const char *)
    int BIO_meth_set_read_ex(BIO_METHOD *, int (*)(BIO *, char *, size_t, size_t *) noexcept nogil)
    int BIO_meth_set_write_ex(BIO_METHOD *, int (*)(BIO *, const char *, size_t, size_t *) noexcept nogil)
    int BIO_meth_set_ctrl(BIO_METHOD *, long (*)(BIO *, int, long, void *) noexcept nogil)
    const int BIO_CTRL_EOF, BIO_CTRL_FLUSH, BIO_TYPE_SOURCE_SINK

cdef extern from "sys/socket.h" nogil:
    const int MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD
    ssize_t c_recv "recv"(int fd, void *buf, size_t count, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t count, int flags)
    int c_shutdown "shutdown"(int fd, int how)


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
