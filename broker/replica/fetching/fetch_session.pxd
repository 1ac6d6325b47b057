cimport cython

cdef class FetchTarget:
    cdef public object topic, topic_id, rested_until_ms
    cdef public long long index, fetch_offset, max_bytes, current_leader_epoch, last_fetched_epoch, log_start_offset
    cdef public long long sent_high_watermark, sent_log_start_offset, sent_epoch

    cpdef update(self, asked)

cdef class FetchContext:
    cdef object _cache
    cdef bint _wants_session
    cdef readonly bint is_incremental, uses_topic_ids
    cdef readonly object session
    cdef readonly list targets

    cpdef finish(self, list results)

    cpdef begin_session(self)

    @cython.locals(target=FetchTarget, epoch=longlong)
    cpdef note(self, list results)

@cython.locals(topics=list)
cpdef list full_targets(request)
