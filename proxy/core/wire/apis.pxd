cdef int _APIS, _VERSIONS

cpdef Py_ssize_t place(int api_key, int version) except -1
