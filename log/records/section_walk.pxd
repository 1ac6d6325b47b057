cimport cython
cimport tidelog.protocol.compiled.words as words

cdef object _SINGLE_KEYLESS
cdef object _new_tuple
cdef long long _LOCKED_BYTES
cdef long long _MIN_RECORD_BYTES

@cython.locals(held=words.Held, is_whole=bint, low=longlong, high=longlong, keyless=longlong, is_consecutive=bint)
cpdef check_section(section, long long count, max_header_bytes=*)

@cython.locals(held=words.Held, is_whole=bint, offset=longlong, timestamp=longlong)
cpdef first_at_or_after(section, long long count, long long timestamp_delta, long long min_offset_delta)

@cython.locals(raw=ulonglong, shift=int, end=longlong, byte=ulonglong)
cdef (unsigned long long, long long) _read_long_varint(
    const unsigned char* data, long long size, long long position, long long max_bytes) noexcept nogil

@cython.locals(first=ulonglong, second=ulonglong)
cdef (unsigned long long, long long) _read_raw(
    const unsigned char* data, long long size, long long position, long long max_bytes) noexcept nogil

cdef long long _zigzag(unsigned long long raw) noexcept nogil

@cython.locals(raw=ulonglong, raw_timestamp=ulonglong, length=longlong, end=longlong)
cdef (long long, long long, long long, long long) _read_deltas(
    const unsigned char* data, long long size, long long position) noexcept nogil

@cython.locals(raw=ulonglong)
cdef (bint, long long) _skip_field(
    const unsigned char* data, long long size, long long position, long long end) noexcept nogil

@cython.locals(raw=ulonglong, count=longlong, is_null=bint)
cdef long long _skip_headers(const unsigned char* data, long long size, long long position, long long end) noexcept nogil

@cython.locals(is_keyless=bint, _=bint)
cdef (bint, bint) _skip_rest(
    const unsigned char* data, long long size, long long position, long long end) noexcept nogil

@cython.locals(position=longlong, low=longlong, high=longlong, first_keyless=longlong, is_consecutive=bint,
               index=longlong, delta=longlong, offset=longlong, end=longlong, is_keyless=bint, is_whole=bint)
cdef (bint, long long, long long, long long, bint) walk(
    const unsigned char* data, long long size, long long count) noexcept nogil

@cython.locals(position=longlong, timestamp=longlong, offset=longlong, _=longlong)
cdef (bint, long long, long long) _find(
    const unsigned char* data, long long size, long long count, long long timestamp_delta,
    long long min_offset_delta) noexcept nogil

@cython.locals(held=words.Held)
cpdef value_spans(section, long long count)

@cython.locals(position=longlong, found=list, _=longlong, _timestamp=longlong, offset=longlong, end=longlong,
               _is_keyless=bint, is_null=bint, raw=ulonglong, start=longlong, length=longlong)
cdef list _find_values(const unsigned char* data, long long size, long long count)
