cimport cython
from tidelog.log.files.file_records cimport FileRecords

cdef class LogSegment:
    cdef object _file_system, _time, _largest, _rolling_timestamp, _created_ms
    cdef public object _sequential_hint
    cdef public object directory, suffix, offset_index, time_index, transaction_index
    cdef public FileRecords records
    cdef public long long base_offset, roll_jitter_ms
    cdef long long _index_interval_bytes, _index_room, _bytes_since_entry
    cdef readonly long long resets

    @cython.locals(size=longlong, since=longlong, position=longlong)
    cpdef long long append(self, records, long long last_offset, long long max_timestamp, long long offset_of_max) except -1

    @cython.locals(own_size=longlong)
    cpdef bint should_roll(self, long long segment_bytes, long long segment_ms, long long size, long long max_timestamp,
                           long long last_offset) except -1

    cdef long long _waited_for_roll(self, long long max_timestamp) except -1

cdef bint _append_entries(LogSegment segment, long long last_offset, long long position, largest) except -1
