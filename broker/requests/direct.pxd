cimport cython
cimport tidelog.protocol.compiled.words as words

cdef long long _HEAD_BYTES, _CORRELATION_ID, _CLIENT_ID, _MAX_REUSED

cdef class DirectRoute:
    cdef public object decode, encoder, encodes, error_response, handle
    cdef public long long api_key, api_version, header_bytes, max_elements, one_turn_bytes, one_turn_elements, requests
    cdef public bint flexible_header

    @cython.locals(parts=list)
    cpdef answer_now(self, broker, context, request)

cdef class DirectDispatcher:
    cdef readonly object _broker, _quotas
    cdef readonly dict _routes

    @cython.locals(held=words.Held, data="const unsigned char*", size=longlong, word="unsigned int",
                   correlation_id=longlong, length=longlong, position=longlong, has_tags=bint, route=DirectRoute)
    cpdef dispatch(self, context, frame)

    @cython.locals(size=longlong)
    cdef _answer(self, DirectRoute route, context, frame, long long position)
