cimport cython
cimport tidelog.log.validation.single_batch as single_batch

cdef class LogValidator:
    cdef public object params
    cdef bint _is_fast, _is_keyed
    cdef object _codec, _max_bytes, _max_plain, _before_ms, _after_ms
    cdef single_batch.BatchLimits _limits

    cpdef validate_and_assign_offsets(self, records, long long next_offset, long long leader_epoch, long long now_ms,
                                      origin=*, budget=*)

    cpdef bint assign_unchanged(self, records, long long next_offset, long long leader_epoch, long long now_ms,
                                budget, single_batch.CheckedBatch checked) except -1
