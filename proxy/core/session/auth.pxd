cimport cython

from proxy.core.session.effects cimport Effects as EffectsType
from proxy.core.session.exchange cimport Exchange as ExchangeType, InFlightRequest as InFlightRequestType
from proxy.core.session.frames cimport FrameReader as FrameReaderType, Verdict as VerdictType
from proxy.core.session.throttle cimport Throttle as ThrottleType
from proxy.core.wire.requests cimport RequestHeader


@cython.final
cdef class Auth:
    cdef EffectsType _effects
    cdef ExchangeType _exchange
    cdef ThrottleType _throttle
    cdef object _claim, _login
    cdef bint _begun, _refused
    cdef int _kept_api_key, _probe_version, _versions
    cdef readonly object state, user
    cdef readonly bint blocks, expected, raw, secret

    cpdef bint raw_comes(self) except -1
    cpdef VerdictType raw_answer(self, FrameReaderType reader, double now_ms)
    cpdef VerdictType raw_message(self, FrameReaderType reader, double now_ms)
    cpdef VerdictType request(self, FrameReaderType reader, RequestHeader header, InFlightRequestType pending)
