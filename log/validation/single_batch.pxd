cimport cython
cimport tidelog.log.records.section_walk as section_walk
cimport tidelog.protocol.compiled.words as words

cdef object _new_tuple
cdef long long _CODEC, _TRANSACTIONAL, _SLOW_ATTRIBUTES, _OVERHEAD, _LOG_OVERHEAD, _MAGIC, _V2, _ATTRIBUTES
cdef long long _LENGTH, _EPOCH, _CRC, _LAST_DELTA, _BASE_TIMESTAMP, _MAX_TIMESTAMP
cdef long long _PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _COUNT, _NO_PRODUCER, _NO_TIME
cdef long long _FAR, _LOCKED_BYTES, _MOST_RECORDS

cdef class BatchLimits:
    cdef long long codec, max_bytes, max_plain, before_ms, after_ms
    cdef bint is_keyed

@cython.locals(held=words.Held)
cpdef check_and_assign(records, long long next_offset, long long leader_epoch, long long now_ms, BatchLimits limits,
                       budget)

@cython.locals(data="const unsigned char*", size=longlong, count=longlong, codec=longlong, plain=words.Held,
               is_whole=bint, low=longlong, high=longlong, keyless=longlong, is_consecutive=bint,
               base_timestamp=longlong, max_timestamp=longlong, last_delta=longlong, base_sequence=longlong,
               last_offset=longlong, last_sequence=longlong, is_transactional=bint, shallow=longlong)
cdef object _check_and_assign(words.Held held, records, long long next_offset, long long leader_epoch, long long now_ms,
                              BatchLimits limits, budget)

@cython.locals(attributes=longlong, codec=longlong, last_delta=longlong)
cdef bint _is_usual(const unsigned char* data, long long size, BatchLimits limits) noexcept

cdef (bint, long long, long long, long long, bint) _check_plain(
    const unsigned char* data, long long size, long long count) noexcept nogil
