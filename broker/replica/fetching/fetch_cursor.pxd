cimport cython
from tidelog.log.segment.segment cimport LogSegment
from tidelog.log.unified_log cimport UnifiedLog
cimport tidelog.protocol.compiled.words as words

cdef long long _HEADER_BYTES, _LENGTH, _MAGIC, _LAST_OFFSET_DELTA, _SMALLEST_LENGTH, _OVERHEAD, _MAGIC_2, _LARGEST_OFFSET
cdef object _COMMITTED, _LOG_END, _Info

cdef class NextBatch:
    cdef long long last_offset, position, size, version
    cdef LogSegment segment
    cdef object segments

cdef class FetchCursor:
    cdef UnifiedLog _log
    cdef readonly dict _next_batches
    cdef bytearray _header
    cdef object _committed_segments
    cdef long long _committed_from, _looks_to_skip, _base_offset, _size, _last_offset_delta

    @cython.locals(found=NextBatch, log=UnifiedLog, version=longlong)
    cpdef read(self, long long offset, long long max_bytes, isolation, bint min_one_message)

    @cython.locals(found=NextBatch, segment=LogSegment, position=longlong, last_offset=longlong)
    cdef _begin(self, long long offset, records, long long max_bytes, isolation, segments, long long version)

    @cython.locals(segment=LogSegment, bound=longlong, following=longlong, room=longlong, is_seen=bint, next_batches=dict)
    cdef _read_on(self, NextBatch found, long long offset, long long max_bytes, isolation)

    @cython.locals(log=UnifiedLog, segment=LogSegment, end_offset=longlong, end_base_offset=longlong,
                   end_position=longlong)
    cdef long long _bound(self, NextBatch found, long long offset, long long max_bytes, isolation) except -2

    @cython.locals(later=LogSegment)
    cdef bint _has_no_abort(self, segments, LogSegment segment) except -1

    @cython.locals(header="unsigned char*", length=longlong, delta=longlong, is_possible=bint)
    cdef bint _look(self, int descriptor, long long position) except -1
