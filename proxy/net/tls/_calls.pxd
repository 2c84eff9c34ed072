"""OpenSSL's and the kernel's functions that `proxy/net/tls/_openssl.pyx`, and nothing else, calls."""

from proxy.net.tls._openssl cimport BIO, SSL


cdef extern from *:
    """
    #include <dlfcn.h>
    #include <sys/socket.h>

    typedef struct bio_method_st kq_METHOD;
    /* Of OpenSSL 1.1.1 and 3: what is called, found where Python's own module finds it. */
    #define KQ_CALLS(X) \\
        X(int, SSL_read_ex, (kq_SSL *, void *, size_t, size_t *)) \\
        X(int, SSL_write_ex, (kq_SSL *, const void *, size_t, size_t *)) \\
        X(int, SSL_get_error, (const kq_SSL *, int)) X(int, SSL_get_fd, (const kq_SSL *)) \\
        X(void *, SSL_get_SSL_CTX, (const kq_SSL *)) X(void, SSL_set_read_ahead, (kq_SSL *, int)) \\
        X(void, SSL_set_bio, (kq_SSL *, kq_BIO *, kq_BIO *)) X(void, ERR_clear_error, (void)) \\
        X(unsigned long, ERR_peek_last_error, (void)) X(const char *, ERR_reason_error_string, (unsigned long)) \\
        X(kq_BIO *, BIO_new, (const kq_METHOD *)) X(int, BIO_free, (kq_BIO *)) X(int, BIO_up_ref, (kq_BIO *)) \\
        X(void, BIO_set_data, (kq_BIO *, void *)) X(void *, BIO_get_data, (kq_BIO *)) \\
        X(void, BIO_set_init, (kq_BIO *, int)) X(void, BIO_set_flags, (kq_BIO *, int)) \\
        X(void, BIO_clear_flags, (kq_BIO *, int)) X(int, BIO_get_new_index, (void)) \\
        X(kq_METHOD *, BIO_meth_new, (int, const char *)) \\
        X(int, BIO_meth_set_read_ex, (kq_METHOD *, int (*)(kq_BIO *, char *, size_t, size_t *))) \\
        X(int, BIO_meth_set_write_ex, (kq_METHOD *, int (*)(kq_BIO *, const char *, size_t, size_t *))) \\
        X(int, BIO_meth_set_ctrl, (kq_METHOD *, long (*)(kq_BIO *, int, long, void *)))
    #define KQ_DECLARE(result, name, arguments) static result (*kq_##name) arguments;
    KQ_CALLS(KQ_DECLARE)
    #define KQ_FIND(result, name, arguments) \\
        if (!(*(void **)&kq_##name = dlsym(from, #name))) return #name;
    static const char *kq_find(const char *module) {
        void *from = dlopen(module, RTLD_NOW | RTLD_NOLOAD);
        if (!from) return "dlopen";
        KQ_CALLS(KQ_FIND)
        return 0;
    }
    enum { KQ_RETRY_READ = 0x01 | 0x08, KQ_RETRY_WRITE = 0x02 | 0x08, KQ_FLAGS = 0x0f,
           KQ_CTRL_EOF = 2, KQ_CTRL_FLUSH = 11, KQ_TYPE = 0x0400 /* BIO_TYPE_SOURCE_SINK */ };
    """
    ctypedef struct METHOD "kq_METHOD"
    const char *kq_find(const char *module)
    int SSL_read_ex "kq_SSL_read_ex"(SSL *, void *, size_t, size_t *)
    int SSL_write_ex "kq_SSL_write_ex"(SSL *, const void *, size_t, size_t *)
    int SSL_get_error "kq_SSL_get_error"(const SSL *, int)
    int SSL_get_fd "kq_SSL_get_fd"(const SSL *)
    void *SSL_get_SSL_CTX "kq_SSL_get_SSL_CTX"(const SSL *)
    void SSL_set_read_ahead "kq_SSL_set_read_ahead"(SSL *, int)
    void SSL_set_bio "kq_SSL_set_bio"(SSL *, BIO *, BIO *)
    void ERR_clear_error "kq_ERR_clear_error"()
    unsigned long ERR_peek_last_error "kq_ERR_peek_last_error"()
    const char *ERR_reason_error_string "kq_ERR_reason_error_string"(unsigned long)
    BIO *BIO_new "kq_BIO_new"(const METHOD *)
    int BIO_free "kq_BIO_free"(BIO *)
    int BIO_up_ref "kq_BIO_up_ref"(BIO *)
    void BIO_set_data "kq_BIO_set_data"(BIO *, void *)
    void *BIO_get_data "kq_BIO_get_data"(BIO *) noexcept
    void BIO_set_init "kq_BIO_set_init"(BIO *, int)
    void BIO_set_flags "kq_BIO_set_flags"(BIO *, int) noexcept
    void BIO_clear_flags "kq_BIO_clear_flags"(BIO *, int) noexcept
    int BIO_get_new_index "kq_BIO_get_new_index"()
    METHOD *BIO_meth_new "kq_BIO_meth_new"(int, const char *)
    int BIO_meth_set_read_ex "kq_BIO_meth_set_read_ex"(METHOD *, int (*)(BIO *, char *, size_t, size_t *) noexcept)
    int BIO_meth_set_write_ex "kq_BIO_meth_set_write_ex"(METHOD *, int (*)(BIO *, const char *, size_t, size_t *) noexcept)
    int BIO_meth_set_ctrl "kq_BIO_meth_set_ctrl"(METHOD *, long (*)(BIO *, int, long, void *) noexcept)
    const int KQ_RETRY_READ, KQ_RETRY_WRITE, KQ_FLAGS, KQ_CTRL_EOF, KQ_CTRL_FLUSH, KQ_TYPE
    const int MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD
    ssize_t c_recv "recv"(int fd, void *buf, size_t count, int flags) noexcept
    ssize_t c_send "send"(int fd, const void *buf, size_t count, int flags) noexcept
    int c_shutdown "shutdown"(int fd, int how) noexcept
