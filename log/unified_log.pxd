cimport cython
from tidelog.log.producer.state cimport ProducerStateManager
from tidelog.log.segment.segment cimport LogSegment
from tidelog.log.validation.single_batch cimport CheckedBatch
from tidelog.log.validation.validator cimport LogValidator
cimport tidelog.protocol.compiled.words as words

cdef object _CLIENT

cdef class UnifiedLog:
    cdef public LogSegment _active
    cdef public object _directory_state, _directory_number, _rolled, _time
    cdef LogValidator _validator
    cdef public object bound_hint, config, directory, end, environment, files, index_bound, last_flushed_ms
    cdef public object leader_epochs, lock, proof_lock, segments, tail_hint, topic_id, topic_partition
    cdef public ProducerStateManager producer_state
    cdef public bint _is_identified, flush_wanted, is_closed
    cdef long long _segment_bytes, _segment_ms
    cdef public long long _cuts, _opened_end, high_watermark, last_stable_offset, log_end_offset, log_start_offset
    cdef public long long clean_bound, recovery_bound, recovery_point, version

    @cython.locals(next_offset=longlong, last_offset=longlong, max_timestamp=longlong, now_ms=longlong, size=longlong,
                   checked=CheckedBatch, validator=LogValidator)
    cpdef append_as_leader(self, records, long long leader_epoch, origin=*, budget=*, validated=*, bint is_committed=*,
                           long transaction_version=*)

    @cython.locals(size=longlong, position=longlong, last_offset=longlong, max_timestamp=longlong, active=LogSegment)
    cdef long long _write(self, CheckedBatch checked, long long next_offset, long long leader_epoch) except -1

    cpdef update_high_watermark(self, long long offset)

    cdef _move_high_watermark(self, long long offset)
    cpdef _publish_last_stable_offset(self)
