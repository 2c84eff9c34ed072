# The compiled versions of the functions of integers.py. Every one of them checks bounds.
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.buffer cimport Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.string cimport memcmp
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t


cdef inline uint8_t *bytes_at(object buf, Py_ssize_t at, Py_ssize_t count, bint to_write) except NULL:
    cdef Py_buffer *view
    if PyMemoryView_Check(buf) and at >= 0 and count >= 0:
        view = PyMemoryView_GET_BUFFER(buf)
        if is_bytes(view, to_write) and count <= view.len - at:
            return <uint8_t *>view.buf + at
    return bytes_elsewhere(buf, at, count, to_write)


cdef inline bint is_bytes(Py_buffer *view, bint to_write) noexcept:
    return view.itemsize == 1 and view.ndim == 1 and view.strides[0] == 1 and not (to_write and view.readonly)


# Of other objects, or an error: apart from the above, which is short enough to become part of its callers.
cdef inline uint8_t *bytes_elsewhere(object buf, Py_ssize_t at, Py_ssize_t count, bint to_write) except NULL:
    cdef uint8_t *data
    cdef Py_ssize_t size
    if PyByteArray_CheckExact(buf):
        data, size = <uint8_t *>PyByteArray_AS_STRING(buf), PyByteArray_GET_SIZE(buf)
    elif PyBytes_CheckExact(buf) and not to_write:
        data, size = <uint8_t *>PyBytes_AS_STRING(buf), PyBytes_GET_SIZE(buf)
    elif PyMemoryView_Check(buf) and is_bytes(PyMemoryView_GET_BUFFER(buf), to_write):
        raise IndexError("beyond the buffer")
    else:
        raise TypeError("no bytearray, nor bytes that are only read, nor a contiguous view of bytes")
    if at < 0 or count < 0 or count > size or at > size - count:
        raise IndexError("beyond the buffer")
    return data + at


cdef inline int uint8(object buf, Py_ssize_t at) except -1:
    return bytes_at(buf, at, 1, False)[0]


cdef inline int int16(object buf, Py_ssize_t at) except? -1:
    cdef uint8_t *data = bytes_at(buf, at, 2, False)
    return <int16_t>(<uint16_t>data[0] << 8 | data[1])


cdef inline long long int32(object buf, Py_ssize_t at) except? -1:
    cdef uint8_t *data = bytes_at(buf, at, 4, False)
    return <int32_t>(<uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3])


cdef inline (long long, Py_ssize_t) uvarint(object buf, Py_ssize_t at, Py_ssize_t limit) except *:
    cdef long long value = 0
    cdef int shift = 0, byte
    while shift < 35:
        if at >= limit:
            return 0, -1
        byte = uint8(buf, at)
        at += 1
        value |= <long long>(byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -2


cdef inline int short_uvarint(object buf, Py_ssize_t at) except? -1:
    cdef int low = uint8(buf, at), high
    if low < 0x80:
        return low
    high = uint8(buf, at + 1)
    return high << 7 | low & 0x7F if high < 0x80 else -1


cdef inline int put_int16(object buf, Py_ssize_t at, int value) except -1:
    cdef uint8_t *data = bytes_at(buf, at, 2, True)
    data[0], data[1] = value >> 8 & 0xFF, value & 0xFF
    return 0


cdef inline int put_int32(object buf, Py_ssize_t at, long long value) except -1:
    cdef uint8_t *data = bytes_at(buf, at, 4, True)
    data[0], data[1], data[2], data[3] = value >> 24 & 0xFF, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
    return 0


cdef inline bint same(object buf, Py_ssize_t at, bytes data) except -1:
    cdef Py_ssize_t count = PyBytes_GET_SIZE(data)
    return memcmp(bytes_at(buf, at, count, False), PyBytes_AS_STRING(data), count) == 0


cdef inline bytes piece(object buf, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<char *>bytes_at(buf, start, end - start, False), end - start)
