cimport cython
cimport tidelog.log.records.section_walk as section_walk
cimport tidelog.protocol.compiled.words as words

cdef long long _CODEC, _TRANSACTIONAL, _SLOW_ATTRIBUTES, _OVERHEAD, _LOG_OVERHEAD, _MAGIC, _V2, _ATTRIBUTES
cdef long long _LENGTH, _EPOCH, _CRC, _LAST_DELTA, _BASE_TIMESTAMP, _MAX_TIMESTAMP
cdef long long _PRODUCER_ID, _PRODUCER_EPOCH, _BASE_SEQUENCE, _COUNT, _NO_PRODUCER, _NO_TIME
cdef long long _FAR, _LOCKED_BYTES, _MAX_RECORDS

@cython.freelist(8)
cdef class CheckedBatch:
    cdef public object records
    cdef public long long first_offset, last_offset, indexed_offset, max_timestamp, offset_of_max_timestamp
    cdef public long long append_time_ms, producer_id, producer_epoch, base_sequence, last_sequence
    cdef public bint is_transactional, is_control

    cpdef void note(self, records, long long first_offset, long long last_delta, long long max_timestamp,
                    long long producer_id, long long producer_epoch, long long base_sequence,
                    bint is_transactional) noexcept

    cpdef take(self, result)

cdef class BatchLimits:
    cdef long long codec, max_bytes, max_plain, before_ms, after_ms
    cdef bint is_keyed

@cython.locals(held=words.Held, attributes=longlong, data="const unsigned char*", size=longlong)
cpdef long long attributes_of(records) except -2

@cython.locals(held=words.Held)
cpdef bint check_and_assign(records, long long next_offset, long long leader_epoch, long long now_ms,
                            BatchLimits limits, budget, CheckedBatch checked) except -1

@cython.locals(data="const unsigned char*", size=longlong, count=longlong, codec=longlong, plain=words.Held,
               plain_size=longlong, is_whole=bint, low=longlong, high=longlong, keyless=longlong,
               is_consecutive=bint, base_timestamp=longlong, max_timestamp=longlong)
cdef bint _check_and_assign(words.Held held, records, long long next_offset, long long leader_epoch, long long now_ms,
                            BatchLimits limits, budget, CheckedBatch checked) except -1

@cython.locals(attributes=longlong, codec=longlong, last_delta=longlong)
cdef bint _is_usual(const unsigned char* data, long long size, BatchLimits limits) noexcept

cdef (bint, long long, long long, long long, bint) _check_plain(
    const unsigned char* data, long long size, long long count) noexcept nogil
