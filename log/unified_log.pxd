cimport cython
from tidelog.log.producer.state cimport ProducerStateManager
from tidelog.log.segment.segment cimport LogSegment

from tidelog.log.validation.validator cimport LogValidator

cdef object _new_tuple, _CLIENT

cdef class UnifiedLog:
    cdef public LogSegment _active
    cdef public object _directory_state, _directory_number, _rolled, _time
    cdef LogValidator _validator
    cdef public object bound_hint, config, directory, end, environment, files, index_bound, last_flushed_ms
    cdef public object leader_epochs, lock, proof_lock, segments, tail_hint, topic_id, topic_partition
    cdef public ProducerStateManager producer_state
    cdef public bint _is_identified, flush_wanted, is_closed
    cdef public long long _opened_end, high_watermark, last_stable_offset, log_end_offset, log_start_offset
    cdef public long long recovery_point, version

    @cython.locals(next_offset=longlong, first_offset=longlong, last_offset=longlong, max_timestamp=longlong,
                   count=longlong)
    cpdef append_as_leader(self, records, long long leader_epoch, origin=*, budget=*, validated=*)

    @cython.locals(size=longlong, position=longlong, indexed=longlong, active=LogSegment)
    cdef _write(self, records, long long last_offset, long long max_timestamp, long long offset_of_max,
                long long indexed, long long next_offset, long long leader_epoch)

    cpdef update_high_watermark(self, long long offset)
    cpdef _publish_last_stable_offset(self)
